"""A module in one piece: its sources' IR linked, all but kernels and what the host may name made internal, optimised and printed as PTX.

This is the reference that `compare` holds a build against, so it leans on nothing that builds: not on the split, the plan, the store or
the workers. It repeats in code of its own the recipes that `lower.llvm` and `lower.nvvm` write down. It is a program of its own (a request
on stdin, the PTX on stdout) because LLVM may abort.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import GpuError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Request", "build", "kernels", "visible_state"]

_DEBUG = re.compile(r'(!"Debug Info Version", i32 )\d+')  # LLVM's reader drops debug information of a version that it does not know
_FLUSH = '"denormal-fp-math-f32"="preserve-sign,preserve-sign"'
# How LLVM answers libdevice's `__nvvm_reflect("__CUDA_FTZ")`.
_FTZ_FLAG = '!llvm.module.flags = !{!0}\n!0 = !{i32 4, !"nvvm-reflect-ftz", i32 1}\n'
_FTZ = re.compile(r'(!"nvvm-reflect-ftz", i32 )\d+')
_GROUP = re.compile(r" #\d+\b")
_PARAMETERS = re.compile(r"^.*\)(?: (?:local_)?unnamed_addr)?(?: addrspace\(\d+\))?")
_TRIPLE = "nvptx64-nvidia-cuda"
_KERNEL = re.compile(r'^define [^@"]*\bptx_kernel\b[^@"]*@("(?:[^"])*"|[-$.\w]+)\(', re.MULTILINE)
# The words before `global` or `constant` name linkage and address space; a declaration says `external` or `extern_weak`.
_VARIABLE = re.compile(r'^@("(?:[^"])*"|[-$.\w]+) = ([^"@={\[]*?)\b(global|constant) ', re.MULTILINE)
_HIDDEN = {"private", "internal", "external", "extern_weak", "available_externally", "appending"}


@dataclass(frozen=True)
class Request:
    """One undivided build."""

    sources: tuple[str, ...]
    """Paths of IR files, all of one architecture."""
    cpu: str
    """As LLVM calls the architecture: `sm_90a`."""
    ptx: int
    """PTX version, 88 for 8.8."""
    opt: int = 3
    ftz: bool = False
    fast_math: bool = False
    keep_debug: bool = False
    """Whether debug information goes into the PTX."""
    debug: bool = False
    """Whether that is for debugging, not for lines alone; libNVVM wants to know."""
    libdevice: str = ""
    """Path of libdevice's bitcode, linked in whole; empty leaves its functions undefined."""
    kernels: tuple[str, ...] = ()
    """Those that are kept; empty keeps all."""
    visible: tuple[str, ...] = ()
    """Private variables that are made visible, as the image of a divided build has them."""
    nvvm: str = ""
    """Path of the libNVVM that lowers; empty where LLVM does."""


def build(request: Request) -> str:
    """The PTX, made in a process of its own. Raises SourceError with what LLVM said."""
    command = [sys.executable, "-m", __spec__.name if __spec__ else "scons_gpu.inspect.undivided"]
    folders = [folder for folder in sys.path if folder]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    done = subprocess.run(command, input=json.dumps(asdict(request)), capture_output=True, text=True, env=environ, check=False)
    if done.returncode:
        msg = "the undivided module could not be lowered" if done.returncode > 0 else f"LLVM was ended by signal {-done.returncode}"
        raise SourceError(msg, arch=request.cpu, output=done.stderr)
    return done.stdout


def kernels(text: str) -> tuple[str, ...]:
    """Symbols of the entry points in printed IR (LLVM has turned `nvvm.annotations` into the calling convention while parsing)."""
    return tuple(_plain(match[1]) for match in _KERNEL.finditer(text))


def visible_state(text: str) -> tuple[str, ...]:
    """Symbols of variables that the host may set or read: they stay visible, since nobody may assume what they hold."""
    return tuple(_plain(match[1]) for match in _VARIABLE.finditer(text) if _is_visible_state(match[2].split(), kind=match[3]))


def _is_visible_state(words: list[str], *, kind: str) -> bool:
    outlives = kind == "global" or "externally_initialized" in words
    return outlives and not _HIDDEN & set(words) and "addrspace(3)" not in words


def _plain(name: str) -> str:
    """A name as it is, without the quotes and escapes of printed IR."""
    if not name.startswith('"'):
        return name
    raw = re.sub(rb"\\([0-9A-Fa-f]{2})", lambda match: bytes([int(match[1], 16)]), name[1:-1].encode())
    return raw.decode(errors="surrogateescape")


