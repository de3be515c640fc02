"""Contracts with SCons: each behaviour that _internals.py leans on, shown with the real SCons and jobs that only write text."""

from __future__ import annotations

import json
import os
import textwrap
from typing import TYPE_CHECKING

import forks
import pytest
from project import Result, default_environ

if TYPE_CHECKING:
    from pathlib import Path

JOBS = """
import json, os, sys
from pathlib import Path
import SCons.Errors
from scons_gpu.scons import _internals

env = Environment(tools=[])
_internals.install()
artefact, compiled, image = map(_internals.builder, (_internals.Artefact, _internals.Compiled, _internals.Image))
unit = _internals.unit

def log(text):
    with open("log", "a") as file:
        file.write(text + "\\n")

class Job:
    stage, expanded, error, weight, check = "step", False, None, 0.0, None
    def __init__(self, path, *, signature="", make=None, units=None, nothing=None, deps=None, weight=0.0, side=()):
        self.path, self.signature, self.make, self.get, self.nothing = Path(path), signature, make, units, nothing
        self.deps, self.weight, self.side = deps, weight, side
    def line(self, env): return f"make {self.path}"
    def makes_nothing(self): return bool(self.nothing and self.nothing())
    def sidecars(self): return [Path(path) for path in self.side]
    def is_whole(self): return all(path.exists() for path in self.sidecars())
    def dependencies(self): return self.deps() if self.deps else ()
    def units(self): return self.get()
    def checks(self): return self.check() if self.check else []
    def run(self, node):
        if self.error or self.path.name == "bad.o": raise SCons.Errors.BuildError(node=node, errstr=str(self.error))
        log(str(self.path))
        text = self.make() if self.make else "x"
        if text is not None:
            self.path.write_text(text)
        for path in self.side: Path(path).write_text("")
"""

PLANNED = """
def units():
    nodes = []
    for name in Path("plan").read_text().split():
        if not Path(name + ".o").exists():
            nodes.append(unit(env, name + ".o", [], Job(name + ".o", make=lambda name=name: name, weight=len(name))))
    return nodes

def link():
    return " ".join(Path(name + ".o").read_text() for name in Path("plan").read_text().split())

plan = artefact(env, "plan", [env.File("source")], Job("plan", make=lambda: Path("source").read_text().split(";")[0]))
job = Job("image", make=link, units=units, nothing=lambda: not Path("plan").read_text().strip())
if ARGUMENTS.get("nothing"): pass
made = image(env, "image", [plan], job)
env.Default(made)
"""


class Tree:
    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    def read(self, name: str) -> str:
        return (self.root / name).read_text()

    def run(self, *args: str, timeout: float = 60) -> Result:
        return Result(*forks.scons(["-Q", *args], folder=self.root, environ=default_environ(), timeout=timeout))

    def made(self, *args: str) -> list[str]:
        """What was made by one run that must succeed."""
        (self.root / "log").unlink(missing_ok=True)
        done = self.run(*args)
        assert done.returncode == 0, done.stdout + done.stderr
        return self.read("log").split() if (self.root / "log").exists() else []


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def planned(tree: Tree, source: str, more: str = "") -> Tree:
    tree.write("SConstruct", JOBS + PLANNED + textwrap.dedent(more))
    tree.write("source", source)
    return tree


def test_units_are_made_for_a_plan_that_is_made_in_the_same_run(tree: Tree) -> None:
    assert planned(tree, "a b").made("-j2")[0] == "plan"
    assert tree.read("image") == "a b"
    assert tree.made() == []


@pytest.mark.parametrize("flags", [(), ("--implicit-cache",), ("--implicit-cache", "--implicit-deps-unchanged"), ("-j4",)])
def test_a_changed_plan_brings_its_units_and_no_others(tree: Tree, flags: tuple[str, ...]) -> None:
    planned(tree, "a b").made(*flags)
    tree.write("source", "a c")
    assert tree.made(*flags) == ["plan", "c.o", "image"]
    assert tree.read("image") == "a c"
    assert tree.made(*flags) == []


def test_a_plan_that_is_only_up_to_date_still_decides_the_units(tree: Tree) -> None:
    planned(tree, "a b").made()
    (tree.root / "image").unlink()
    (tree.root / "b.o").unlink()
    assert tree.made() == ["b.o", "image"]


