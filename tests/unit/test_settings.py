"""What each GPU_ variable accepts, and how a value that it does not accept is told."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from SCons.Environment import Environment

from scons_gpu.assemble.provider import AssembleOptions
from scons_gpu.errors import UsageError
from scons_gpu.scons import settings

if TYPE_CHECKING:
    from scons_gpu.scons.settings import Settings


@pytest.fixture
def env() -> Any:
    made = Environment(tools=[], GPU_ARCHS=["sm_90"])
    settings.set_defaults(made)
    return made


def read(env: Any, arguments: dict[str, Any] | None = None, **overrides: Any) -> Settings:
    return settings.read(env, arguments or {}, overrides, supported=lambda _: (80, 90))


def test_defaults(env: Any) -> None:
    found = read(env)
    assert [target.name for target in found.archs] == ["sm_90"]
    assert (found.opt, found.link, found.provider) == (3, "auto", "auto")
    assert (found.ftz, found.fast_math, found.lineinfo, found.debug, found.share_twins, found.verify_reuse) == (False,) * 6
    assert found.assemble.maxrregcount is None
    assert [path.name for path in found.store] == [".gpu-store"]


def test_what_the_user_set_before_stays() -> None:
    made = Environment(tools=[], GPU_OPT=1)
    settings.set_defaults(made)
    assert made["GPU_OPT"] == 1


def test_module_over_command_line_over_environment(env: Any) -> None:
    env["GPU_OPT"] = 1
    assert read(env).opt == 1
    assert read(env, {"GPU_OPT": "2"}).opt == 2
    assert read(env, {"GPU_OPT": "2"}, GPU_OPT=0).opt == 0


@pytest.mark.parametrize("value", ["1", "yes", "True", "on", True, 1])
def test_on(env: Any, value: object) -> None:
    assert read(env, GPU_LINEINFO=value).lineinfo


@pytest.mark.parametrize("value", ["0", "no", "False", "off", "", False, 0, None])
def test_off(env: Any, value: object) -> None:
    assert not read(env, GPU_LINEINFO=value).lineinfo


def test_one_variable_may_mean_another_too(env: Any) -> None:
    assert read(env, GPU_FAST_MATH=1).ftz
    debug = read(env, GPU_DEBUG=1, GPU_OPT=2)
    assert (debug.opt, debug.assemble.opt, debug.assemble.debug) == (0, 0, True)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("GPU_OPT", "4", "GPU_OPT=4 is not a number from 0 to 3"),
        ("GPU_OPT", "fast", "GPU_OPT=fast is not a number from 0 to 3"),
        ("GPU_MAXRREGCOUNT", "8", "GPU_MAXRREGCOUNT=8 is not a number from 16 to 255"),
        ("GPU_LINEINFO", "perhaps", "GPU_LINEINFO=perhaps is neither yes nor no"),
        ("GPU_LINK", "static", "GPU_LINK=static is not known\n  it is one of auto, merge, image, whole, bundle"),
        ("GPU_LOWER", "nvcc", "GPU_LOWER=nvcc is not known\n  it is one of auto, llvm"),
        ("GPU_PROVIDER", "clang", "GPU_PROVIDER=clang is not known\n  it is auto, ptxas, nvptxcompiler"),
        ("GPU_FRONTEND", "gcc", "GPU_FRONTEND=gcc is not known\n  it is one of auto, clang, nvcc, nvrtc"),
        ("GPU_DUMP", True, "GPU_DUMP=True names no folder\n  as in GPU_DUMP=dump"),
        ("GPU_ARCHS", "sm_1234", 'unknown architecture "sm_1234"'),
        ("GPU_ARCHS", [], "GPU_ARCHS is not set\n  say which GPUs to build for"),
    ],
)
def test_a_value_that_is_not_accepted(env: Any, name: str, value: object, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(env, **{name: value})
    assert str(caught.value).startswith(words)


def test_all_means_what_the_tools_know(env: Any) -> None:
    assert [target.name for target in read(env, GPU_ARCHS="all").archs] == ["sm_80", "sm_90", "compute_90"]


def test_an_unknown_name_is_told_with_the_nearest(env: Any) -> None:
    with pytest.raises(UsageError, match=r"there is no variable GPU_OTP\n  did you mean GPU_OPT"):
        settings.check_names({"GPU_OTP": "1"})
    settings.check_names({"PREFIX": "/usr", "GPU_OPT": "1"})
    with pytest.raises(UsageError, match="there is no variable GPU_ARCH\n  did you mean GPU_ARCHS"):
        read(env, GPU_ARCH="sm_90")
    with pytest.raises(UsageError, match="there is no variable CPPDEFINE\n  did you mean CPPDEFINES"):
        read(env, CPPDEFINE=["A"])
    with pytest.raises(UsageError, match="there is no variable submodule\n  did you mean submodules"):
        read(env, submodule=["ops"])


def test_a_line_is_not_one_modules_own(env: Any) -> None:
    with pytest.raises(UsageError, match="GPU_LOWERCOMSTR cannot be set here"):
        read(env, GPU_LOWERCOMSTR="LLVM")


def test_verifying_is_not_one_modules_own(env: Any) -> None:
    assert read(env, {"GPU_VERIFY_REUSE": "1"}).verify_reuse
    with pytest.raises(UsageError, match="GPU_VERIFY_REUSE cannot be set here"):
        read(env, GPU_VERIFY_REUSE=1)


def test_a_dump_goes_to_a_folder_seen_from_the_top(env: Any, tmp_path: Path) -> None:
    assert read(env).dump is None
    assert read(env, {"GPU_DUMP": "seen"}).dump == read(env, GPU_DUMP="#seen").dump == Path(env.Dir("#").get_abspath(), "seen")
    assert read(env, GPU_DUMP=tmp_path).dump == tmp_path


def test_every_option_of_an_assembler_has_its_variable(env: Any) -> None:
    given = {field.name for field in dataclasses.fields(AssembleOptions)} - {
        "verbose",
        "seconds",
        "unit",
    }  # asked for by commands, candidates and deferral
    assert set(settings.ASSEMBLING) == given
    assert set(settings.ASSEMBLING.values()) <= set(settings.VARIABLES)
    values = {"GPU_OPT": 1, "GPU_MAXRREGCOUNT": 40, "GPU_PTXASFLAGS": "-dlcm=ca"}
    for name, variable in settings.ASSEMBLING.items():
        changed = read(env, **{variable: values.get(variable, True)}).assemble
        assert getattr(changed, name) != getattr(AssembleOptions(), name)


def test_a_misspelt_name_in_the_environment_is_told_and_other_names_are_the_users(env: Any) -> None:
    assert settings.misspelt(env) == []
    env["GPU_MAXREGCOUNT"] = 32
    env["GPU_LAB"] = "ours"
    assert settings.misspelt(env) == ["GPU_MAXREGCOUNT is set and means nothing; is GPU_MAXRREGCOUNT meant?"]


def test_flags_are_words_and_files_of_them_are_read(env: Any, tmp_path: Path) -> None:
    (tmp_path / "flags").write_text("--verbose '--name=a b'")
    for value in (f"-O2 @{tmp_path}/flags", ["-O2", "--options-file", f"{tmp_path}/flags"], ["-O2", f"-optf={tmp_path}/flags"]):
        assert read(env, GPU_PTXASFLAGS=value).assemble.flags == ("-O2", "--verbose", "--name=a b")
    with pytest.raises(UsageError, match=r"file of flags /no/such/file: No such file"):
        read(env, GPU_PTXASFLAGS="@/no/such/file")


@pytest.mark.parametrize("value", [["A", ("B", 2)], {"A": None, "B": 2}, "A B=2", [["A"], {"B": "2"}]])
def test_s_defines_in_every_spelling(env: Any, value: object) -> None:
    assert settings.front_end(env, {}, {"CPPDEFINES": value}).defines == ("A", "B=2")


def test_tuning_files_of_the_command_line_are_seen_from_the_top_and_others_from_their_folder(env: Any) -> None:
    top, sub = Path(env.Dir("#").get_abspath()), env.Dir("#sub")

    def names(arguments: dict[str, Any], **overrides: Any) -> list[Path]:
        return [Path(node.get_abspath()) for node in read(env, arguments, **overrides).tuning]

    assert names({}) == []
    env.fs.chdir(sub, change_os_dir=False)
    try:
        assert names({"GPU_TUNING": "a.json /b.json #c.json"}) == [top / "a.json", Path("/b.json"), top / "c.json"]
        assert names({"GPU_TUNING": "a.json"}, GPU_TUNING=["d.json", "#e.json"]) == [top / "sub/d.json", top / "e.json"]
        env["GPU_TUNING"] = "f.json #g.json"
        assert names({}) == [top / "sub/f.json", top / "g.json"]
        assert names({"GPU_TUNING": ""}) == []
    finally:
        env.fs.chdir(env.Dir("#"), change_os_dir=False)


def test_stores_are_a_list_whose_first_is_written(env: Any, tmp_path: Path) -> None:
    assert read(env, GPU_STORE=[f"{tmp_path}/own", tmp_path / "shared"]).store == (tmp_path / "own", tmp_path / "shared")


@pytest.mark.parametrize(
    ("set_here", "expected"),
    [
        ({}, False),
        ({"GPU_RDC": 1}, True),
        ({"GPU_NVCCFLAGS": "-rdc=true"}, True),
        ({"GPU_NVCCFLAGS": "-dc"}, True),
        ({"GPU_NVCCFLAGS": "-rdc=false"}, False),
    ],
)
def test_device_code_across_sources_is_asked_for_in_either_spelling(env: Any, set_here: dict[str, Any], expected: object) -> None:
    env.Replace(**set_here)
    assert settings.relocatable(env, {}, {}) is expected
    assert settings.relocatable(env, {"GPU_RDC": "0"}, {}) is False
    assert settings.relocatable(env, {"GPU_RDC": "0"}, {"GPU_RDC": True}) is True
    with pytest.raises(UsageError, match="GPU_RDC=perhaps is neither yes nor no"):
        settings.relocatable(env, {}, {"GPU_RDC": "perhaps"})
