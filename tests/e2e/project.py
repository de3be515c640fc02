"""A small tree of files that is built with the real tool: what every end-to-end test stands on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forks
from elftools.elf.elffile import ELFFile

import scons_gpu
from scons_gpu.store import log

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["CUDA", "HEAD", "IMAGE", "LL_HEAD", "Project", "Result", "default_environ", "device", "ll"]

BUILDERS = Path(scons_gpu.__file__).parents[1]
FACTS: dict[str, bytes] = {}
"""What a store knows of tools, by file name. Good in any store: each fact tells which file, and as of when."""

HEAD = """\
import scons_gpu
env = Environment(tools=["gpu"], toolpath=[scons_gpu.TOOLPATH], GPU_ARCHS=["sm_90"])
"""
"""How a SConstruct begins, unless its test says otherwise."""

CUDA = 'env.Append(GPU_CLANGFLAGS=["-nocudainc", "-include", "words.h"])\n'
"""With this a SConstruct's `.cu` are quick to build: the toolkit's headers take clang longer than all the rest of a small project.
`Project.write` puts words.h beside it, with the words of the language; what reads the real headers leaves it out."""

IMAGE = 'env["GPU_LINK"] = "image"\n'
"""With this a SConstruct's modules are linked by nvlink, where nothing says otherwise."""

WORDS = """\
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
struct ThreadIdx { __declspec(property(get = get_x)) unsigned x; static __device__ unsigned get_x() { return __nvvm_read_ptx_sreg_tid_x(); } };
extern const __device__ ThreadIdx threadIdx;
inline __device__ int atomicAdd(int* place, int by) { return __atomic_fetch_add(place, by, __ATOMIC_RELAXED); }
inline __device__ float sqrtf(float value) { return __nvvm_sqrt_rn_f(value); }
"""

LL_HEAD = """\
target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
"""


def ll(*kernels: str, head: str = "", add: str = "1.0") -> str:
    """A source in LLVM IR, quick to build: each kernel adds a number of its own to an element.

    A name alone adds `add`; `name=2.0` says which, and is the way to make two kernels differ.
    """
    return LL_HEAD + head + "".join(_kernel(*(kernel.split("=") if "=" in kernel else (kernel, add))) for kernel in kernels)


def _kernel(name: str, number: str) -> str:
    return f"""
define ptx_kernel void @{name}(ptr addrspace(1) %data) {{
  %index = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %wide = zext i32 %index to i64
  %place = getelementptr inbounds float, ptr addrspace(1) %data, i64 %wide
  %old = load float, ptr addrspace(1) %place, align 4
  %new = fadd float %old, {number}
  store float %new, ptr addrspace(1) %place, align 4
  ret void
}}
"""


