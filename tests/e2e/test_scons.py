"""What SCons offers works with our nodes: its options, its other builders, and what it says of bad input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from project import CUDA, HEAD, LL_HEAD, Project, ll

import scons_gpu

NET = 'env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))\n'


@pytest.fixture
def net(project: Project) -> Project:
    project.write("SConstruct", NET)
    project.write("net.ll", ll("one=1.0", "two=2.0"))
    return project


# options


def test_dry_run_writes_nothing_and_shows_what_the_present_plans_name(net: Project) -> None:
    result = net.build("-n")
    assert not net.exists("build")
    assert "source    net.ll  sm_90" in result.lines
    assert "decided during the build" in result.stderr
    net.build()
    made = net.files("build/**/*")
    assert "is up to date" in net.build("-n").stdout
    net.edit("net.ll", "2.0", "2.5")
    lines = net.build("-n").lines
    assert "source    net.ll  sm_90" in lines
    assert net.files("build/**/*") == made
    net.build()
    assert net.compiled() == ["two"]


@pytest.mark.parametrize("option", ["--implicit-cache", "--implicit-deps-unchanged"])
def test_cached_dependencies_link_no_stale_object(net: Project, option: str) -> None:
    net.build(option)
    first = net.image("net").read_bytes()
    net.edit("net.ll", "2.0", "2.5")
    net.build(option)
    assert net.compiled() == ["two"]
    assert net.image("net").read_bytes() != first
    assert net.run("-q", option).returncode == 0
    net.edit("net.ll", "2.5", "2.0")
    net.build(option)
    assert net.image("net").read_bytes() == first
    assert net.run("-q").returncode == 0


def test_cached_dependencies_see_a_header_under_implicit_cache(project: Project) -> None:
    project.write("SConstruct", CUDA + NET.replace(".ll", ".cu"))
    project.write("net.cu", '#include "value.h"\n__global__ void one(float* data) { *data = VALUE; }\n')
    project.write("value.h", "#define VALUE 1.0f\n")
    project.build("--implicit-cache")
    project.write("value.h", "#define VALUE 2.0f\n")
    project.build("--implicit-cache")
    assert project.compiled() == ["one(float*)"]
    assert project.run("-q", "--implicit-cache").returncode == 0


def test_explain_tells_what_changed(net: Project) -> None:
    net.build()
    said = net.build("--debug=explain", "GPU_OPT=1").stdout
    assert re.search(r"opt = 3", said), said
    assert re.search(r"opt = 1", said), said
    net.build("GPU_OPT=1")
    net.edit("net.ll", "2.0", "2.5")
    assert "`net.ll' changed" in net.build("--debug=explain", "GPU_OPT=1").stdout


def test_a_cache_folder_breaks_nothing_and_no_unit_is_compiled_twice(project: Project) -> None:
    project.write(
        "SConstruct",
        'CacheDir("cache")\nenv.Command("copy.txt", "net.ll", Copy("$TARGET", "$SOURCE"))\n' + NET,
    )
    project.write("net.ll", ll("one=1.0", "two=2.0"))
    project.build()
    assert project.compiled() == ["one", "two"]
    made = project.files("build/**/*")
    project.build("-c")
    assert project.files("build/**/*") == {}
    result = project.build()
    assert "Retrieved `copy.txt' from cache" in result.stdout
    assert project.compiled() == []
    assert project.files("build/**/*") == made
    assert project.run("-q").returncode == 0
    project.edit("net.ll", "2.0", "2.5")
    project.build("--cache-force")
    assert project.compiled() == ["two"]
    assert project.run("-q").returncode == 0


def test_other_options_change_no_byte(net: Project, tmp_path: Path) -> None:
    options = ("--hash-format=sha256", "--hash-chunksize=1", "--max-drift=0", "--random", "--debug=memory,count,time", "--stack-size=512")
    other = Project(tmp_path / "other")
    other.write("SConstruct", NET)
    other.write("net.ll", net.read("net.ll"))
    net.build()
    other.build(*options)
    assert other.files("build/**/*") == net.files("build/**/*")
    assert other.run("-q", *options).returncode == 0


@pytest.mark.parametrize("decider", ["timestamp-newer", "content-timestamp"])
def test_deciders(net: Project, decider: str) -> None:
    net.write("SConstruct", f"env.Decider({decider!r})\n" + NET)
    net.build()
    assert net.run("-q").returncode == 0
    net.edit("net.ll", "2.0", "2.5")
    os.utime(net.path("net.ll"), (2_000_000_000, 2_000_000_000))
    net.build()
    assert net.compiled() == ["two"]
    assert net.kernels("net") == ["one", "two"]


def test_tree_listings_show_our_nodes(net: Project) -> None:
    net.build()
    said = net.build("--tree=prune,status", "-n").stdout
    for name in ("build/net.json", "build/net/net.fatbin", "build/net/net/sm_90.cubin", "build/net/net/net.ll.sm_90.ll"):
        assert name in said, said


def test_many_jobs(project: Project) -> None:
    modules = "".join(f'm{number} = env.GpuModule("m{number}", ["m{number}.ll"])\n' for number in range(5))
    project.write(
        "SConstruct",
        modules + f'env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[{", ".join(f"m{n}" for n in range(5))}]))\n',
    )
    for number in range(5):
        project.write(f"m{number}.ll", ll(f"own{number}={number}.0", "same=9.0"))
    project.build("-j8")
    assert project.compiled() == [*(f"own{number}" for number in range(5)), "same"]
    assert project.run("-q", "-j8").returncode == 0


# among other builders


def test_alias_depends_install_and_command_on_our_nodes(project: Project) -> None:
    project.write(
        "SConstruct",
        f"TOOLPATH = [{scons_gpu.TOOLPATH!r}]"
        """
