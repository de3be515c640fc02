"""Every spelling of an architecture, and what is said of one that is none."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scons_gpu.errors import UsageError
from scons_gpu.toolchain.arch import GENERAL, KNOWN, Target, assembles_for, parse

if TYPE_CHECKING:
    from pathlib import Path

    from scons_gpu.toolchain.tools import Toolchain


def names(spec: str | list[str], **options: object) -> list[str]:
    return [target.name for target in parse(spec, **options)]


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("90", ["sm_90"]),
        ("9.0", ["sm_90"]),
        ("sm_90", ["sm_90"]),
        ("SM_90", ["sm_90"]),
        ("sm90", ["sm_90"]),
        ("90-real", ["sm_90"]),
        ("90a", ["sm_90a"]),
        ("9.0a", ["sm_90a"]),
        ("sm_90a", ["sm_90a"]),
        ("90a-real", ["sm_90a"]),
        ("90-virtual", ["compute_90"]),
        ("90a-virtual", ["compute_90a"]),
        ("compute_90", ["compute_90"]),
        ("compute_90-virtual", ["compute_90"]),
        ("8.6+PTX", ["sm_86", "compute_86"]),
        ("8.6+ptx", ["sm_86", "compute_86"]),
        ("9.0a+PTX", ["sm_90a", "compute_90a"]),
        ("sm_100f", ["sm_100f"]),
        ("10.0f", ["sm_100f"]),
        ("12.1", ["sm_121"]),
        ("121", ["sm_121"]),
    ],
)
def test_a1_every_spelling(spelling: str, expected: list[str]) -> None:
    assert names(spelling) == expected
    assert names([spelling]) == expected


def test_a1_several_keep_their_order_and_lose_duplicates() -> None:
    expected = ["sm_90a", "sm_80", "sm_86", "compute_86", "compute_90"]
    assert names(["90a", "sm_80", "8.6+PTX", "9.0a", "compute_86", "90-virtual"]) == expected
    assert names("90a;sm_80, 8.6+PTX 9.0a\ncompute_86  90-virtual") == expected


def test_a1_numbers_from_a_sconstruct() -> None:
    assert names([90, 8.6, "compute_80"]) == ["sm_90", "sm_86", "compute_80"]  # type: ignore[list-item]
    assert names(90) == ["sm_90"]  # type: ignore[arg-type]


def test_a1_all_major_is_the_least_of_each_generation_and_the_last_ones_ptx() -> None:
    assert names("all-major", general=[75, 80, 86, 90, 100, 103, 120, 121]) == [
        "sm_75",
        "sm_80",
        "sm_90",
        "sm_100",
        "sm_120",
        "compute_120",
    ]
    assert names("all", general=[80, 86]) == ["sm_80", "sm_86", "compute_86"]
    assert names("all-major 80", general=[90, 80]) == ["sm_80", "sm_90", "compute_90"]
    with pytest.raises(UsageError, match="none in common"):
        parse("all", general=[])


def test_all_never_means_code_for_one_gpu_alone() -> None:
    assert all(target.suffix == "" for target in parse("all"))
    assert 101 not in GENERAL  # dropped: it goes on as 110
    assert 110 in GENERAL


@pytest.mark.parametrize(
    "token",
    ["sm_91", "foo", "90b", "gfx90a", "8.66", "-1", "sm_", "90-", "lto_90", "sm_80f", "sm_75a", "compute_86a", "+PTX", "\uff19\uff10"],
)
def test_a3_an_error_quotes_the_token_and_names_what_is_known(token: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(["sm_80", token])
    assert f'unknown architecture "{token}"' in str(caught.value)
    assert "sm_90a" in str(caught.value)


def test_a3_an_error_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="is sm_90 meant"):
        parse("sm_91")


def test_contradictions_and_nothing_at_all() -> None:
    with pytest.raises(UsageError, match='"sm_90-virtual" says both'):
        parse("sm_90-virtual")
    with pytest.raises(UsageError, match='"compute_90-real" says both'):
        parse("compute_90-real")
    with pytest.raises(UsageError, match="asks for a GPU at build time"):
        parse("native")
    for empty in ("", [], " ; ", ["", " "]):
        with pytest.raises(UsageError, match="no architecture is given"):
            parse(empty)


def test_what_a_target_tells() -> None:
    real, virtual = parse("sm_100a compute_90")
    assert (real.number, real.suffix, real.cpu, real.real) == (100, "a", "sm_100a", True)
    assert (virtual.number, virtual.suffix, virtual.cpu, virtual.real) == (90, "", "sm_90", False)
    assert str(real) == "sm_100a"
    with pytest.raises(UsageError, match="no architecture"):
        _ = Target(name="sm_x", real=True).number


@given(name=st.sampled_from(KNOWN), dotted=st.booleans(), kind=st.sampled_from(["", "-real", "-virtual", "+PTX"]))
def test_spellings_of_one_architecture_agree(name: str, dotted: bool, kind: str) -> None:  # noqa: FBT001 - hypothesis gives it
    digits, suffix = name.rstrip("af"), name[len(name.rstrip("af")) :]
    spelled = f"{digits[:-1]}.{digits[-1]}{suffix}" if dotted else name
    expected = {"": [f"sm_{name}"], "-real": [f"sm_{name}"], "-virtual": [f"compute_{name}"], "+PTX": [f"sm_{name}", f"compute_{name}"]}
    assert names(spelled + kind) == expected[kind]
    assert parse(parse(spelled)[0].name) == parse(spelled)


@given(st.text(max_size=12))
def test_any_text_gives_targets_or_a_usage_error(text: str) -> None:
    try:
        found = parse(text)
    except UsageError:
        return
    assert all(target.cpu.removeprefix("sm_") in KNOWN for target in found)


NAMED = ("sm_80", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_103", "sm_103f", "sm_120f", "sm_121a")


@pytest.mark.parametrize("named", NAMED)
def test_ptx_is_taken_for_what_the_assembler_takes_it_for(named: str, tmp_path: Path, toolchain: Toolchain) -> None:
    assert toolchain.ptxas
    (tmp_path / "k.ptx").write_text(f".version 9.0\n.target {named}\n.address_size 64\n.visible .entry k() {{ ret; }}\n")
    for wanted in (*NAMED, "sm_89", "sm_120", "sm_110"):
        done = subprocess.run(
            [toolchain.ptxas.path, f"-arch={wanted}", "k.ptx", "-o", "k.cubin"], cwd=tmp_path, capture_output=True, check=False
        )
        assert assembles_for(named, parse(wanted)[0]) == (done.returncode == 0), wanted


def test_ptx_for_gpus_to_come_is_plain() -> None:
    assert assembles_for("sm_80", parse("compute_90")[0])
    assert not assembles_for("sm_100f", parse("compute_103")[0])
    assert assembles_for("sm_100f", parse("compute_103f")[0])
    assert assembles_for("sm_90a", parse("compute_90a")[0])
    assert not assembles_for("compute_80", parse("sm_90")[0])