def default_environ(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """What SCons is run with: what is given, or else what this process has, and the tree that is tested."""
    environ = dict(os.environ if given is None else given)
    # The tree that is tested comes first, also where another copy is installed.
    environ["PYTHONPATH"] = str(BUILDERS)
    environ.pop("SCONSFLAGS", None)
    environ.pop("PYTEST_CURRENT_TEST", None)
    return environ


@dataclass(frozen=True)
class Result:
    """What one run came to."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    @cached_property
    def lines(self) -> list[str]:
        """What was printed, without SCons' own lines."""
        return [line for line in self.stdout.splitlines() if not line.startswith("scons: ")]


class Project:
    """A folder with a SConstruct. `stem` is where its program goes; `forked` says that runs of SCons may be forks of one that is loaded."""

    def __init__(self, root: Path, *, environ: Mapping[str, str] | None = None, forked: bool = True) -> None:
        self.root = root
        self.environ = default_environ(environ)
        self.forked = forked
        root.mkdir(parents=True, exist_ok=True)

    def path(self, name: str | Path) -> Path:
        return self.root / name

    def write(self, name: str, text: str) -> Path:
        """Puts a file there. A SConstruct that makes no Environment gets `HEAD`."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name == "SConstruct" and CUDA in text:
            self.write("words.h", WORDS)
        path.write_text(HEAD + text if path.name == "SConstruct" and "Environment(" not in text else text, encoding="utf-8")
        return path

    def edit(self, name: str, old: str, new: str) -> None:
        """Replaces what must be there exactly once."""
        text = self.read(name)
        assert text.count(old) == 1, f"{name} holds {old!r} {text.count(old)} times"
        self.write(name, text.replace(old, new))

    def read(self, name: str | Path) -> str:
        return self.path(name).read_text(encoding="utf-8")

    def bytes(self, name: str | Path) -> bytes:
        return self.path(name).read_bytes()

    def exists(self, name: str | Path) -> bool:
        return self.path(name).exists()

    def files(self, pattern: str = "**/*") -> dict[str, bytes]:
        """Path below the root → content, of the files that match."""
        return {str(path.relative_to(self.root)): path.read_bytes() for path in sorted(self.root.glob(pattern)) if path.is_file()}

    # running

    def start(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        """SCons, started and not waited for, in a process group of its own."""
        self._give_facts()
        return subprocess.Popen(
            [sys.executable, "-m", "SCons", *args],
            cwd=self.root,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )

    def run(self, *args: str, environ: Mapping[str, str] | None = None, timeout: float = 300) -> Result:
        """SCons, to its end, whatever that is."""
        self._give_facts()
        # What Python looks at when it starts must be as it is for the process that forks.
        if self.forked and environ is None and self.environ == default_environ():
            result = Result(*forks.scons(args, folder=self.root, environ=self.environ, timeout=timeout))
        else:
            result = self._run([sys.executable, "-m", "SCons", *args], environ=environ, timeout=timeout)
        self._take_facts()
        return result

    def build(self, *args: str) -> Result:
        """SCons, which must succeed."""
        result = self.run(*args)
        assert result.returncode == 0, result.output
        assert "Traceback" not in result.output, result.output
        return result

    def _give_facts(self) -> None:
        """Into a store that is not there yet go the facts of tools that other projects' builds found out: that takes seconds each time."""
        if FACTS and not self.exists(".gpu-store"):
            for name, data in FACTS.items():
                path = self.path(f".gpu-store/tools/{name}")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

    def _take_facts(self) -> None:
        """Those of tools that other projects see too; a test's own tools lie beside its project."""
        tools, own = self.path(".gpu-store/tools"), str(self.root.parent).encode()
        new = [path for path in tools.glob("??/*.json") if str(path.relative_to(tools)) not in FACTS]
        found = {str(path.relative_to(tools)): path.read_bytes() for path in new}
        FACTS.update({name: data for name, data in found.items() if own not in data})

    def fail(self, *args: str) -> Result:
        """SCons, which must fail, and say why without a traceback."""
        result = self.run(*args)
        assert result.returncode != 0, result.output
        assert "Traceback" not in result.output, result.output
        return result

    def idle(self, *args: str) -> None:
        """Nothing is left to do: `scons -q` says so, and a build does nothing (R4)."""
        asked = self.run("-q", *args)
        assert asked.returncode == 0, f"not up to date:\n{asked.output}"
        before = len(self.records())
        self.build(*args)
        actions = [record for record in self.records()[before:] if record["type"] == "action"]
        assert actions == [], actions

    def command(self, *args: str) -> Result:
        """`scons-gpu`."""
        return self._run([sys.executable, "-c", "import sys; from scons_gpu.cli import main; sys.exit(main())", *args])

    def _run(self, argv: Sequence[str], *, environ: Mapping[str, str] | None = None, timeout: float = 300) -> Result:
        done = subprocess.run(
            argv, cwd=self.root, env={**self.environ, **(environ or {})}, capture_output=True, text=True, timeout=timeout, check=False
        )
        return Result(done.returncode, done.stdout, done.stderr)

    # what was built

    def manifest(self, stem: str = "build/net") -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.read(f"{stem}.json"))
        return data

    def plan(self, module: str, arch: str = "sm_90", stem: str = "build/net") -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.read(f"{stem}/{module}/{arch}.plan.json"))
        return data

    def image(self, module: str, arch: str = "sm_90", stem: str = "build/net") -> Path:
        return self.path(f"{stem}/{module}/{arch}.cubin")

    def kernels(self, module: str, arch: str = "sm_90", stem: str = "build/net") -> list[str]:
        """The entries that the image really holds, sorted, as often as they stand there."""
        return sorted(name for name, kind, entry in self.symbols(module, arch, stem) if kind == "STT_FUNC" and entry)

    def symbols(self, module: str, arch: str = "sm_90", stem: str = "build/net") -> list[tuple[str, str, bool]]:
        """(name, ELF type, whether it is an entry) of what the image defines."""
        with self.image(module, arch, stem).open("rb") as file:
            table = ELFFile(file).get_section_by_name(".symtab")
            data, size = table.data(), table["sh_entsize"]
            # Bit 4 of st_other marks an entry (NVIDIA's STO_CUDA_ENTRY); pyelftools keeps the others only.
            return [
                (symbol.name, symbol["st_info"]["type"], bool(data[number * size + 5] & 0x10))
                for number, symbol in enumerate(table.iter_symbols())
                if symbol["st_shndx"] != "SHN_UNDEF"
            ]

    def variables(self, module: str, arch: str = "sm_90", stem: str = "build/net") -> list[str]:
        """The data symbols that the image defines, sorted, as often as they stand there."""
        return sorted(name for name, kind, _ in self.symbols(module, arch, stem) if kind == "STT_OBJECT")

    # what was done

    def records(self, store: str = ".gpu-store") -> list[dict[str, Any]]:
        """The build log."""
        return list(log.read(self.path(store) / "log.jsonl"))

    def last(self, store: str = ".gpu-store") -> list[dict[str, Any]]:
        """The actions of the last build that did not only look."""
        records = self.records(store)
        starts = [record["build"] for record in records if record["type"] == "start" and not record["looking"]]
        return [record for record in records if record["type"] == "action" and starts and record["build"] == starts[-1]]

    def done(self, store: str = ".gpu-store") -> Counter[str]:
        """Stage → how often it ran in the last build. Empty where there was nothing to do."""
        return Counter(record["stage"] for record in self.last(store) if record["result"] in ("built", "deferred"))

    def compiled(self, store: str = ".gpu-store") -> list[str]:
        """The readable names of what was lowered in the last build, sorted; state and tables left out."""
        return sorted(
            record["name"]
            for record in self.last(store)
            if record["stage"] == "lower" and record["result"] == "built" and record.get("role") == "unit"
        )

    def failed(self, store: str = ".gpu-store") -> list[str]:
        return sorted(record["name"] for record in self.last(store) if record["result"] == "failed")

    def stats(self, *args: str) -> dict[str, Any]:
        """What `scons-gpu stats --json` says."""
        result = self.command("stats", "--json", *args)
        assert result.returncode == 0, result.output
        data: dict[str, Any] = json.loads(result.stdout)
        return data


def device() -> str:
    """Why kernels cannot be launched here; empty where they can."""
    try:
        from cuda.bindings import driver  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        return "cuda-python is not installed"
    try:
        error, count = driver.cuInit(0)[0], driver.cuDeviceGetCount()
    except RuntimeError as missing:  # no libcuda on this machine
        return f"no CUDA driver: {missing}".splitlines()[0]
    if error != driver.CUresult.CUDA_SUCCESS:
        return f"cuInit says {error.name}"
    return "" if count[1] else "no CUDA device"