env = Environment(tools=["gpu", "install"], toolpath=TOOLPATH, GPU_ARCHS=["sm_90"])
made = env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))
env.Alias("gpu", made)
env.Alias("put", env.Install("out", made))
listing = env.Command("names.txt", made, "ls build/net > $TARGET")
env.Depends(listing, "extra.txt")
env.Depends(made, "late.txt")
Default("gpu")
""",
    )
    project.write("net.ll", ll("one=1.0"))
    project.write("extra.txt", "1")
    project.write("late.txt", "1")
    project.build()
    assert not project.exists("out")
    project.build("put", "names.txt")
    assert project.bytes("out/net.fatbin") == project.bytes("build/net/net.fatbin")
    assert project.read("names.txt").split() == ["net", "net.fatbin"]
    assert project.run("-q", "gpu", "put", "names.txt").returncode == 0
    project.edit("net.ll", "1.0", "1.5")
    project.build("put")
    assert project.bytes("out/net.fatbin") == project.bytes("build/net/net.fatbin")
    project.write("late.txt", "2")
    project.build()
    assert (project.done()["pack"], project.done()["manifest"], project.compiled()) == (1, 1, [])
    assert project.run("-q", "gpu", "put").returncode == 0


def test_two_programs_share_modules_and_units(project: Project) -> None:
    project.write(
        "SConstruct",
        """
shared = env.GpuModule("shared", ["shared.ll"])
env.GpuProgram("build/left", env.GpuModule("left", ["left.ll"], submodules=[shared]))
env.GpuProgram("build/right", env.GpuModule("right", ["right.ll"], submodules=[shared]))
""",
    )
    project.write("shared.ll", ll("same=1.0"))
    project.write("left.ll", ll("left=2.0"))
    project.write("right.ll", ll("right=3.0", "same=1.0"))
    project.build("-j2")
    assert project.compiled() == ["left", "right", "same"]
    counts = project.stats()
    assert (counts["references"], counts["unique"], counts["needed"], counts["linked"]) == (5, 3, 3, 4)
    assert project.bytes("build/left/shared.fatbin") == project.bytes("build/right/shared.fatbin")
    assert project.run("-q").returncode == 0
    project.build("-c", "build/left.json")
    project.build("build/right.json")
    assert project.done() == {}


def test_sconscripts_in_folders_return_modules(project: Project) -> None:
    project.write(
        "SConstruct",
        'parts = SConscript(["a/SConscript", "a/b/SConscript"], exports="env")\nenv.GpuProgram("#out/net", env.GpuModule("net", [], submodules=parts))\n',
    )
    project.write("a/SConscript", 'Import("env")\nmod = env.GpuModule("a", ["k.ll"])\nReturn("mod")\n')
    project.write("a/b/SConscript", 'Import("env")\nmod = env.GpuModule("b", ["k.ll", "#a/l.ll"])\nReturn("mod")\n')
    for name, number in (("a/k.ll", "1.0"), ("a/b/k.ll", "2.0"), ("a/l.ll", "3.0")):
        project.write(name, ll(f"kernel_{number[0]}={number}"))
    project.build()
    modules = project.manifest("out/net")["modules"]
    assert {name: kernel["source"] for module in modules.values() for name, kernel in module["kernels"].items()} == {
        "kernel_1": "a/k.ll",
        "kernel_2": "a/b/k.ll",
        "kernel_3": "a/l.ll",
    }
    assert project.run("-q").returncode == 0
    done = project.run("-u", "-C", "a")
    assert done.returncode == 0, done.output


def test_command_line_over_environment_and_module_over_both(project: Project) -> None:
    project.write(
        "SConstruct",
        """
