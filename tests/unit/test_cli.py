from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import scons_gpu
from scons_gpu.cli import looks, program
from scons_gpu.errors import GpuError, UsageError
from scons_gpu.inspect.tables import show
from scons_gpu.store import builds
from scons_gpu.store.log import BuildLog
from scons_gpu.store.record import make
from scons_gpu.store.store import Store

ROOT = str(Path(scons_gpu.__file__).parents[1])
COMMANDS = {"doctor", "stats", "kernels", "source", "split", "plan", "lower", "pack", "assemble", "link", "compare", "gc"} | {
    "tuning",
    "bench",
    "verify",
    "reproduce",
    "why",
    "diff",
    "budget",
    "report",
    "graph",
    "inputs",
    "users",
    "path",
    "shared",
    "twins",
    "trace",
    "slowest",
    "critical-path",
}
KERNELS = """
target triple = "nvptx64-nvidia-cuda"
define ptx_kernel void @one(ptr addrspace(1) %x) {
  store float 1.0, ptr addrspace(1) %x
  ret void
}
define ptx_kernel void @two(ptr addrspace(1) %x) {
  store float 2.0, ptr addrspace(1) %x
  ret void
}
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(program, [str(argument) for argument in arguments])


def start(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    code = "from scons_gpu.cli import main; main()"
    environ = {**os.environ, "PYTHONPATH": ROOT}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ, **options)


def test_every_command_has_help() -> None:
    assert set(program.commands) == COMMANDS
    for name in COMMANDS:
        result = run(name, "--help")
        assert result.exit_code == 0
        assert result.output.startswith("Usage: ")


def test_help_and_version_load_nothing_heavy() -> None:
    code = "import sys, scons_gpu.cli; print(sorted({name.split('.')[0] for name in sys.modules} & {'llvmlite', 'SCons', 'rich', 'elftools', 'subprocess', 'cuda'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": ROOT})
    assert done.stdout == "[]\n"
    assert run("--version").output == f"scons-gpu {scons_gpu.__version__}\n"


@pytest.mark.parametrize(("error", "code"), [(GpuError("it broke", hint="mend it"), 1), (UsageError("it broke", hint="mend it"), 2)])
def test_errors_are_messages_with_an_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: GpuError, code: int) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(looks, "_print_json", fail)
    (tmp_path / "store").mkdir()
    result = run("--store", tmp_path / "store", "gc", "--json")
    assert (result.exit_code, result.stderr) == (code, "error: it broke\n  mend it\n")


def test_an_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(looks, "_print_json", interrupt)
    result = run("--store", tmp_path, "gc", "--json")
    assert (result.exit_code, result.output) == (130, "")


def test_wrong_use_is_2_and_a_failed_step_is_1_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken.ll").write_text('target triple = "nvptx64-nvidia-cuda"\ndefine void @x( {\n')
    wrong = start("-C", tmp_path, "source", "broken.ll", "--arch", "sm_banana", "-o", "x.ll")
    assert (wrong.returncode, wrong.stderr.startswith("error: ")) == (2, True)
    assert "sm_banana" in wrong.stderr
    failed = start("-C", tmp_path, "source", "broken.ll", "--arch", "90", "-o", "x.ll")
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: ")
    assert "Traceback" not in failed.stderr + wrong.stderr
    assert not (tmp_path / "x.ll").exists()
    assert start("nonsense").returncode == 2


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    BuildLog(tmp_path / "log.jsonl", build="b1").write(type="start", looking=False)
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "from scons_gpu.cli import main; main()", "--store", str(tmp_path), "stats", "--json"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, env={**os.environ, "PYTHONPATH": ROOT})
    os.close(writer)
    assert done.stderr == ""


def test_stats_shows_the_last_build_or_the_one_asked_for(tmp_path: Path) -> None:
    for build, kernels in (("b1", 3), ("b2", 5)):
        log = BuildLog(tmp_path / "log.jsonl", build=build)
        log.write(type="start", looking=False)
        log.write(type="end", ok=True, kernels=kernels, references=kernels, unique=2)
    assert json.loads(run("--store", tmp_path, "stats", "--json").output)["kernels"] == 5
    older = json.loads(run("--store", tmp_path, "--build", "b1", "stats", "--json").output)
    assert (older["schema"], older["build"], older["kernels"], older["shared"]) == (1, "b1", 3, 1)
    assert "kernels" in run("--store", tmp_path, "stats").output
    missing = run("--store", tmp_path, "--build", "b9", "stats")
    assert (missing.exit_code, "b9" in missing.stderr) == (2, True)


def test_gc_keeps_what_a_build_names(tmp_path: Path) -> None:
    store = Store([tmp_path])
    names = [store.put_text("slice", f"slice {number}") for number in range(2)]
    key = [("a", "1")]
    path = store.claim("ptx", "0" * 32, key, suffix=".ptx")
    store.save(path, b"ptx", make(b"ptx", key=key))
    builds.remember(tmp_path, "b1", program="p", names=[names[0]])
    kept = json.loads(run("--store", tmp_path, "gc", "--json").output)
    assert (kept["removed"], kept["kept"]) == (0, 3)  # all of them are young
    result = run("--store", tmp_path, "gc", "--older-than", "0", "--json")
    assert (json.loads(result.output)["removed"], json.loads(result.output)["kept"]) == (2, 1)
    assert store.get_text("slice", names[0]) == "slice 0"
    assert run("--store", tmp_path / "none", "gc").exit_code == 2


def test_doctor_tells_the_tools_and_makes_no_store(tmp_path: Path) -> None:
    report = json.loads(run("-C", tmp_path, "doctor", "--arch", "sm_90", "--json").output)
    assert report["tools"]["ptxas"]["path"]
    assert report["capabilities"]["compile"] is True
    assert report["choice"]
    assert not (tmp_path / ".gpu-store").exists()


def test_a_module_is_built_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("k.ll").write_text(KERNELS)
    steps = [
        ("source", "k.ll", "--arch", "sm_90", "-o", "k.ll.sm_90.ll"),
        ("split", "k.ll.sm_90.ll", "--arch", "sm_90", "--source", "k.ll", "-o", "k.index.json"),
        ("plan", "k.index.json", "--arch", "sm_90", "--module", "m", "-o", "sm_90.plan.json"),
    ]
    for step in steps:
        result = run(*step)
        assert (result.exit_code, result.output) == (0, "")
    other = run("plan", "k.index.json", "--arch", "sm_80", "-o", "sm_80.plan.json")
    assert (other.exit_code, "k.index.json: was made for sm_90, and the plan is for sm_80" in other.stderr) == (2, True)
    plan = json.loads(Path("sm_90.plan.json").read_text())
    assert [kernel["symbol"] for part in plan["parts"] for kernel in part["kernels"]] == ["one", "two"]
    unit = plan["parts"][0]["slice"]
    assert run("lower", unit, "--arch", "sm_90", "-o", "one.ptx").exit_code == 0
    assert ".entry one(" in Path("one.ptx").read_text()
    slices = list(Path(".gpu-store/slice").rglob(unit))
    assert run("lower", slices[0], "--arch", "sm_90", "-o", "again.ptx").exit_code == 0
    assert Path("again.ptx").read_bytes() == Path("one.ptx").read_bytes()
    assert run("assemble", "one.ptx", "--whole", "-o", "sm_90.cubin").exit_code == 0
    assert "error: one.ptx (sm_80): the PTX is" in run("assemble", "one.ptx", "--arch", "sm_80", "-o", "x.cubin").stderr
    assert run("pack", "sm_90.cubin", "-o", "m.fatbin").exit_code == 0
    assert Path("m.fatbin").stat().st_size > 0
    missing = run("link", "sm_90.plan.json", "-o", "image.cubin")
    assert missing.exit_code == 1
    assert "error: kernel one of m/k.ll: its object is not in the store" in missing.stderr
    assert not Path("image.cubin").exists()


def test_lower_names_a_slice_that_is_not_there(tmp_path: Path) -> None:
    result = run("-C", tmp_path, "lower", "0" * 32, "--arch", "sm_90", "-o", "x.ptx")
    assert result.exit_code == 1
    assert "0" * 32 in result.stderr
    assert run("-C", tmp_path, "lower", "0" * 32, "--arch", "all-major", "-o", "x.ptx").exit_code == 2


def test_compare_refuses_what_is_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    result = run("compare", tmp_path / "x.json")
    assert (result.exit_code, "not a manifest" in result.stderr) == (2, True)


def test_tables_are_aligned_and_not_wrapped_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    show(("name", "bytes", "what"), [("a" * 150, 5, None), ("b", 1234, "x")])
    lines = capsys.readouterr().out.splitlines()
    assert [len(line) for line in lines if "1234" in line] == [len("a" * 150) + 3 + 5 + 3 + 1]
    assert lines[2] == "a" * 150 + "       5   -"
