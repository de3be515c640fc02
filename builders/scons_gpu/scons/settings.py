"""The GPU_ variables: one table of names, defaults and meanings, and what an environment sets them to."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.assemble.choose import ALONE, COMPILERS, LINKERS, known
from scons_gpu.assemble.provider import AssembleOptions
from scons_gpu.errors import UsageError
from scons_gpu.scons.later import later
from scons_gpu.scons.layers import NVCC, Layers, without, words
from scons_gpu.source.options import ClangOptions
from scons_gpu.source.translation import Translation
from scons_gpu.toolchain import arch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from scons_gpu.source import nvcc_flags
else:
    nvcc_flags = later("scons_gpu.source.nvcc_flags")

__all__ = [
    "ASSEMBLING",
    "PER_SOURCE",
    "VARIABLES",
    "Settings",
    "check_names",
    "front_end",
    "host_flags",
    "misspelt",
    "nvcc",
    "nvcc_host",
    "read",
    "relocatable",
    "remarks",
    "set_defaults",
    "stores",
]

_DEVICE_STEPS = ("source", "split", "plan", "lower", "assemble", "defer", "verify", "choose", "link", "pack")
STEPS = (*_DEVICE_STEPS, "manifest", "embed", "release", "budget", "dump", "host", "library", "register", "report")

VARIABLES: dict[str, tuple[Any, str]] = {
    "GPU_ARCHS": ((), "architectures, as sm_90, 90a, compute_90 or 8.6+PTX; there is no default"),
    "GPU_OPT": (3, "optimisation level of what lowers and of the assembler, 0 to 3"),
    "GPU_LINK": (
        "auto",
        "auto: merge or image; merge: one cubin of whole objects; image: one linked cubin; whole: assembled in one piece; bundle: apart",
    ),
    "GPU_LOWER": ("auto", "auto: libNVVM where it reads our IR, else LLVM; llvm; nvvm: an error where libNVVM does not"),
    "GPU_PROVIDER": ("auto", "what assembles and links: auto, ptxas, nvptxcompiler, nvjitlink, driver, none, or a pair as ptxas+nvjitlink"),
    "GPU_DEFER": ("auto", "auto: PTX goes to the link only where nothing makes objects; always: relocatable assembly counts as absent"),
    "GPU_FRONTEND": ("auto", "what compiles .cu: auto, clang, nvcc or nvrtc"),
    "GPU_CLANG": ("", "path of clang"),
    "GPU_CLANGFLAGS": ((), "further flags for clang"),
    "GPU_HOST": ("clang", "what compiles the host's half of a .cu in a program: clang, or nvcc, which compiles both halves in one piece"),
    "GPU_HOSTFLAGS": ((), "further flags for the host's half of a .cu in a program"),
    "GPU_RDC": (False, "device code of a program calls across its .cu: they are one module, linked once for each program"),
    "GPU_NVCCFLAGS": ((), "flags in nvcc's spelling, whatever compiles: docs/from-nvcc.md"),
    "GPU_CUDA_PATH": ("", "folder of the CUDA toolkit whose ptxas and nvlink are used"),
    "GPU_CUDA_HEADERS": ("", "folder of the CUDA headers that clang reads, 12.9 or older"),
    "GPU_PTXASFLAGS": ((), "further flags for the assembler"),
    "GPU_MAXRREGCOUNT": ("", "registers per thread at most"),
    "GPU_FAST_MATH": (False, "fast, less exact arithmetic in .cu sources"),
    "GPU_FTZ": (False, "flush denormal floats to zero"),
    "GPU_LINEINFO": (False, "line numbers for profilers"),
    "GPU_DEBUG": (False, "device debugging: -g and no optimisation"),
    "GPU_FAIL_ON_SPILL": (False, "fail where a kernel spills registers"),
    "GPU_WARN_ON_SPILL": (False, "tell of kernels that spill registers"),
    "GPU_STORE": ("#.gpu-store", "folder of compiled units; of a list the first is written, the others are only read"),
    "GPU_TUNING": ((), "tuning files, which decide between candidates; the first that knows wins"),
    "GPU_DUMP": ("", "folder for each unit's slice, optimised IR, PTX and machine code, to be read"),
    "GPU_CANDIDATE_SECONDS": ("", "CPU seconds that a candidate may take, after the first of its kernel"),
    "GPU_SHARE_TWINS": (False, "kernels of one body and different names share one object of a bundle"),
    "GPU_VERIFY_REUSE": (False, "compile again what the store holds, and fail where the result differs"),
    **{f"GPU_{step.upper()}COMSTR": (f"{step:<9} $GPU_NAME", f"line of a {step} step; empty for the whole command") for step in STEPS},
}
"""Name → (default, meaning)."""

_DEFAULTS = {name: default for name, (default, _) in VARIABLES.items()}

PER_SOURCE = {
    "CPPDEFINES": "defines",
    "CPPPATH": "cpppath",
    "GPU_CLANGFLAGS": "flags",
    "GPU_NVCCFLAGS": "nvcc_flags",
    "GPU_FAST_MATH": "fast_math",
    "GPU_FTZ": "ftz",
}
"""What one source may have of its own → the field of `ClangOptions` that it becomes."""
CHOICES = {
    "GPU_LINK": ("auto", "merge", "image", "whole", "bundle"),
    "GPU_LOWER": ("auto", "llvm", "nvvm"),
    "GPU_DEFER": ("auto", "always"),
    "GPU_FRONTEND": ("auto", "clang", "nvcc", "nvrtc"),
    "GPU_HOST": ("clang", "nvcc"),
}


ASSEMBLING = {
    "opt": "GPU_OPT",
    "lineinfo": "GPU_LINEINFO",
    "debug": "GPU_DEBUG",
    "maxrregcount": "GPU_MAXRREGCOUNT",
    "flags": "GPU_PTXASFLAGS",
    "fail_on_spill": "GPU_FAIL_ON_SPILL",
    "warn_on_spill": "GPU_WARN_ON_SPILL",
}
"""Fields of `AssembleOptions` → the variables that set them."""


@dataclass(frozen=True)
class Settings:
    """What one module is built with."""

    archs: tuple[arch.Target, ...]
    opt: int
    link: str
    lower: str
    provider: str
    defer: str
    ftz: bool
    fast_math: bool
    lineinfo: bool
    debug: bool
    share_twins: bool
    verify_reuse: bool
    assemble: AssembleOptions
    clang: str
    cuda_path: str
    cuda_headers: str
    store: tuple[Path, ...]
    frontend: str = "auto"
    host: str = "clang"
    tuning: tuple[Any, ...] = ()
    """Files that decide between candidates, as nodes."""
    candidate_seconds: float | None = None
    dump: Path | None = None
    """Folder for what units become on their way."""
    auto: bool = False
    """Whether `link` is what `GPU_LINK=auto` came to."""

    @property
    def environment(self) -> dict[str, str]:
        """Where the user said the tools are, as variables for a command run by hand."""
        return {"GPU_CUDA_PATH": self.cuda_path, "GPU_CUDA_HEADERS": self.cuda_headers, "GPU_CLANG": self.clang}


def set_defaults(env: Any) -> None:
    """Sets what the user has not set."""
    env.SetDefault(**{name: value for name, (value, _) in VARIABLES.items()})


def check_names(arguments: Mapping[str, Any]) -> None:
    """Raises UsageError for a GPU_ variable of the command line that does not exist. Other names there are the user's own."""
    for name in arguments:
        if name.startswith("GPU_") and name not in VARIABLES:
            raise _no_such(name)