env["GPU_OPT"] = 2
own = env.GpuModule("own", ["net.ll"], GPU_OPT=0)
env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"], submodules=[own]))
""",
    )
    project.write("net.ll", ll("one=1.0"))

    def levels(*args: str) -> tuple[int, int]:
        project.build(*args)
        modules = project.manifest()["modules"]
        return modules["own"]["options"]["opt"], modules["net"]["options"]["opt"]

    assert levels() == (0, 2)
    assert levels("GPU_OPT=1") == (0, 1)


# bad input: one message, an exit code, nothing half-written


def refused(project: Project, *args: str) -> str:
    """Builds what cannot be built. Gives the message, and finds nothing half-written."""
    result = project.fail(*args)
    messages = re.findall(r"^error: .*(?:\n[ ]+.*)*", result.stderr, re.MULTILINE)
    assert len(messages) == 1, result.output
    assert list(project.root.rglob(".tmp-*")) == []
    assert not list(project.root.glob("build/**/*.fatbin"))
    assert not project.exists("build/net.json")
    return str(messages[0])


def test_an_unknown_variable_is_an_error_with_the_nearest_names(net: Project) -> None:
    message = refused(net, "GPU_ARCH=sm_90")
    assert "there is no variable GPU_ARCH" in message
    assert "GPU_ARCHS" in message
    assert "GPU_OPT" in refused(net, "GPU_OTP=1")


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("GPU_ARCHS=sm_9x", ["sm_9x"]),
        ("GPU_ARCHS=", ["GPU_ARCHS"]),
        ("GPU_OPT=4", ["GPU_OPT=4", "0 to 3"]),
        ("GPU_LINK=images", ["GPU_LINK=images", "auto, merge, image, whole, bundle"]),
        ("GPU_DEBUG=perhaps", ["GPU_DEBUG=perhaps"]),
        ("GPU_MAXRREGCOUNT=many", ["GPU_MAXRREGCOUNT=many"]),
        ("GPU_CLANG=/nowhere/clang", ["/nowhere/clang"]),
        ("GPU_CUDA_PATH=/nowhere", ["/nowhere"]),
        ("GPU_CUDA_HEADERS=/nowhere", ["/nowhere"]),
        ("GPU_STORE=net.ll", ["net.ll", "not a folder"]),
    ],
)
def test_a_wrong_value_is_an_error_that_quotes_it(net: Project, argument: str, words: list[str]) -> None:
    message = refused(net, argument)
    assert [word for word in words if word not in message] == [], message
    assert not net.exists("build")


def test_without_an_assembler_the_places_are_told(net: Project, tmp_path: Path) -> None:
    (tmp_path / "empty/bin").mkdir(parents=True)
    net.environ["PATH"] = str(tmp_path / "empty/bin")
    message = refused(net, f"GPU_CUDA_PATH={tmp_path / 'empty'}")
    assert "ptxas" in message
    assert str(tmp_path / "empty") in message
    assert not net.exists("build")


def test_l7_without_any_tool_there_is_ptx_and_the_message_says_what_to_install(net: Project, tmp_path: Path) -> None:
    """A Python without wheels, on a machine whose own CUDA is hidden."""
    net.write("SConstruct", f"import sys\nsys.prefix = {str(tmp_path)!r}\n" + HEAD + NET)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        net.environ.pop(name, None)
    net.environ["PATH"] = str(tmp_path)
    hidden = [folder for folder in ("/usr/local", "/usr/lib/cuda", "/usr/lib/nvidia-cuda-toolkit") if Path(folder).exists()]
    mounts = " && ".join(f"/bin/mount -t tmpfs tmpfs {folder}" for folder in hidden)
    argv = ["/usr/bin/unshare", "-m", "/bin/sh", "-c", f"{mounts} && exec {sys.executable} -m SCons"]
    done = subprocess.run(argv, cwd=net.root, env=net.environ, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mounts of one's own here: {done.stderr.strip()}")
    if "driver" in done.stderr:
        pytest.skip("this machine has a driver, which links")
    assert done.returncode == 0, done.stderr
    assert "nothing that assembles was found, modules end with PTX; install scons-gpu[toolkit]" in done.stderr
    assert net.read("build/net/net/sm_90.ptx").count(".entry") == 2
    assert net.bytes("build/net/net.fatbin").startswith(b"\x50\xed\x55\xba")


def test_a_source_that_is_not_there_or_no_file(net: Project) -> None:
    net.path("net.ll").unlink()
    result = net.fail()
    assert "net.ll" in result.stderr
    assert result.stderr.count("\n") <= 3, result.stderr
    net.path("net.ll").mkdir()
    result = net.fail()
    assert "net.ll" in result.output
    assert not net.exists("build/net.json")


def test_an_unreadable_source(net: Project) -> None:
    if os.geteuid() == 0:
        net.write("net.ll", "")
        net.path("net.ll").write_bytes(b"\xff\xfe\x00 no text and no bitcode")
    else:
        net.path("net.ll").chmod(0)
    message = refused(net)
    assert "net/net.ll" in message


BROKEN = {
    "syntax": ("define void @k() {\n  frobnicate\n}\n", "net.ll:2:3"),
    "verify": (
        LL_HEAD
        + "define ptx_kernel i32 @k() {\n  ret i32 1\n}\ndefine void @f() {\n  %a = add i32 %b, 1\n  %b = add i32 %a, 1\n  ret void\n}\n",
        "net.ll",
    ),
    "triple": ('target triple = "x86_64-unknown-linux-gnu"\ndefine void @k() {\n  ret void\n}\n', "x86_64"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_ir_that_does_not_verify(net: Project, kind: str) -> None:
    text, word = BROKEN[kind]
    net.write("net.ll", text)
    message = refused(net)
    assert word in message
    assert message.startswith("error: net/net.ll"), message
    assert not list(net.root.glob("build/**/*.index.json"))


def test_clang_s_errors_are_its_own_words_once(project: Project) -> None:
    project.write("SConstruct", NET.replace(".ll", ".cu"))
    project.write("net.cu", "__global__ void one(float* data) { *data = missing; }\n")
    message = refused(project)
    assert "net.cu:1:" in message
    assert "use of undeclared identifier 'missing'" in message
    assert list(project.root.glob("build/**/*.ll")) == []


def test_everything_that_can_go_on_goes_on_under_keep_going(project: Project) -> None:
    project.write(
        "SConstruct",
        CUDA
        + """
