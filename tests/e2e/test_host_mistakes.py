"""Programs that do not link, and what they are told: the C++ linker's words, once, or ours."""

from __future__ import annotations

import pytest
from host_parts import HEAD, make_runtime, said
from project import Project

SOURCES = {
    "undefined.cu": "__global__ void k(int);\nint main() { k<<<1, 1>>>(3); }\n",
    "one.cu": "__global__ void k(int* p) { *p = 1; }\nint main() { k<<<1, 1>>>(nullptr); }\n",
    "two.cu": "__global__ void k(int* p) { *p = 2; }\nvoid two() { k<<<1, 1>>>(nullptr); }\n",
    "shared.cu": "__global__ void s(int* p) { *p = 3; }\nvoid shared() { s<<<1, 1>>>(nullptr); }\n",
    "main.cpp": "void left();\nvoid right();\nint main() { left(); right(); }\n",
    "left.cpp": "void shared();\nvoid left() { shared(); }\n",
    "right.cpp": "void shared();\nvoid right() { shared(); }\n",
}
SCONSTRUCT = (
    HEAD
    + """
env.Replace(GPU_ARCHS="sm_90", LIBS=["cudart"])
env.Program("undefined", ["undefined.cu"])
env.Program("twice", ["one.cu", "two.cu"])
env.Program("nolinker", ["one.o"], CXX="no-such-g++")
shared = env.Object("shared.cu")
libraries = [env.StaticLibrary(side, [f"{side}.cpp", shared]) for side in ("left", "right")]
env.Program("libraries", ["main.cpp"], LIBS=[*libraries, "cudart"])
plain = env.Clone()
del plain["CXX"]
plain.Program("plain", ["one.o"])
"""
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, str]:
    """All of it built, as far as it can be, with what was said."""
    project = Project(tmp_path_factory.mktemp("mistakes") / "project")
    make_runtime(project)
    for name, text in SOURCES.items():
        project.write(name, text)
    project.write("SConstruct", SCONSTRUCT)
    return project, project.fail("-k").output


@pytest.mark.parametrize(
    "words",
    [
        "undefined reference to `__device_stub__k(int)'",  # a kernel that is launched and that nobody defines
        "multiple definition of `__device_stub__k(int*)'",  # one kernel in two objects of a program
        "no-such-g++: not found",
    ],
)
def test_what_does_not_link_is_told_once(built: tuple[Project, str], words: str) -> None:
    project, output = built
    assert output.count(words) == 1
    assert not any(project.exists(name) for name in ("undefined", "twice", "nolinker"))


def test_an_object_of_two_libraries_is_linked_and_registered_once(built: tuple[Project, str]) -> None:
    lines = said(built[0].path("libraries"))
    assert lines == ["fatbin 1", "kernel _Z1sPi", *["launch _Z1sPi 1,1,1 1,1,1 0"] * 2]


def test_an_environment_without_a_cpp_compiler_links_by_gpp(built: tuple[Project, str]) -> None:
    project, output = built
    assert "g++ -o plain " in output
    assert said(project.path("plain"))[0] == "fatbin 1"


@pytest.mark.parametrize(
    ("archs", "words"),
    [
        ("sm_30", 'error: unknown architecture "sm_30"; is sm_90 meant?\n  known: sm_50,'),
        ("sm_50", " does not know sm_50\n"),
        ("", "error: GPU_ARCHS is not set\n"),
    ],
)
def test_a3_architectures_that_no_tool_knows_are_told_before_anything_runs(built: tuple[Project, str], archs: str, words: str) -> None:
    project = built[0]
    project.write("other/SConstruct", HEAD + f'env.Object("k.o", "../shared.cu", GPU_ARCHS="{archs}")\n')
    result = project.fail("-C", "other")
    assert (result.returncode, words in result.stderr) == (2, True), result.stderr
