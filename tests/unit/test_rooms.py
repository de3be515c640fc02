"""Rooms keep to their order, and loading the tool loads nothing that only some builds need."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import scons_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from project import Project

PACKAGE = Path(scons_gpu.__file__).parent
ROOMS = ("tune", "source", "split", "plan", "lower", "assemble", "link", "host", "loading", "workers", "inspect")
"""In the order of the pipeline, each may import those before it. The choice of candidates knows none of them, and all may name one."""
SERVING = ("errors", "store", "toolchain")
"""Whoever wants may import these; they import one another and nobody else."""
WIRING = ("scons", "cli", "tools")
PUBLIC = {
    "SCons.Script.ARGUMENTS",
    "SCons.Script.COMMAND_LINE_TARGETS",
    "SCons.Script.GetOption",
    "SCons.Node.NodeList",
    "SCons.Defaults.processDefines",
}
"""What SCons documents, or gives to those who extend it."""
HEAVY = {"llvmlite", "click", "rich", "elftools", "pydemumble", "xxhash", "numpy", "cuda", "zstandard", "jsonschema"} | {
    *("bokeh", "itables", "rustworkx", "graphviz"),
}
MODULES = sorted(path.relative_to(PACKAGE.parent).with_suffix("").as_posix().replace("/", ".") for path in PACKAGE.rglob("*.py"))


@cache
def imports(module: str) -> frozenset[str]:
    """Everything that a module imports anywhere, for types too, as full names."""
    text = (PACKAGE.parent / (module.replace(".", "/") + ".py")).read_text()
    return frozenset(_imports(ast.parse(text)))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are spelled in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(name: str) -> str:
    """`split` of `scons_gpu.split.reader`; nothing of the package itself or of another one."""
    parts = name.split(".")
    return parts[1] if parts[0] == "scons_gpu" and len(parts) > 1 and parts[1] in (*ROOMS, *SERVING, *WIRING) else ""


def others(module: str) -> set[str]:
    return {room(name) for name in imports(module)} - {"", room(module)}


def test_every_module_is_in_a_known_room() -> None:
    assert {room(module) for module in MODULES} == {"", *ROOMS, *SERVING, *WIRING}
    assert [module for module in MODULES if not room(module)] == ["scons_gpu.__init__"]


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_imports_no_later_one(name: str) -> None:
    allowed = {*SERVING, *ROOMS[: ROOMS.index(name)]}
    assert {module: others(module) - allowed for module in MODULES if room(module) == name and others(module) - allowed} == {}


def test_what_serves_all_imports_no_room() -> None:
    assert {module: others(module) for module in MODULES if room(module) in SERVING and others(module) - set(SERVING)} == {}
    assert others("scons_gpu.errors") == set()


def test_graph_and_commands_do_not_know_one_another() -> None:
    assert [module for module in MODULES if room(module) == "scons" and {"cli", "tools"} & others(module)] == []
    assert [module for module in MODULES if room(module) == "cli" and {"scons", "tools"} & others(module)] == []


def test_only_the_graph_imports_scons() -> None:
    users = {module for module in MODULES if any(name.partition(".")[0] == "SCons" for name in imports(module))}
    assert {room(module) for module in users} == {"scons"}
    private = {
        module: names
        for module in users - {"scons_gpu.scons._internals"}
        if (names := {name for name in imports(module) if name.startswith("SCons")} - {"SCons.Errors"}) and not names <= PUBLIC
    }
    assert private == {}, "what is private to SCons is leant on in _internals.py alone"


def test_r1_llvm_is_imported_by_name_where_it_runs_and_nowhere_else() -> None:
    users = {module for module in MODULES if any(name.partition(".")[0] == "llvmlite" for name in imports(module))}
    assert users == {
        "scons_gpu.source.ir",
        "scons_gpu.split.parse",
        "scons_gpu.lower.libdevice",
        "scons_gpu.lower.linked",
        "scons_gpu.lower.llvm",
        "scons_gpu.inspect.undivided",
    }


def python(code: str, *names: str) -> list[str]:
    """What `code` prints, run in a Python of its own with `names` as arguments."""
    setup = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
    done = subprocess.run([sys.executable, "-c", setup + code, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


LOADED = "print(*sorted({name.partition('.')[0] for name in sys.modules}))"


def test_loading_the_tool_is_cheap() -> None:
    loaded = set(python(f"import scons_gpu.tools.gpu\n{LOADED}"))
    assert "scons_gpu" in loaded
    assert loaded & {*HEAVY, "SCons"} == set()


def test_help_loads_neither_llvm_nor_tables() -> None:
    loaded = set(python(f"import scons_gpu.cli\n{LOADED}"))
    assert loaded & (HEAVY - {"click"} | {"SCons"}) == set()


def test_the_referee_shares_nothing_with_the_build() -> None:
    """`compare` must find the mistakes of what builds, so it runs none of that."""
    code = "import scons_gpu.inspect.compare\nprint(*(name for name in sys.modules if name.startswith('scons_gpu.')))"
    assert {room(name) for name in python(code)} == {"errors", "inspect"}


# What only Linux has, or an extra brings; lowering in this very process, and being a worker, is for those who have all of it.
ABSENT = ("SCons", "llvmlite", "fcntl", "resource", "click", "rich")
WORKERS_ONLY = {"scons_gpu.lower.linked", "scons_gpu.lower.llvm", "scons_gpu.lower.nvvm", "scons_gpu.workers.worker"}


def test_the_pure_rooms_import_where_nothing_builds() -> None:
    pure = [name.removesuffix(".__init__") for name in MODULES if room(name) in ROOMS[:-1] and name not in WORKERS_ONLY]
    code = f"sys.modules.update(dict.fromkeys({ABSENT!r}))\nfor name in sys.argv[1:]: __import__(name); print(name)"
    assert python(code, *pure) == pure


def test_r4_a_build_with_nothing_to_do_loads_nothing_heavy(project: Project) -> None:
    project.write("k.ll", 'target triple = "nvptx64-nvidia-cuda"\ndefine ptx_kernel void @k() {\n  ret void\n}\n')
    project.write(
        "SConstruct",
        'env.GpuProgram("build/net", env.GpuModule("net", ["k.ll"]))\n'
        "import atexit, sys\n"
        "atexit.register(lambda: open('loaded', 'w').write('\\n'.join(sys.modules)))\n",
    )
    project.build()
    project.build()
    loaded = {name.partition(".")[0] for name in project.read("loaded").split()}
    assert "scons_gpu" in loaded
    assert loaded & {"llvmlite", "click", "rich", "elftools", "pydemumble"} == set()