def test_a_plan_made_anew_with_the_same_content_stops_the_build(tree: Tree) -> None:
    planned(tree, "a b;1").made()
    tree.write("source", "a b;2")
    assert tree.made() == ["plan"]


def test_folding_a_current_image_asks_for_no_unit(tree: Tree) -> None:
    planned(tree, "a b").made()
    (tree.root / "a.o").unlink()
    assert tree.made() == []
    assert tree.run("-q").returncode == 0


def test_a_failed_unit_keeps_the_image_from_being_made(tree: Tree) -> None:
    planned(tree, "a bad cc")
    done = tree.run("-k")
    assert done.returncode != 0
    assert (tree.root / "a.o").exists()
    assert (tree.root / "cc.o").exists()
    assert not (tree.root / "image").exists()
    assert "image" not in tree.read("log")  # not even tried
    assert "scons: *** [bad.o] None" in done.stderr


SHARED_FAILURE = """
bad = artefact(env, "bad.o", [env.File("source")], Job("bad.o"))
first = artefact(env, "first", [bad], Job("first"))
waiting = bad
for name in ("second", "third", "fourth"):
    waiting = artefact(env, name, [waiting], Job(name))
fine = artefact(env, "fine", [env.File("source")], Job("fine"))
env.Default(first, waiting, fine)
"""


@pytest.mark.parametrize("jobs", ["-j1", "-j4"])
def test_a_failure_that_two_targets_share_is_no_dependency_cycle(tree: Tree, jobs: str) -> None:
    tree.write("SConstruct", JOBS + SHARED_FAILURE)
    tree.write("source", "x")
    done = tree.run("-k", jobs)
    assert done.returncode == 2
    assert "cycle" not in done.stdout + done.stderr
    assert tree.read("log").split() == ["fine"]


def test_a_dependency_cycle_is_still_told(tree: Tree) -> None:
    loop = 'env.Depends(fine, artefact(env, "loop", [fine], Job("loop")))\n'
    tree.write("SConstruct", JOBS + SHARED_FAILURE + loop)
    tree.write("source", "x")
    assert "loop -> fine -> loop" in tree.run("-k", "loop", "first").stderr


CHECKED = """
job.check = lambda: [unit(env, name, [], Job(name)) for name in Path("checks").read_text().split()]
"""


def test_checks_of_a_current_image_are_made_and_leave_it_alone(tree: Tree) -> None:
    tree.write("checks", "x y")
    planned(tree, "a b", CHECKED).made()
    assert sorted(tree.made("-j2")) == ["x", "y"]
    assert sorted(tree.made("-j2")) == ["x", "y"], "they are made each time they are asked for"
    tree.write("checks", "")
    assert tree.made() == []


def test_a_check_that_fails_fails_the_build_and_not_the_image_on_disk(tree: Tree) -> None:
    tree.write("checks", "bad.o y")
    planned(tree, "a b", CHECKED).made()
    result = tree.run("-k")
    assert result.returncode == 2, result.stdout + result.stderr
    assert "dependency cycle" not in result.stdout + result.stderr
    assert tree.read("image") == "a b"
    tree.write("checks", "")
    assert tree.made() == []


def test_an_error_on_the_way_to_checks_is_raised_by_the_image(tree: Tree) -> None:
    tree.write("checks", "")
    planned(tree, "a b", CHECKED).made()
    (tree.root / "checks").unlink()
    result = tree.run()
    assert result.returncode == 2
    assert "No such file or directory: 'checks'" in result.stdout + result.stderr


def test_units_leave_no_record_in_sconsign(tree: Tree) -> None:
    planned(tree, "a b").made()
    data = (tree.root / ".sconsign.dblite").read_bytes()
    assert b"image" in data
    assert b"a.o" not in data


def test_a_target_that_is_not_the_recorded_one_is_made_again(tree: Tree) -> None:
    planned(tree, "a b").made()
    tree.write("plan", "a c")  # as a killed build of an edit that was taken back leaves it
    assert tree.made() == ["plan"]
    assert tree.read("plan") == "a b"
    tree.write("image", "half")
    assert tree.made() == ["image"]


