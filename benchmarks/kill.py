"""Kills `scons` and all that it started at random moments, builds again, and compares with a build that nobody disturbed.

python benchmarks/kill.py [-n 50] [--seed 1] [FOLDER]

Every round starts from one of three states (nothing, a complete build with sources edited, what the last round left), kills the process
group with SIGKILL, takes the edit back in half of the rounds, and builds. Every artefact must have the bytes of the undisturbed build.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import scons_gpu

__all__ = ["Rounds", "main"]

SCONSTRUCT = f"""\
env = Environment(tools=["gpu"], toolpath=[{scons_gpu.TOOLPATH!r}], GPU_ARCHS=["sm_90", "compute_90"], GPU_CLANGFLAGS=["-nocudainc"])
then = env.GpuModule("then", ["then.ll"])
loose = env.GpuModule("loose", ["loose.ll"], GPU_LINK="bundle", GPU_ARCHS="sm_90")
candidates = {{kernel: [{{"TIMES": 4, "needs": "fill"}}, {{"TIMES": 8}}, {{"TIMES": 13}}] for kernel in ("measured", "guessed")}}
fills = env.GpuModule("fills", ["fills.cu"])
tuned = env.GpuModule("tuned", ["tuned.cu"], candidates=candidates, helpers=[fills], GPU_TUNING="tuning.json")
env.GpuProgram("build/net", env.GpuModule("net", ["net.cu"], submodules=[then, loose, tuned]))
"""
HEAD = 'target triple = "nvptx64-nvidia-cuda"\n'
KERNEL = """
define ptx_kernel void @{name}(ptr addrspace(1) %data) {{
  %old = load float, ptr addrspace(1) %data, align 4
  %new = fadd float %old, {number}.0
  store float %new, ptr addrspace(1) %data, align 4
  ret void
}}
"""
# Without the toolkit's headers, which are most of what a small source takes: the moments are to fall into all that is done.
CUDA = "".join(
    f"__attribute__((global)) void c{number}(float* data) {{ data[__nvvm_read_ptx_sreg_tid_x()] += {number}.0f; }}\n" for number in range(4)
)


TUNED = """
#ifndef TIMES
#define TIMES 1
#endif
#if TIMES == 13
#error "13 is no number of times"
#endif
extern "C" __attribute__((global)) void NAME(float* data) {
#pragma unroll
  for (int i = 0; i < TIMES; ++i) data[__nvvm_read_ptx_sreg_tid_x() * TIMES + i] += START + i;
}
"""
FILLS = 'extern "C" __attribute__((global)) void fill(float* data) { data[__nvvm_read_ptx_sreg_tid_x()] = 0; }\n'


def _tuning(values: dict[str, str], *, number: int = 1) -> str:
    """A tuning file: `number` problems, of which the first is the build's."""
    entry = {
        "arch": "sm_90",
        "keys": {},
        "values": values,
        "time_us": 3.5,
        "spread": 0.01,
        "candidates": 3,
        "device": {"name": "NVIDIA H100", "capability": "9.0", "driver": "13.0"},
        "tools": {"ptxas": "13.5.37"},
    }
    entries = [{**entry, "kernel": f"measured{n or ''}"} for n in range(number)]
    return json.dumps({"schema": "scons-gpu/tuning/1", "entries": entries})


