from __future__ import annotations

import re
from pathlib import Path

import pytest

from scons_gpu.cli import program
from scons_gpu.cli.bench import COMMANDS as BENCH
from scons_gpu.cli.graphs import COMMANDS as GRAPHS
from scons_gpu.cli.inside import COMMANDS as INSIDE
from scons_gpu.cli.looks import COMMANDS as LOOKS
from scons_gpu.cli.times import COMMANDS as TIMES
from scons_gpu.scons.settings import VARIABLES

TOP = Path(__file__).parents[2]


def test_every_variable_is_documented_and_no_other() -> None:
    documented = set(re.findall(r"`(GPU_[A-Z_]+)`", (TOP / "docs/modules.md").read_text()))
    assert documented - {"GPU_"} == set(VARIABLES)


def test_defaults_are_the_documented_ones() -> None:
    rows = dict(re.findall(r"^\| `(GPU_[A-Z_]+)` \| (.+?) \|", (TOP / "docs/modules.md").read_text(), re.MULTILINE))
    spoken = {"none": ((), ""), "off": (False,)}
    wrong = {name: text for name, text in rows.items() if VARIABLES[name][0] not in spoken.get(text, (text.strip("`"), _number(text)))}
    assert wrong == {}


def _number(text: str) -> int | None:
    return int(text.strip("`")) if text.strip("`").isdigit() else None


def test_the_readme_begins_with_the_two_commands() -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", (TOP / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    assert blocks[0].startswith("python3 -m venv .venv && ")
    assert blocks[0].rstrip().endswith(".venv/bin/scons -j2")
    assert ".venv/bin/pytest" in blocks[1]


def test_every_command_and_its_options_are_documented() -> None:
    """By what `--help` prints; the steps by hand have their options from docs/modules.md."""
    page = (TOP / "docs/commands.md").read_text()
    rows = dict(re.findall(r"^\| `((?:tuning |budget )?[a-z-]+)(.*?)` \|", page, re.MULTILINE))
    alone = [command for command in (*LOOKS, *INSIDE, *GRAPHS, *TIMES, *BENCH) if command.name != "budget"]
    looks = {str(command.name): command for command in alone}
    for group in ("tuning", "budget"):
        looks |= {f"{group} {name}": command for name, command in program.commands[group].commands.items()}  # type: ignore[attr-defined]
    assert {name for name in rows if name in looks} == set(looks)
    for name, command in looks.items():
        asked = {option for each in command.params for option in each.opts if option.startswith("-") and option != "--json"}
        asked -= {"--output"}  # -o is its short form
        assert {option for option in asked if option not in rows[name]} == set(), name
    assert {
        name for name in program.commands if f"scons-gpu {name} " not in page and name not in looks and name not in ("tuning", "budget")
    } == set()


@pytest.mark.parametrize("page", ["README.md", *sorted(str(path.relative_to(TOP)) for path in (TOP / "docs").glob("*.md"))])
def test_pages_name_only_files_that_are_there(page: str) -> None:
    text = (TOP / page).read_text()
    named = re.findall(r"\b(?:docs|tests|kernels|benchmarks|builders)/[\w./-]*\w", text)
    assert [name for name in named if not (TOP / name).exists()] == []