def test_a_target_with_a_new_time_and_the_recorded_content_is_current(tree: Tree) -> None:
    planned(tree, "a b").made()
    os.utime(tree.root / "image", (1, 1))
    assert tree.made() == []


def test_an_image_that_is_rightly_not_made_is_current(tree: Tree) -> None:
    more = 'job.make = lambda: link() if Path("plan").read_text().strip() else Path("image").unlink(missing_ok=True)\n'
    planned(tree, " ;", more)
    assert tree.made() == ["plan", "image"]
    assert tree.made() == []
    assert tree.run("-q").returncode == 0
    tree.write("source", "a")
    assert tree.made() == ["plan", "a.o", "image"]
    tree.write("source", " ;")
    assert tree.made() == ["plan", "image"]
    assert not (tree.root / "image").exists()
    assert tree.made() == []


def test_a_sidecar_that_is_gone_is_made_again(tree: Tree) -> None:
    planned(tree, "a", 'job.side = ["side"]\n').made()
    assert tree.made() == []
    (tree.root / "side").unlink()
    assert tree.made() == ["image"]


def test_a_node_named_before_as_a_plain_file_becomes_ours(tree: Tree) -> None:
    tree.write("SConstruct", JOBS + 'env.Alias("all", env.File("image"))\n' + PLANNED)
    tree.write("source", "a")
    assert tree.made("all") == ["plan", "a.o", "image"]


COMPILED = """
def read():
    path = Path("out.d")
    return path.read_text().split() if path.exists() else ()
def compile():
    Path("out.d").write_text(" ".join(Path("source").read_text().split()))
    return "".join(Path(name).read_text() for name in read() if Path(name).exists())
out = compiled(env, "out", [env.File("source")], Job("out", make=compile, deps=read))
"""


def test_headers_are_known_after_the_first_build(tree: Tree) -> None:
    tree.write("SConstruct", JOBS + COMPILED)
    tree.write("source", "one.h two.h")
    tree.write("one.h", "1")
    tree.write("two.h", "2")
    assert tree.made() == ["out"]
    assert tree.made() == []
    assert tree.run("-q").returncode == 0
    tree.write("two.h", "3")
    assert tree.made() == ["out"]
    assert tree.made() == []


def test_a_decider_of_the_users_decides_for_headers_too(tree: Tree) -> None:
    tree.write(
        "SConstruct",
        JOBS + COMPILED + "if 'new' in ARGUMENTS: env.Decider(lambda file, target, then, repository=None: str(file) == ARGUMENTS['new'])\n",
    )
    tree.write("source", "one.h two.h")
    tree.write("one.h", "1")
    tree.write("two.h", "2")
    assert tree.made() == ["out"]
    assert tree.made("new=one.h") == ["out"]  # whatever its content says
    tree.write("two.h", "3")
    assert tree.made("new=three.h") == []


@pytest.mark.parametrize("first", ["ours", "the user's"])
def test_two_builders_of_one_file_are_told(tree: Tree, first: str) -> None:
    command = 'env.Command("out", "other", Copy("$TARGET", "$SOURCE"))\n'
    tree.write("SConstruct", JOBS + (COMPILED + command if first == "ours" else command + COMPILED))
    for name in ("source", "other"):
        tree.write(name, "")
    done = tree.run()
    assert done.returncode == 2
    assert "Multiple ways to build the same target were specified for: out" in done.stderr


def test_a_header_that_went_makes_a_build_and_no_error(tree: Tree) -> None:
    tree.write("SConstruct", JOBS + COMPILED)
    tree.write("source", "one.h two.h")
    tree.write("one.h", "1")
    tree.write("two.h", "2")
    tree.made()
    (tree.root / "two.h").unlink()
    tree.write("source", "one.h")
    assert tree.made() == ["out"]
    assert tree.made() == []


@pytest.mark.parametrize("flags", [(), ("--implicit-cache",)])
def test_a_header_that_another_builder_makes_is_made_first(tree: Tree, flags: tuple[str, ...]) -> None:
    generated = 'env.Command("gen.h", "seed", "cp $SOURCE $TARGET")\n'
    code = COMPILED.replace('" ".join(Path("source").read_text().split())', '"gen.h"')
    tree.write("SConstruct", JOBS.replace("tools=[]", 'tools=[], CPPPATH=["."]') + generated + code)
    tree.write("source", '#include "gen.h"\n')
    tree.write("seed", "1")
    assert tree.made("-j4", "out", *flags) == ["out"]
    assert tree.read("out") == "1"
    assert tree.made("out", *flags) == []
    tree.write("seed", "2")
    assert tree.made("out", *flags) == ["out"]
    assert tree.read("out") == "2"