def _lower(request: Request) -> str:
    import llvmlite.binding as llvm  # noqa: PLC0415 - only the process that lowers loads LLVM

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(_TRIPLE).create_target_machine(
        cpu=request.cpu, features="" if request.nvvm else f"+ptx{request.ptx}", opt=request.opt
    )
    module = _linked(llvm, request, machine)
    text = str(module)
    _close(llvm, module, machine, kept=(*(request.kernels or kernels(text)), *visible_state(text), *request.visible))
    module.verify()
    if request.nvvm:
        from scons_gpu.inspect.undivided_nvvm import by_nvvm  # noqa: PLC0415 - only for builds that it lowered

        return by_nvvm(str(module), request)
    _optimise(llvm, module, machine, level=request.opt)
    return str(machine.emit_assembly(module))


def _linked(llvm: Any, request: Request, machine: Any) -> Any:  # noqa: ANN401 - llvmlite has no types
    """The sources and libdevice as one module, with what the options say of the whole written into its text."""
    context = llvm.create_context()
    module = _read(llvm, request.sources[0], context, machine)
    for source in request.sources[1:]:
        module.link_in(_read(llvm, source, context, machine))
    if request.libdevice and "@__nv_" in str(module):
        library = str(_read(llvm, request.libdevice, context, machine))
        if not request.fast_math:
            library = precise_sqrt(library)
        module.link_in(llvm.parse_assembly(library, context))
    text = str(module) if request.keep_debug else _DEBUG.sub(r"\g<1>0", str(module))
    fresh = llvm.create_context()
    if not (request.ftz or request.fast_math):
        return llvm.parse_assembly(text, fresh)
    module = llvm.parse_assembly(flushing(_FTZ.sub(r"\g<1>1", text)), fresh)
    if not _FTZ.search(text):
        module.link_in(llvm.parse_assembly(_FTZ_FLAG, fresh))
    return module


def _read(llvm: Any, path: str, context: Any, machine: Any) -> Any:  # noqa: ANN401 - llvmlite has no types
    with open(path, "rb") as file:  # noqa: PTH123 - no Path is worth its import here
        data = file.read()
    bitcode = data[:2] == b"BC" or data[:4] == b"\xde\xc0\x17\x0b"
    module = llvm.parse_bitcode(data, context) if bitcode else llvm.parse_assembly(data.decode(), context)
    module.data_layout = module.data_layout or str(machine.target_data)
    module.triple = _TRIPLE
    return module


def precise_sqrt(text: str) -> str:
    """Libdevice asks whether square roots are to be exact; LLVM's own answer to a question that it does not know would be no."""
    name = re.search(r'^(@[-$._\w]+) = [^\n]*c"__CUDA_PREC_SQRT\\00"', text, re.MULTILINE)
    if not name:
        return text
    asked = rf"(%[-$._\w]+) = (?:tail )?call (?:[a-z]+ )*i32 @__nvvm_reflect\([^\n]*{re.escape(name[1])}\b[^\n]*"
    return re.sub(asked, r"\1 = add i32 1, 0", text)


def flushing(text: str) -> str:
    """Every function flushes single precision denormals unless it says something of its own: written into the text, for want of a call."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line.startswith("attributes #") and "denormal-fp-math-f32" not in line:
            lines[number] = line.replace("{", "{ " + _FLUSH, 1)
        elif line.startswith("define ") and not _GROUP.search(line):
            head, group, rest = line.partition(" comdat(")
            lines[number] = _PARAMETERS.sub(rf"\g<0> {_FLUSH}", head, count=1) + group + rest
    return "\n".join(lines)


def _close(llvm: Any, module: Any, machine: Any, *, kept: Iterable[str]) -> None:  # noqa: ANN401 - llvmlite has no types
    """Makes everything internal but `kept`.

    LLVM's pass also takes functions out of their COMDAT groups, but knows no list here: it takes all, and `kept` is given back.
    """
    passes = llvm.create_new_module_pass_manager()
    passes.add_internalize_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(0)))
    names = set(kept)
    for value in [*module.functions, *module.global_variables]:
        if value.name in names:
            value.linkage = "external"
        elif value.is_function and not value.is_declaration:
            value.linkage = "internal"  # what llvm.used names was left alone


def _optimise(llvm: Any, module: Any, machine: Any, *, level: int) -> None:  # noqa: ANN401 - llvmlite has no types
    tuning = llvm.create_pipeline_tuning_options(level)
    tuning.loop_vectorization = tuning.slp_vectorization = level > 1
    tuning.loop_interleaving = tuning.loop_unrolling = level > 1  # as clang sets it
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)


def _main() -> int:
    data = json.load(sys.stdin)
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    request = Request(**fields)
    try:
        sys.stdout.write(_lower(request))
    except (GpuError, RuntimeError, OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
