"""A run of SCons that is forked is one that Python starts, but for the time that it takes."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import forks
import pytest
from project import default_environ

if TYPE_CHECKING:
    from project import Project

TELLS = """\
import atexit, json, os, sys
import beside
said = {"folder": os.getcwd(), "path": sys.path, "argv": sys.argv, "main": __import__("__main__").__file__, "environ": dict(os.environ)}
said["given"] = dict(ARGUMENTS)
print("TOLD", json.dumps(said), file=sys.stderr)
print("SEED", hash("seed"))
atexit.register(lambda: print("at the end"))
Exit(int(ARGUMENTS["code"]))
"""


def test_a_fork_is_as_a_run_that_python_starts(project: Project) -> None:
    project.write("SConstruct", "Environment(tools=[])\n" + TELLS)
    project.write("beside.py", "")
    said = []
    for project.forked in (True, False):
        result = project.run("code=7")
        assert (result.returncode, result.lines[-1]) == (7, "at the end")
        said.append(json.loads(result.stderr.partition("TOLD ")[2].partition("\n")[0]))
    assert said[0] == said[1]


def test_t10_one_run_after_another_has_another_hash_seed(project: Project) -> None:
    project.write("SConstruct", "Environment(tools=[])\n" + TELLS)
    project.write("beside.py", "")
    seeds = [next(line for line in project.run("code=0").lines if line.startswith("SEED")) for _ in range(4)]
    assert all(one != other for one, other in itertools.pairwise(seeds))


def test_a_run_that_takes_too_long_is_ended(project: Project) -> None:
    project.write("SConstruct", "Environment(tools=[])\nimport time\ntime.sleep(60)\n")
    with pytest.raises(TimeoutError):
        forks.scons([], folder=project.root, environ=default_environ(), timeout=0.5)