class Rounds:
    """One folder that is killed in again and again, and what it must come to."""

    def __init__(self, folder: Path, *, seed: int, kernels: int = 12) -> None:
        self.folder = folder
        self.random = random.Random(seed)  # noqa: S311 - moments, not secrets
        self.kernels = kernels
        self.wanted, self.seconds = self._undisturbed()

    def _undisturbed(self) -> tuple[dict[str, bytes], float]:
        calm = self.folder / "calm"
        self._write(calm)
        begun = time.monotonic()
        _build(calm)
        return _artefacts(calm), time.monotonic() - begun

    def _write(self, folder: Path, *, edited: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "SConstruct").write_text(SCONSTRUCT)
        numbers = range(self.kernels)
        shift = 100 if edited else 0
        (folder / "then.ll").write_text(HEAD + "".join(KERNEL.format(name=f"k{n}", number=n + shift) for n in numbers))
        (folder / "loose.ll").write_text(HEAD + "".join(KERNEL.format(name=f"k{n}", number=n) for n in numbers if n % 2))
        (folder / "net.cu").write_text(CUDA.replace("+=", "-=") if edited else CUDA)
        tuned = [TUNED.replace("NAME", name).replace("START", str(shift)) for name in ("measured", "guessed")]
        (folder / "tuned.cu").write_text("".join(tuned))
        (folder / "fills.cu").write_text(FILLS)
        (folder / "tuning.json").write_text(_tuning({"TIMES": "8" if edited else "4"}))

    def round(self) -> str:
        """One kill and what it came to: empty where all is right."""
        folder = self.folder / "killed"
        state = self.random.choice(["nothing", "edited", "as it was left"])
        if state == "nothing":
            shutil.rmtree(folder, ignore_errors=True)
        edited = state == "edited"
        taken_back = self.random.random() < 0.5
        self._write(folder, edited=edited and taken_back)
        moment = self.random.uniform(0.05, 1.05) * self.seconds
        process = subprocess.Popen([sys.executable, "-m", "SCons", "-j2"], cwd=folder, stdout=-3, stderr=-3, start_new_session=True)
        time.sleep(moment)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._write(folder, edited=edited and not taken_back)
        what = f"{state}, killed after {moment:.2f} s{', edit taken back' if edited and taken_back else ''}"
        wrong = self._judge(folder, edited=edited and not taken_back)
        return f"{what}: {wrong}" if wrong else ""

    def _judge(self, folder: Path, *, edited: bool) -> str:
        try:
            _build(folder)
            if edited:  # the edit is right too; what is compared is the way back
                self._write(folder)
                _build(folder)
        except RuntimeError as error:
            return str(error)
        found = _artefacts(folder)
        different = sorted(name for name in {*found, *self.wanted} if found.get(name) != self.wanted.get(name))
        if different:
            return f"differs: {', '.join(different)}"
        asked = subprocess.run([sys.executable, "-m", "SCons", "-q"], cwd=folder, capture_output=True, check=False)
        return "is not up to date" if asked.returncode else ""


def merges(folder: Path, *, rounds: int, chance: random.Random) -> list[str]:
    """Kills `scons-gpu tuning merge` at random moments: the file is the old one or the new one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "one.json").write_text(_tuning({"TIMES": "4"}, number=2000))
    (folder / "two.json").write_text(_tuning({"TIMES": "8"}, number=3000))
    out = folder / "tuning.json"
    wanted, seconds = [], 1.0
    for names in (["one.json"], ["one.json", "two.json"]):
        begun = time.monotonic()
        subprocess.run(
            [sys.executable, "-c", _COMMAND, "tuning", "merge", *names, "-o", out.name], cwd=folder, check=True, capture_output=True
        )
        seconds = time.monotonic() - begun
        wanted.append(out.read_bytes())
    wrong = []
    for number in range(rounds):
        out.write_bytes(wanted[0])
        argv = [sys.executable, "-c", _COMMAND, "tuning", "merge", "one.json", "two.json", "-o", out.name]
        process = subprocess.Popen(argv, cwd=folder, stdout=-3, stderr=-3, start_new_session=True)
        time.sleep(chance.uniform(0.5, 1.05) * seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if out.read_bytes() not in wanted:
            wrong.append(f"merge {number}: the tuning file is neither the old nor the new one")
    return wrong


_COMMAND = "import sys; from scons_gpu.cli import main; sys.exit(main())"


def _build(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "SCons", "-j2"], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode or "it is made again" in done.stderr or "Traceback" in done.stderr:
        raise RuntimeError(done.stdout + done.stderr)


def _artefacts(folder: Path) -> dict[str, bytes]:
    build = folder / "build"
    return {
        str(path.relative_to(build)): path.read_bytes() for path in sorted(build.rglob("*")) if path.is_file() and ".tmp-" not in path.name
    }


def main() -> int:
    """Prints a line per wrong round and the sum."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=50, help="rounds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("folder", nargs="?", type=Path, help="where to work; a temporary folder by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        rounds = Rounds(options.folder or Path(temporary), seed=options.seed)
        wrong = [said for number in range(options.n) if (said := rounds.round()) and not print(f"round {number}: {said}", flush=True)]
        torn = merges(rounds.folder / "merges", rounds=options.n, chance=rounds.random)
    print(f"{options.n} builds killed, {len(wrong)} wrong results; an undisturbed build takes {rounds.seconds:.1f} s")
    print(f"{options.n} merges of tuning files killed, {len(torn)} wrong files", *torn, sep="\n  ")
    wrong += torn
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