def test_what_a_file_of_ours_includes_is_known_after_the_first_build(tree: Tree) -> None:
    code = """
import SCons.Scanner.C
def compile(target, source, env): log(str(target[0])); Path(str(target[0])).write_text("x")
gen = artefact(env, "gen.c", [env.File("source")], Job("gen.c", make=Path("source").read_text))
env.Command("gen.o", gen, Action(compile, "compile"), CPPPATH=["."], source_scanner=SCons.Scanner.C.CScanner())
"""
    tree.write("SConstruct", JOBS + code)
    tree.write("source", '#include "one.h"\n')
    tree.write("one.h", "1")
    assert tree.made() == ["gen.c", "gen.o"]
    assert tree.made() == []
    tree.write("one.h", "2")
    assert tree.made() == ["gen.o"]


def test_the_longest_unit_goes_first_over_all_images(tree: Tree) -> None:
    second = """
    other = image(env, "other", [plan], Job("other", units=lambda: [unit(env, "x" * 9 + ".o", [], Job("x" * 9 + ".o", weight=9.0))]))
    env.Default(other)
    """
    made = planned(tree, "a ccccc bbb", second).made()
    units = [name for name in made if name.endswith(".o")]
    assert sorted(units[:-1], key=len, reverse=True) == units[:-1]


def test_q_and_n_build_nothing(tree: Tree) -> None:
    planned(tree, "a b")
    assert tree.run("-q").returncode == 1
    assert tree.run("-n").returncode == 0
    assert not (tree.root / "plan").exists()
    tree.made()
    (tree.root / "image").unlink()
    (tree.root / "a.o").unlink()
    assert tree.run("-q").returncode == 1
    shown = tree.run("-n").stdout
    assert "make a.o" in shown
    assert not (tree.root / "a.o").exists()


def test_clean_takes_what_was_declared_and_leaves_units(tree: Tree) -> None:
    planned(tree, "a b").made()
    assert tree.run("-c").returncode == 0
    assert not (tree.root / "image").exists()
    assert not (tree.root / "plan").exists()
    assert (tree.root / "a.o").exists()


TOLD = """
from scons_gpu.store import because

class Told(Job):
    def run(self, node):
        with open("told", "a") as file:
            file.write(json.dumps(because.to_json(self.because)) + "\\n")
        super().run(node)

sources = [env.File(name) for name in ARGUMENTS.get("sources", "one,two").split(",")]
job = Told("out", signature=f"a = 1\\nb = {ARGUMENTS.get('b', 2)}", deps=lambda: Path("deps").read_text().split(), side=["beside"])
env.Command("made.h", "made.in", Copy("$TARGET", "$SOURCE"))
env.Default(compiled(env, "out", sources, job))
"""


def test_a_step_is_told_why_it_runs(tree: Tree) -> None:
    tree.write("SConstruct", JOBS + TOLD)
    for name in ("one", "two", "x.h", "y.h", "made.in"):
        tree.write(name, name)
    tree.write("deps", "x.h made.h")

    def told(*args: str) -> list[dict[str, object]]:
        (tree.root / "told").unlink(missing_ok=True)
        tree.made(*args)
        lines = tree.read("told").splitlines() if (tree.root / "told").exists() else []
        return [json.loads(line) for line in lines]

    def path(name: str) -> str:
        return str(tree.root / name)

    assert told() == [{"first": True}]
    assert told() == []
    tree.write("one", "other")
    tree.write("x.h", "other")
    tree.write("made.in", "other")
    assert told() == [
        {"inputs": [[path("one"), "changed", "source"], [path("x.h"), "changed", "read"], [path("made.h"), "changed", "made"]]}
    ]
    assert told("b=3") == [{"key": {"b": ["2", "3"]}}]
    (tree.root / "out").unlink()
    tree.write("deps", "y.h made.h")
    assert told() == [
        {"missing": True, "inputs": [[path("y.h"), "added", "read"], [path("x.h"), "removed", "source"]], "key": {"b": ["3", "2"]}}
    ]
    tree.write("out", "altered")
    assert told() == [{"altered": True}]
    (tree.root / "beside").unlink()
    assert told() == [{"altered": True}]
    assert told("sources=two,one") == [{"order": True}]
    assert told("sources=two") == [{"inputs": [[path("one"), "removed", "source"]]}]