def _check_overrides(overrides: Mapping[str, Any]) -> None:
    for name in overrides:
        if name not in VARIABLES and name not in PER_SOURCE:
            raise _no_such(name)
        if name == "GPU_VERIFY_REUSE":
            msg = f"{name} cannot be set here"
            raise UsageError(msg, hint="a unit may belong to several modules: set it on the command line or for the environment")
        if name.endswith("COMSTR"):
            msg = f"{name} cannot be set here"
            raise UsageError(msg, hint="a unit may belong to several modules: set its lines for the environment")


def misspelt(env: Any) -> list[str]:
    """A sentence for each variable of `env` that reads like one of ours and is none. It may be the user's own: no error."""
    strange = [name for name in env.Dictionary() if name.startswith("GPU_") and name not in VARIABLES]
    if not strange:
        return []
    import difflib  # noqa: PLC0415 - for a mistake alone

    near = {name: difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.85) for name in strange}
    return [f"{name} is set and means nothing; is {found[0]} meant?" for name, found in near.items() if found]


def _no_such(name: str) -> UsageError:
    import difflib  # noqa: PLC0415 - for a mistake alone

    near = difflib.get_close_matches(name, [*VARIABLES, "CPPDEFINES", "CPPPATH", "submodules", "bypass"], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "the variables are listed in docs/modules.md"
    return UsageError(f"there is no variable {name}", hint=hint)


def read(
    env: Any, arguments: Mapping[str, Any], overrides: Mapping[str, Any], *, supported: Callable[[Settings], Collection[int]]
) -> Settings:
    """What `env` says, with the command line's `arguments` over it, and a module's own `overrides` over both.

    `supported` gives the architectures that the tools of these settings know: what `all` means. Only that word asks for it.
    """
    _check_overrides(overrides)
    get = _getter(env, arguments, overrides)
    debug = _flag("GPU_DEBUG", get)
    opt = 0 if debug else _number("GPU_OPT", get, low=0, high=3)
    registers = get("GPU_MAXRREGCOUNT")
    chosen = {name: _choice(name, get) for name in CHOICES}  # all of them, so that none is taken for granted
    found = Settings(
        archs=(),
        opt=opt,
        link=chosen["GPU_LINK"],
        lower=chosen["GPU_LOWER"],
        frontend=chosen["GPU_FRONTEND"],
        host=chosen["GPU_HOST"],
        provider=_provider(get),
        defer=chosen["GPU_DEFER"],
        ftz=_flag("GPU_FTZ", get) or _flag("GPU_FAST_MATH", get),
        fast_math=_flag("GPU_FAST_MATH", get),
        lineinfo=_flag("GPU_LINEINFO", get),
        debug=debug,
        share_twins=_flag("GPU_SHARE_TWINS", get),
        verify_reuse=_flag("GPU_VERIFY_REUSE", get),
        assemble=AssembleOptions(
            opt=opt,
            lineinfo=_flag("GPU_LINEINFO", get),
            debug=debug,
            maxrregcount=None if registers in ("", None) else _number("GPU_MAXRREGCOUNT", get, low=16, high=255),
            flags=_words(env, get("GPU_PTXASFLAGS")),
            fail_on_spill=_flag("GPU_FAIL_ON_SPILL", get),
            warn_on_spill=_flag("GPU_WARN_ON_SPILL", get),
        ),
        clang=_path(env, get("GPU_CLANG")),
        cuda_path=_path(env, get("GPU_CUDA_PATH")),
        cuda_headers=_path(env, get("GPU_CUDA_HEADERS")),
        store=_stores(env, get("GPU_STORE")),
        tuning=_tuning(env, arguments, overrides),
        candidate_seconds=_seconds("GPU_CANDIDATE_SECONDS", get),
        dump=_dump(env, get("GPU_DUMP")),
    )
    return replace(found, archs=_archs(get("GPU_ARCHS"), lambda: supported(found)))


def front_end(env: Any, arguments: Mapping[str, Any], overrides: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> ClangOptions:
    """What the front end is told for one source; `own` is what was set for it alone."""
    module = _getter(env, arguments, overrides)
    get = _getter(env, arguments, {**overrides, **own}) if own else module
    flags = _words(env, get("GPU_CLANGFLAGS"))
    defines = _defines(env, get("CPPDEFINES"))
    std = any(flag.startswith("-std=") for flag in flags)  # one dialect: nvcc would take the last, whoever said it
    return ClangOptions(
        cpppath=_cpppath(env, [get("CPPPATH") or (), *get.nvcc.all("CPPPATH")]),
        defines=(*without(defines, get.nvcc.all("CPPDEFINES")), *defines),
        flags=flags,
        from_nvcc=tuple(flag for flag in get.nvcc.all("GPU_CLANGFLAGS") if not (std and flag.startswith("-std="))),
        nvcc_flags=tuple(flag for flag in get.nvcc.passed("nvcc", "nvrtc") if not (std and flag.startswith("--std="))),
        fast_math=_flag("GPU_FAST_MATH", get),
        ftz=_flag("GPU_FTZ", get),
        lineinfo=_flag("GPU_LINEINFO", module),
        debug=_flag("GPU_DEBUG", module),
    )


def host_flags(
    env: Any, arguments: Mapping[str, Any], overrides: Mapping[str, Any], *, shared: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The project's flags for C++, as SCons' own builders would give them, and GPU_HOSTFLAGS."""
    variables = "$SHCXXFLAGS $SHCCFLAGS $CPPFLAGS" if shared else "$CXXFLAGS $CCFLAGS $CPPFLAGS"
    return _words(env, variables), _words(env, _getter(env, arguments, overrides)("GPU_HOSTFLAGS"))


def remarks(env: Any, arguments: Mapping[str, Any], overrides: Mapping[str, Any]) -> list[str]:
    """What is to be told of GPU_NVCCFLAGS."""
    return _getter(env, arguments, overrides).remarks()


def nvcc_host(env: Any, arguments: Mapping[str, Any], overrides: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The flags that nvcc is given as they are where it makes the objects of programs; None where clang does. Raises UsageError."""
    get = _getter(env, arguments, overrides)
    return get.nvcc.passed("object") if _choice("GPU_HOST", get) == "nvcc" else None


def stores(env: Any, arguments: Mapping[str, Any], overrides: Mapping[str, Any]) -> tuple[Path, ...]:
    """The folders of units alone, for what has no architectures of its own."""
    return _stores(env, _getter(env, arguments, overrides)("GPU_STORE"))


def relocatable(env: Any, arguments: Mapping[str, Any], overrides: Mapping[str, Any]) -> bool:
    """Whether device code of a program is linked across its sources. Raises UsageError for a value that is neither yes nor no."""
    return _flag("GPU_RDC", _getter(env, arguments, overrides))


def _getter(env: Any, arguments: Mapping[str, Any], overrides: Mapping[str, Any]) -> Layers:
    places = (overrides, {name: value for name, value in arguments.items() if name in VARIABLES}, env)
    level = next((level for level, place in enumerate(places) if NVCC in place), len(places) - 1)
    return Layers(env, places, _DEFAULTS, nvcc(env, places[level].get(NVCC)), level)


def nvcc(env: Any, value: Any) -> Translation:
    """What GPU_NVCCFLAGS comes to: a line of a Makefile, or a list of such and of nodes."""
    return nvcc_flags.translate(_expanded(env, words(env, value))) if value else Translation()


def _archs(value: Any, supported: Callable[[], Collection[int]]) -> tuple[arch.Target, ...]:
    text = value if isinstance(value, str) else [str(item) for item in value or ()]
    if not text:
        msg = "GPU_ARCHS is not set"
        raise UsageError(
            msg, hint='say which GPUs to build for, as in Environment(tools=["default", "gpu"], GPU_ARCHS=["sm_80", "compute_90"])'
        )
    return arch.parse(text, general=supported()) if "all" in str(text).lower() else arch.parse(text)


def _flag(name: str, get: Any) -> bool:
    value = get(name)
    if isinstance(value, str):
        known = {"": False, "0": False, "no": False, "false": False, "off": False, "1": True, "yes": True, "true": True, "on": True}
        if value.lower() not in known:
            msg = f"{name}={value} is neither yes nor no"
            raise UsageError(msg, hint="use 0 or 1")
        return known[value.lower()]
    return bool(value)


def _number(name: str, get: Any, *, low: int, high: int) -> int:
    value = get(name)
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = low - 1
    if not low <= number <= high:
        msg = f"{name}={value} is not a number from {low} to {high}"
        raise UsageError(msg)
    return number


def _seconds(name: str, get: Any) -> float | None:
    value = get(name)
    if value in {"", None}:
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        msg = f"{name}={value} is not a number of seconds above 0"
        raise UsageError(msg)
    return seconds


def _tuning(env: Any, arguments: Mapping[str, Any], overrides: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the command line names is seen from the top, where it was written, whichever SConscript is being read."""
    files = _files(env, _getter(env, arguments, overrides)("GPU_TUNING"))
    if "GPU_TUNING" in arguments and "GPU_TUNING" not in overrides:
        files = [file if file.startswith(("/", "#")) else f"#{file}" for file in files]
    try:
        return tuple(env.arg2nodes(files, env.fs.File))
    except TypeError as error:  # SCons' word for a folder where a file is wanted
        msg = f"GPU_TUNING: {error}"
        raise UsageError(msg, hint="it names files that scons-gpu bench writes") from None


def _files(env: Any, value: Any) -> list[Any]:
    """Names of files, in a list or in a string with spaces between them, as the command line has it."""
    return list(env.Split(value)) if isinstance(value, str) else list(env.Flatten([value])) if value else []


def _choice(name: str, get: Any) -> str:
    value = str(get(name))
    if value not in CHOICES[name]:
        msg = f"{name}={value} is not known"
        raise UsageError(msg, hint=f"it is one of {', '.join(CHOICES[name])}")
    return value


def _provider(get: Any) -> str:
    value = str(get("GPU_PROVIDER"))
    if not known(value):
        msg = f"GPU_PROVIDER={value} is not known"
        pair = f"a pair of {', '.join(COMPILERS)} and {', '.join(LINKERS)}, as nvptxcompiler+nvlink"
        raise UsageError(msg, hint=f"it is auto, {', '.join(ALONE)}, or {pair}")
    return value


def _words(env: Any, value: Any) -> tuple[str, ...]:
    """Flags, from a string as the shell would split it or a list. Files of flags are read here: an edit of one edits the flags."""
    words = [str(word) for word in env.subst_list(env.Split(value) if isinstance(value, str) else env.Flatten([value or ()]))[0]]
    return _expanded(env, words)


def _expanded(env: Any, words: list[str]) -> tuple[str, ...]:
    """Flags with those of the files that they name."""
    flags: list[str] = []
    while words:
        word = words.pop(0)
        option, equals, path = word.partition("=")
        if option in ("--options-file", "-optf"):
            words = [*_read_flags(env, path if equals else words.pop(0) if words else ""), *words]
        elif word.startswith("@"):
            words = [*_read_flags(env, word[1:]), *words]
        else:
            flags.append(word)
    return tuple(flags)


def _read_flags(env: Any, path: str) -> list[str]:
    try:
        return shlex.split(Path(env.File(path).rfile().get_abspath()).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"file of flags {path}: {getattr(error, 'strerror', None) or error}"
        raise UsageError(msg) from None


def _path(env: Any, value: Any) -> str:
    text = str(env.subst(str(value or "")))
    return str(env.Dir(text).get_abspath()) if text.startswith("#") else text


def _stores(env: Any, value: Any) -> tuple[Path, ...]:
    items = value if isinstance(value, (list, tuple)) else [value]
    return tuple(_folder(env, item) for item in items)


def _dump(env: Any, value: Any) -> Path | None:
    """The folder that is named. A flag is none: who sets one has the candidates' dump in mind."""
    if str(value).lower() in {"0", "1", "yes", "no", "true", "false", "on", "off"}:
        msg = f"GPU_DUMP={value} names no folder"
        raise UsageError(msg, hint="as in GPU_DUMP=dump, or leave it empty; what scons-gpu bench measures, scons gpu-dump makes")
    if not value:
        return None
    folder = _folder(env, value)
    taken = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder.parent)
    if not taken.is_dir():
        msg = f"GPU_DUMP={value}: {taken} is no folder"
        raise UsageError(msg, hint="name a folder; one that is not there yet is made")
    return folder


def _folder(env: Any, item: Any) -> Path:
    """Where a folder is, seen from the top: a program has one store, whichever SConscripts declare its modules.

    No node is made: SCons has its own words for a file in a folder's place.
    """
    if hasattr(item, "get_abspath"):
        return Path(item.get_abspath())
    text = str(env.subst(str(item)))
    below = text[1:].lstrip("/") if text.startswith("#") else text
    return Path(os.path.normpath(Path(env.Dir("#").get_abspath(), below)))


def _cpppath(env: Any, value: Any) -> tuple[str, ...]:
    """Include folders as clang is given them: below the top where they are; a variant folder with its source folder behind it."""
    paths: list[str] = []
    for item in env.Flatten([value]) if value else ():
        node = env.Dir(env.subst(str(item)))
        paths += [str(node.get_path()), str(node.srcnode().get_path())]
    return tuple(dict.fromkeys(paths))


def _defines(env: Any, value: Any) -> tuple[str, ...]:
    """CPPDEFINES in any of SCons' spellings, as NAME or NAME=VALUE."""
    from SCons.Defaults import processDefines  # noqa: PLC0415 - SCons is there when this runs, not when docs import the table

    return tuple(env.subst(str(define)) for define in processDefines(value)) if value else ()
