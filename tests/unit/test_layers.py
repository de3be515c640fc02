"""What GPU_NVCCFLAGS comes to beside variables that are set as well, in the places where both can be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from SCons.Environment import Environment

from scons_gpu.errors import UsageError
from scons_gpu.scons import settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def env() -> Any:
    made = Environment(tools=[], GPU_ARCHS=["sm_90"])
    settings.set_defaults(made)
    return made


def read(env: Any, arguments: dict[str, Any] | None = None, **overrides: Any) -> settings.Settings:
    return settings.read(env, arguments or {}, overrides, supported=lambda _: (80, 90))


def told(env: Any, arguments: dict[str, Any] | None = None, **overrides: Any) -> list[str]:
    return settings.remarks(env, arguments or {}, overrides)


def test_flags_become_settings(env: Any) -> None:
    found = read(env, GPU_NVCCFLAGS="-arch=sm_80 -G -maxrregcount=64 -use_fast_math -Xptxas -dlcm=ca,-warn-spills")
    assert [target.name for target in found.archs] == ["sm_80", "compute_80"]
    assert (found.debug, found.opt, found.fast_math, found.ftz) == (True, 0, True, True)
    assert found.assemble.maxrregcount == 64
    assert (found.assemble.flags, found.assemble.warn_on_spill) == (("-dlcm=ca",), True)


def test_the_nearest_place_decides_and_in_one_place_the_variable(env: Any) -> None:
    env["GPU_MAXRREGCOUNT"] = 40
    flags = {"GPU_NVCCFLAGS": "-maxrregcount=32"}
    assert read(env, **flags).assemble.maxrregcount == 32
    assert read(env, flags).assemble.maxrregcount == 32
    assert read(env, {**flags, "GPU_MAXRREGCOUNT": "48"}).assemble.maxrregcount == 48
    env["GPU_NVCCFLAGS"] = "-maxrregcount=32"
    assert read(env).assemble.maxrregcount == 40
    assert read(env, {"GPU_MAXRREGCOUNT": "48"}).assemble.maxrregcount == 48
    assert read(env, GPU_NVCCFLAGS="").assemble.maxrregcount == 40


def test_what_the_tool_has_set_is_not_the_users(env: Any) -> None:
    env["GPU_NVCCFLAGS"] = "-lineinfo -ftz=true"
    assert read(env).lineinfo
    assert told(env) == []
    env["GPU_OPT"] = 3
    assert read(env, GPU_LINEINFO=False).lineinfo is False


def test_a_contradiction_is_told_and_agreement_is_not(env: Any) -> None:
    env["GPU_NVCCFLAGS"] = "-arch=sm_80 -maxrregcount=32 -lineinfo"
    assert told(env) == ["GPU_ARCHS=sm_90 goes before -arch=sm_80 of GPU_NVCCFLAGS"]
    assert told(env, GPU_NVCCFLAGS=env["GPU_NVCCFLAGS"], GPU_ARCHS="80 80-virtual", GPU_MAXRREGCOUNT=32, GPU_LINEINFO="yes") == []
    assert told(env, {"GPU_LINEINFO": "0"}, GPU_ARCHS="90")[1:] == [], "what is nearer is meant to go before"
    assert told(env, GPU_NVCCFLAGS="-arch=sm_86") == []
    both = {"GPU_NVCCFLAGS": "-G -lineinfo", "GPU_DEBUG": "no"}
    assert told(env, both) == ["GPU_DEBUG=no goes before -G of GPU_NVCCFLAGS"]


def test_what_is_lost_is_told_unless_the_front_end_takes_it(env: Any) -> None:
    [sentence] = told(env, GPU_NVCCFLAGS="-prec-div=false --extended-lambda")
    assert sentence.startswith("-prec-div=false of GPU_NVCCFLAGS is left out")
    assert told(env, GPU_NVCCFLAGS="-prec-div=false", GPU_FRONTEND="nvrtc") == []


def test_both_kinds_of_flags_come_together_the_users_last(env: Any) -> None:
    env["GPU_PTXASFLAGS"] = "-O2 $MORE"
    env["MORE"] = "-x"
    env["GPU_CLANGFLAGS"] = ["-std=c++20"]
    env["CPPPATH"] = ["one"]
    env["CPPDEFINES"] = {"A": 1}
    env["GPU_NVCCFLAGS"] = "-Xptxas -O1,'-d=$$x' -std=c++17 -Wreorder -Itwo -I three -DA=2 -DB --extended-lambda -default-device"
    assert read(env).assemble.flags == ("-O1", "-d=$x", "-O2", "-x")
    found = settings.front_end(env, {}, {})
    assert found.flags == ("-std=c++20",)
    assert found.from_nvcc == ("-Wreorder",)
    assert found.nvcc_flags == ("--Wreorder", "--extended-lambda", "--device-as-default-execution-space")
    assert found.cpppath == ("one", "two", "three")
    assert found.defines == ("B", "A=1")


def test_one_sources_flags_take_the_place_of_its_modules(env: Any) -> None:
    module = {"GPU_NVCCFLAGS": "-lineinfo -DA -ftz=true"}
    found = settings.front_end(env, {}, module, {"GPU_NVCCFLAGS": "-DB"})
    assert (found.defines, found.ftz, found.lineinfo) == (("B",), False, True)
    assert settings.front_end(env, {}, module, {"CPPDEFINES": "C"}).defines == ("A", "C")


def test_a_line_a_list_nodes_and_files_of_flags_are_read(env: Any, tmp_path: Path) -> None:
    (tmp_path / "more").write_text("-DC='x y' -lineinfo\n")
    env["GPU_NVCCFLAGS"] = ['-DA -DB=\\"b\\"', "-I", env.Dir("#inc"), f"-optf={tmp_path}/more"]
    assert settings.front_end(env, {}, {"GPU_NVCCFLAGS": ""}).cpppath == ()
    found = settings.front_end(env, {}, {})
    assert (found.defines, found.cpppath, found.lineinfo) == (("A", 'B="b"', "C=x y"), ("inc",), True)
    env["GPU_NVCCFLAGS"] = "-I$(CUDA_HOME)/include"
    with pytest.raises(UsageError, match="is a variable of make's"):
        settings.front_end(env, {}, {})