LATE = """
late = _internals.builder(_internals.Late)
asked = []

def needs():
    program.scan()
    asked.append([str(node) for node in program.implicit])
    for name in (part for node in program.implicit for part in node.get_text_contents().split()):
        if name not in made:
            made[name] = artefact(env, name, [env.File(name + ".source")], Job(name, make=lambda name=name: name))
    return list(made.values())

made = {}
program = env.Command("program", "main", Copy("$TARGET", "$SOURCE"), target_scanner=Scanner(lambda node, env, path: [env.File(ARGUMENTS.get("library", "first"))]))[0]
job = Job("object", make=lambda: " ".join(made))
job.needs, job.besides = needs, ()
program.add_dependency([late(env, "object", [], job)])
artefact(env, "first", [env.File("first.source")], Job("first", make=lambda: Path("first.source").read_text()))
artefact(env, "second", [env.File("second.source")], Job("second", make=lambda: "b c"))
"""


@pytest.mark.parametrize("flags", [(), ("--implicit-cache",), ("-j4",)])
def test_a_late_node_is_asked_when_its_program_is_known_and_its_parts_are_built_like_others(tree: Tree, flags: tuple[str, ...]) -> None:
    tree.write("SConstruct", JOBS + LATE.replace("node.get_text_contents()", '{"first": "a b", "second": "b c"}[str(node)]'))
    for name in ("main", "a.source", "b.source", "c.source", "first.source", "second.source"):
        tree.write(name, "1")
    assert sorted(tree.made("program", *flags)) == ["a", "b", "first", "object"]
    assert tree.made("program", *flags) == []
    tree.write("b.source", "2")
    assert tree.made("program", *flags) == ["b"]
    assert tree.made("object", "library=second", *flags) == ["c", "object"], "without its program being asked for"
    assert tree.read("object") == "b c"
    assert tree.run("-q", "object", "library=second").returncode == 0
    tree.run("-c", "program", "library=second")
    assert not (tree.root / "object").exists()
    assert not (tree.root / "c").exists()
    assert (tree.root / "a").exists()


def test_what_a_late_node_cannot_say_fails_it_alone(tree: Tree) -> None:
    tree.write("SConstruct", JOBS + LATE + "job.needs = lambda: 1 / 0\n")
    for name in ("main", "first.source", "second.source"):
        tree.write(name, "1")
    done = tree.run("-k", "-j2", "program", "second")
    assert done.returncode == 2
    assert "[object] division by zero" in done.stdout + done.stderr
    assert (tree.root / "second").exists()
    assert not (tree.root / "program").exists()


def test_explain_shows_what_changed_in_an_action(tree: Tree) -> None:
    planned(tree, "a", 'job.signature = "level = " + ARGUMENTS.get("level", "3")\n').made()
    done = tree.run("--debug=explain", "level=2")
    assert "level = 3" in done.stdout
    assert "level = 2" in done.stdout


@pytest.mark.parametrize("jobs", ["-j1", "-j4"])
@pytest.mark.parametrize(
    "fault",
    [
        "job.get = lambda: 1 / 0",
        "_internals.weight = lambda node: 1 / 0",
        "_internals.Batch._keep_units_back = lambda self: 1 / 0",
        "job.makes_nothing = lambda: 1 / 0",
        "job.is_whole = lambda: 1 / 0",
        "plan.attributes.gpu.makes_nothing = lambda: 1 / 0",
        "_internals.Artefact.is_recorded = lambda self: 1 / 0",
        "_internals.Image._decided = lambda self: 1 / 0",
        "_internals.reason = lambda node: 1 / 0",
        "_internals.Artefact.get_timestamp = lambda self: 1 / 0",
        "_internals.Artefact.get_size = lambda self: 1 / 0",
    ],
)
def test_t11_a_hook_that_raises_does_not_hang_the_build(tree: Tree, fault: str, jobs: str) -> None:
    planned(tree, "a b cc", fault + "\n")
    tree.run(jobs)
    tree.run(jobs)  # a build that has something recorded meets other hooks