parts = [env.GpuModule(name, [f"{name}.{suffix}"]) for name, suffix in (("broken", "ll"), ("wrong", "cu"), ("good", "ll"))]
env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"], submodules=parts))
""",
    )
    project.write("broken.ll", "define")
    project.write("wrong.cu", "__global__ void one() { missing(); }\n")
    project.write("good.ll", ll("good=1.0"))
    project.write("net.ll", ll("root=2.0"))
    result = project.fail("-k", "-j2")
    assert project.compiled() == ["good", "root"]
    assert project.exists("build/net/good.fatbin")
    assert project.exists("build/net/net.fatbin")
    assert not project.exists("build/net.json")
    last = [line for line in result.stderr.splitlines() if line.strip()][-3:]
    assert last[0].startswith("2 steps failed")
    assert [re.search(r"(broken|wrong)", line)[0] for line in last[1:]] == ["broken", "wrong"]  # type: ignore[index]
    assert project.stats()["failed"] == 2
    project.write("broken.ll", ll("broken=3.0"))
    project.write("wrong.cu", "__global__ void one() { }\n")
    project.build()
    assert project.compiled() == ["broken", "one()"]
    assert project.run("-q").returncode == 0


def test_mistakes_in_a_sconstruct_are_messages(project: Project) -> None:
    for text, words in (
        ('env.GpuModule("a/b", [])', ["a/b"]),
        ('env.GpuModule("net", ["net.txt"])', ["net.txt", ".cu, .ll"]),
        ('env.GpuModule("net", ["net.ll", "net.ll"])', ["twice"]),
        ('env.GpuModule("net", ["net.ll"], GPU_OPTS=1)', ["GPU_OPTS", "GPU_OPT"]),
        ('env.GpuSource("net.cu", GPU_OPT=1)', ["GPU_OPT"]),
        ('m = env.GpuModule("net", ["net.ll"])\nenv.GpuProgram("net", m)\nenv.GpuProgram("net", m)', ["net"]),
    ):
        project.write("SConstruct", text + "\n")
        project.write("net.ll", ll("one"))
        message = refused(project)
        assert [word for word in words if word not in message] == [], message


def test_the_log_says_what_was_asked_for(net: Project) -> None:
    net.build("-j2", "GPU_OPT=1")
    start = next(record for record in net.records() if record["type"] == "start")
    assert (start["argv"], start["looking"], start["jobs"]) == (["-j2", "GPU_OPT=1"], False, 2)
    end = net.records()[-1]
    assert (end["type"], end["ok"]) == ("end", True)
    assert json.loads(json.dumps(end)) == end
    assert sys.executable not in json.dumps(end)