@pytest.mark.parametrize("fault", ["_read", "_is_current", "_is_as_recorded"])
def test_t11_a_hook_of_compiled_files_that_raises_does_not_hang_the_build(tree: Tree, fault: str) -> None:
    tree.write("SConstruct", JOBS + COMPILED + f"_internals.Compiled.{fault} = lambda self: 1 / 0\n")
    tree.write("source", "one.h")
    tree.write("one.h", "1")
    tree.run("-j4")
    tree.run("-j4")


def test_loading_twice_is_harmless(tree: Tree) -> None:
    planned(tree, "a", "_internals.install(); _internals.install()\n")
    assert tree.made() == ["plan", "a.o", "image"]


TAKES = """
env = Environment(tools=["gcc", "g++", "ar", "link"], NAME="outer")
def declare(env, target, source, shared):
    made = _internals.overrides(env)
    job = Job(str(target), signature=f"{shared} {made.get('NAME')}", make=lambda: f"{type(target).__name__} {shared} {made.get('NAME')}")
    if not hasattr(target.attributes, "gpu"): target.attributes.gpu = job
_internals.takes(env, ".mine", declare)
_internals.takes(env, ".mine", declare)
"""


def test_object_builders_take_sources_of_another_suffix(tree: Tree) -> None:
    more = 'objects = [env.Object("a.mine"), env.SharedObject("a.mine", NAME="inner"), env.StaticLibrary("b", ["b.mine"])]\n'
    tree.write("SConstruct", JOBS + TAKES + more)
    tree.write("a.mine", "1")
    tree.write("b.mine", "1")
    assert sorted(tree.made()) == ["a.o", "a.os", "b.o"]
    assert [tree.read(name) for name in ("a.o", "a.os")] == ["Compiled False None", "Compiled True inner"]
    assert (tree.root / "libb.a").exists()
    assert tree.made() == []
    tree.write("b.mine", "2")
    assert tree.made() == ["b.o"]


def test_a_shared_library_takes_shared_objects_alone(tree: Tree) -> None:
    tree.write("SConstruct", JOBS + TAKES + 'env.SharedLibrary("a", env.Object("a.mine"))\n')
    tree.write("a.mine", "1")
    done = tree.run()
    assert done.returncode == 2
    assert "is static and is not compatible with shared target" in done.stderr


def test_overrides_of_inner_calls_win(tree: Tree) -> None:
    tree.write(
        "SConstruct",
        JOBS + 'made = env.Override({"A": 1, "B": 1}).Override({"B": 2})\nassert _internals.overrides(made) == {"A": 1, "B": 2}\n'
        "assert _internals.overrides(env) == {}\n",
    )
    assert tree.run("-q").returncode == 0


@pytest.mark.parametrize("first", [True, False])
def test_an_action_of_the_users_for_the_suffix_stays(tree: Tree, first: bool) -> None:  # noqa: FBT001 - a parameter of the test
    theirs = """
import SCons.Tool
for each in SCons.Tool.createObjBuilders(env):
    each.add_action(".mine", "cp $SOURCE $TARGET")
"""
    head = TAKES.replace("_internals.takes", theirs + "_internals.takes", 1) if first else TAKES + theirs
    tree.write("SConstruct", JOBS + head + 'env.Object("a.mine")\n')
    tree.write("a.mine", "1")
    assert tree.made() == []
    assert tree.read("a.o") == "1"


def test_commands_are_entered_into_scons_own_database(tree: Tree) -> None:
    more = """
env = Environment(tools=["gcc", "link"])
_internals.enter_command(env, env.File("a.o"), env.File("a.mine"), lambda: 1 / 0)
env.Tool("compilation_db")
_internals.enter_command(env, env.File("b.o"), env.File("b.mine"), lambda: "compile b.mine")
env.CompilationDatabase()
"""
    tree.write("SConstruct", JOBS + more)
    assert tree.run().returncode == 0
    assert json.loads(tree.read("compile_commands.json")) == [
        {"command": "compile b.mine", "directory": str(tree.root), "file": "b.mine", "output": "b.o"}
    ]
