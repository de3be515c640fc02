"""Every option of nvcc, and what becomes of it here: one table, from which docs/from-nvcc.md is checked.

A row says what a flag is mapped to, why it can be ignored, or what to do in its place. Where the value decides, an option has several
rows, and the first that fits holds. Spellings are those of `nvcc --help` (13.5); a test reads that and misses none.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

__all__ = ["ALL", "ATTACHED", "FRONT", "IGNORED", "LIST", "MAPPED", "NONE", "OBJECT", "ONE", "REFUSED", "TABLE", "TOLD", "Row", "rows"]

Does = Literal["mapped", "ignored", "told", "refused"]
Takes = Literal["none", "one", "list"]

MAPPED: Does = "mapped"
IGNORED: Does = "ignored"
"""Nothing is lost by it."""
TOLD: Does = "told"
"""Ignored, and said once: speed or a warning is lost, never what the code computes."""
REFUSED: Does = "refused"

NONE: Takes = "none"
ONE: Takes = "one"
LIST: Takes = "list"

OBJECT = ("object",)
"""Passed on by GPU_HOST=nvcc, which makes host objects."""
FRONT = ("nvcc", "object")
"""And by GPU_FRONTEND=nvcc."""
ALL = ("nvcc", "nvrtc", "object")
"""And by GPU_FRONTEND=nvrtc."""

ATTACHED = frozenset("IDUlLOtm")
"""Letters whose value may follow without a blank. Of the last three it is a number."""


@dataclass(frozen=True)
class Row:
    """One option, or one option with one value."""

    long: str
    """As `nvcc --help` has it, without the two dashes."""
    short: str
    """The other name, without its dash."""
    takes: Takes
    does: Does
    why: str
    """What it becomes, why it can be ignored, or what to do instead."""
    _: KW_ONLY
    to: str = ""
    """The variable that it is mapped to; of a list, one for each value."""
    sets: str | bool = "{}"
    """What that becomes; words parted by a blank where it is clang's flags, with the value for `{}`."""
    value: str = ""
    """The value that the row is for; empty for any other."""
    kept: tuple[str, ...] = ()
    """Who is given the flag as it is where clang is not asked: see `ALL`."""
    documented: bool = True
    """Whether `nvcc --help` has it."""

    @property
    def names(self) -> tuple[str, ...]:
        """With their dashes."""
        return tuple(dict.fromkeys(name for name in (f"--{self.long}", f"-{self.short}" if self.short else "") if name))

    @property
    def spelling(self) -> str:
        """The usual one, with the row's value."""
        return f"{self.names[-1]} {self.value}" if self.value else self.names[-1]


def rows(name: str) -> tuple[Row, ...]:
    """Those of an option, by either name, in the order in which they are tried; none for a name that nvcc does not know."""
    return _BY_NAME.get(name, ())


_TILE = "tile code is not divided into kernels: have nvcc compile it, in an env.Command of its own"
_WHOLE = "only nvcc makes it: call nvcc in an env.Command of its own"
_WINDOWS = "for Windows"
_FOUND = "headers are found without being asked for"
_LTO = "what a kernel calls, in other sources of its module too, is compiled into it before it is optimised"
_NUMBERS = "the numbers are nvcc's own; clang's warnings have names, for GPU_CLANGFLAGS"
_STUBS = "clang has rules of its own for launch stubs and device variables"
_FATBIN = "how a fatbin is packed changes nothing for who loads it"
_KEEP = "what lies between is kept below the program's folder; GPU_DUMP=DIR has what became of each kernel"
_TIMES = "scons-gpu stats, and the store's log, have what each step took"
_ASKED = "it is a question, not a build: scons-gpu doctor answers"
_LINKER = "the project's own linker links: LINKFLAGS"
_EXACT = "{} stay exact, and so slower; GPU_FAST_MATH has the fast ones"
_DEFAULT = "the default here too"

TABLE: tuple[Row, ...] = (
    # What to make. SCons' builders say that.
    Row("cuda", "cuda", NONE, REFUSED, _WHOLE),
    Row("cubin", "cubin", NONE, REFUSED, 'env.Cubin("k.cubin", ["k.cu"]) makes one'),
    Row("fatbin", "fatbin", NONE, REFUSED, "env.GpuProgram makes one for each module, env.Fatbin of cubins and PTX"),
    Row("ptx", "ptx", NONE, REFUSED, 'env.Ptx("k.ptx", ["k.cu"]) makes it'),
    Row("optix-ir", "optix-ir", NONE, REFUSED, _WHOLE),
    Row("ltoir", "ltoir", NONE, REFUSED, _WHOLE),
    Row("enable-tile", "enable-tile", NONE, REFUSED, _TILE),
    Row("tile-preview", "tile-preview", ONE, REFUSED, _TILE),
    Row("tile-only", "tile-only", NONE, REFUSED, _TILE),
    Row("simt-only", "simt-only", NONE, IGNORED, _DEFAULT),
    Row("tilebc", "tilebc", NONE, REFUSED, _TILE),
    Row("tilecubin", "tilecubin", NONE, REFUSED, _TILE),
    Row("tilefatbin", "tilefatbin", NONE, REFUSED, _TILE),
    Row("tileiras-options", "Xtileiras", LIST, REFUSED, _TILE),
    Row("preprocess", "E", NONE, REFUSED, "nothing here ends with preprocessed text: env.Command with clang or nvcc does"),
    Row("generate-dependencies", "M", NONE, REFUSED, f"{_FOUND}: leave the rule out"),
    Row("generate-nonsystem-dependencies", "MM", NONE, REFUSED, f"{_FOUND}: leave the rule out"),
    Row("generate-dependencies-with-compile", "MD", NONE, IGNORED, _FOUND),
    Row("generate-nonsystem-dependencies-with-compile", "MMD", NONE, IGNORED, _FOUND),
    Row("dependency-output", "MF", ONE, IGNORED, _FOUND),
    Row("generate-dependency-targets", "MP", NONE, IGNORED, _FOUND),
    Row("dependency-target-name", "MT", ONE, IGNORED, _FOUND),
    Row("compile", "c", NONE, IGNORED, "the builder says what is made"),
    Row("device-c", "dc", NONE, MAPPED, "device code that calls across files", to="GPU_RDC", sets=True),
    Row("device-w", "dw", NONE, MAPPED, "each file's device code is whole", to="GPU_RDC", sets=False),
    Row("device-link", "dlink", NONE, REFUSED, "GPU_RDC=1 links device code once for each program; env.DeviceLink links cubins"),
    Row("link", "link", NONE, IGNORED, "the builder says what is made"),
    Row("lib", "lib", NONE, REFUSED, "env.StaticLibrary makes one"),
    Row("run", "run", NONE, REFUSED, "env.Command runs a program"),
    Row("run-args", "run-args", LIST, REFUSED, "env.Command runs a program"),
    # Files and folders.
    Row("output-file", "o", ONE, REFUSED, "the builder's first argument names what is made"),
    Row("pre-include", "include", LIST, MAPPED, "clang's flag of that name", to="GPU_CLANGFLAGS", sets="-include {}", kept=ALL),
    Row("objdir-as-tempdir", "objtemp", NONE, IGNORED, "temporary files have folders of their own"),
    Row("library", "l", LIST, REFUSED, 'it is for the link: LIBS=["{}"]'),
    Row("define-macro", "D", LIST, MAPPED, "a define", to="CPPDEFINES"),
    Row("undefine-macro", "U", LIST, MAPPED, "clang's flag of that name", to="GPU_CLANGFLAGS", sets="-U{}", kept=ALL),
    Row("include-path", "I", LIST, MAPPED, "an include folder, seen from the SConscript, or from the top with #", to="CPPPATH"),
    Row("system-include", "isystem", LIST, MAPPED, "an include folder, behind those of -I; its headers may warn", to="CPPPATH"),
    Row("library-path", "L", LIST, REFUSED, 'it is for the link: LIBPATH=["{}"]'),
    Row("output-directory", "odir", ONE, REFUSED, "the builder's first argument names what is made; variant_dir moves all of it"),
    Row("compiler-bindir", "ccbin", ONE, TOLD, "clang compiles the host's code, CXX links; GPU_HOST=nvcc takes it", kept=FRONT),
    Row("allow-unsupported-compiler", "allow-unsupported-compiler", NONE, IGNORED, "only nvcc asks which host compiler it is", kept=FRONT),
    Row("archiver-binary", "arbin", ONE, REFUSED, "SCons' AR names the archiver"),
    Row("cudart", "cudart", ONE, IGNORED, _DEFAULT, value="static"),
    Row("cudart", "cudart", ONE, REFUSED, "the runtime library is for the link: LIBS, with cudart for the shared one"),
    Row("cudadevrt", "cudadevrt", ONE, IGNORED, _DEFAULT, value="static"),
    Row("cudadevrt", "cudadevrt", ONE, IGNORED, "it is linked where something calls it"),
    Row("libdevice-directory", "ldir", ONE, REFUSED, "GPU_CUDA_PATH names the toolkit that libdevice is of"),
    Row("target-directory", "target-dir", ONE, REFUSED, "GPU_CUDA_PATH and GPU_CUDA_HEADERS name the folders"),
    Row("use-local-env", "use-local-env", NONE, IGNORED, _WINDOWS),
    Row("force-cl-env-setup", "force-cl-env-setup", NONE, IGNORED, _WINDOWS),
    # Compiling and linking.
    Row("profile", "pg", NONE, MAPPED, "for the host's code", to="GPU_HOSTFLAGS", sets="-pg"),
    Row("debug", "g", NONE, MAPPED, "for the host's code", to="GPU_HOSTFLAGS", sets="-g"),
    Row("device-debug", "G", NONE, MAPPED, "debugging, no optimisation; with -dopt GPU_LINEINFO", to="GPU_DEBUG", sets=True),
    Row("generate-line-info", "lineinfo", NONE, MAPPED, "lines for profilers", to="GPU_LINEINFO", sets=True),
    Row("optimization-info", "opt-info", LIST, TOLD, "clang's remarks are -Rpass=inline, for GPU_CLANGFLAGS", kept=ALL),
    Row("optimize", "O", ONE, MAPPED, "for the host's code, as with nvcc: device code has GPU_OPT", to="GPU_HOSTFLAGS", sets="-O{}"),
    Row("Ofast-compile", "Ofc", ONE, IGNORED, _DEFAULT, value="0"),
    Row("Ofast-compile", "Ofc", ONE, TOLD, "GPU_OPT says how well kernels are optimised", kept=ALL),
    Row("dopt", "dopt", ONE, MAPPED, "with -G: lines and optimised code; alone it is the default", to="GPU_LINEINFO", sets=True),
    Row("dlink-time-opt", "dlto", NONE, IGNORED, _LTO, kept=OBJECT),
    Row("lto", "lto", NONE, IGNORED, _LTO, kept=OBJECT),
    Row("gen-opt-lto", "gen-opt-lto", NONE, IGNORED, _LTO, kept=OBJECT),
    Row(
        *("ftemplate-backtrace-limit", "ftemplate-backtrace-limit", ONE, MAPPED, "clang's flag of that name"),
        to="GPU_CLANGFLAGS",
        sets="-ftemplate-backtrace-limit={}",
        kept=FRONT,
    ),
    Row(
        *("ftemplate-depth", "ftemplate-depth", ONE, MAPPED, "clang's flag of that name"),
        to="GPU_CLANGFLAGS",
        sets="-ftemplate-depth={}",
        kept=FRONT,
    ),
    Row("no-exceptions", "noeh", NONE, MAPPED, "for the host's code", to="GPU_HOSTFLAGS", sets="-fno-exceptions"),
    Row("shared", "shared", NONE, REFUSED, "env.SharedLibrary makes one"),
    Row("x", "x", ONE, IGNORED, "a .cu is CUDA", value="cu"),
    Row("x", "x", ONE, REFUSED, "a file's suffix says what it is: .cu is CUDA, .cpp and .c are SCons' own"),
    Row("std", "std", ONE, MAPPED, "clang's flag of that name", to="GPU_CLANGFLAGS", sets="-std={}", kept=ALL),
    Row("stdlib", "stdlib", ONE, MAPPED, "clang's flag of that name", to="GPU_CLANGFLAGS", sets="-stdlib={}", kept=FRONT),
    Row("no-host-device-initializer-list", "nohdinitlist", NONE, IGNORED, "clang goes by constexpr alone", kept=FRONT),
    Row("no-host-device-move-forward", "nohdmoveforward", NONE, IGNORED, "clang goes by constexpr alone", kept=FRONT),
    Row("expt-relaxed-constexpr", "expt-relaxed-constexpr", NONE, IGNORED, "clang calls constexpr functions from both sides", kept=FRONT),
    Row("extended-lambda", "extended-lambda", NONE, IGNORED, "clang takes __device__ lambdas as they are", kept=FRONT),
    Row("expt-extended-lambda", "expt-extended-lambda", NONE, IGNORED, "clang takes __device__ lambdas as they are", kept=FRONT),
    Row("machine", "m", ONE, IGNORED, "the only kind there is", value="64"),
    Row("machine", "m", ONE, REFUSED, "programs have 64 bits"),
    Row("m64", "m64", NONE, IGNORED, "the only kind there is"),
    Row("apply-controls", "apply-controls", ONE, REFUSED, "the file is for nvcc's own parts: write its options one by one"),
    # Options for the parts of nvcc.
    Row("compiler-options", "Xcompiler", LIST, MAPPED, "for the host's code", to="GPU_HOSTFLAGS"),
    Row("linker-options", "Xlinker", LIST, REFUSED, _LINKER),
    Row("archive-options", "Xarchive", LIST, REFUSED, "SCons' ARFLAGS are the archiver's"),
    Row("ptxas-options", "Xptxas", LIST, IGNORED, "the report is always kept: scons-gpu kernels shows it", value="-v"),
    Row("ptxas-options", "Xptxas", LIST, IGNORED, "the report is always kept: scons-gpu kernels shows it", value="--verbose"),
    Row("ptxas-options", "Xptxas", LIST, IGNORED, _DEFAULT, value="-O3"),
    Row("ptxas-options", "Xptxas", LIST, IGNORED, _DEFAULT, value="--opt-level=3"),
    Row("ptxas-options", "Xptxas", LIST, MAPPED, "lines for profilers", value="-lineinfo", to="GPU_LINEINFO", sets=True),
    Row("ptxas-options", "Xptxas", LIST, MAPPED, "what spills is told", value="-warn-spills", to="GPU_WARN_ON_SPILL", sets=True),
    Row("ptxas-options", "Xptxas", LIST, MAPPED, "what spills is told", value="--warn-on-spills", to="GPU_WARN_ON_SPILL", sets=True),
    Row("ptxas-options", "Xptxas", LIST, MAPPED, "for the assembler; maxrregcount is GPU_MAXRREGCOUNT", to="GPU_PTXASFLAGS"),
    Row("nvlink-options", "Xnvlink", LIST, IGNORED, "scons-gpu kernels shows what the link came to", value="-v"),
    Row("nvlink-options", "Xnvlink", LIST, IGNORED, "scons-gpu kernels shows what the link came to", value="--verbose"),
    Row("nvlink-options", "Xnvlink", LIST, REFUSED, "the link of device code has no flags of its own"),
    Row("nvprune-options", "Xnvprune", LIST, REFUSED, "call nvprune in an env.Command of its own"),
    Row("cudafe-options", "Xcudafe", LIST, IGNORED, _NUMBERS, kept=FRONT, documented=False),
    Row("cicc-options", "Xcicc", LIST, TOLD, "nvcc's optimiser does not run", kept=FRONT, documented=False),
    # How nvcc goes about it.
    Row("static-global-template-stub", "static-global-template-stub", ONE, IGNORED, _STUBS, kept=OBJECT),
    Row("device-entity-has-hidden-visibility", "device-entity-has-hidden-visibility", ONE, IGNORED, _STUBS, kept=OBJECT),
    Row(
        *("forward-unknown-to-host-compiler", "forward-unknown-to-host-compiler", NONE, MAPPED, "names that this table lacks go there"),
        to="GPU_HOSTFLAGS",
        sets="",
    ),
    Row("forward-unknown-to-host-linker", "forward-unknown-to-host-linker", NONE, REFUSED, _LINKER),
    Row("forward-unknown-opts", "forward-unknown-opts", NONE, REFUSED, f"-forward-unknown-to-host-compiler does it; {_LINKER}"),
    Row("dont-use-profile", "noprof", NONE, IGNORED, "no profile is read", kept=OBJECT),
    Row("dryrun", "dryrun", NONE, REFUSED, "scons -n says what would be done"),
    Row("verbose", "v", NONE, IGNORED, "whole commands show where a GPU_…COMSTR is empty"),
    Row("verbose2", "v2", NONE, IGNORED, "whole commands show where a GPU_…COMSTR is empty"),
    Row("threads", "t", ONE, IGNORED, "scons -j is the one budget of jobs"),
    Row("fmax-errors", "fmax-errors", ONE, MAPPED, "clang's -ferror-limit", to="GPU_CLANGFLAGS", sets="-ferror-limit={}", kept=FRONT),
    Row("split-compile", "split-compile", ONE, IGNORED, "scons -j is the one budget of jobs"),
    Row("split-compile-extended", "split-compile-extended", ONE, IGNORED, "scons -j is the one budget of jobs"),
    Row("fdevice-syntax-only", "fdevice-syntax-only", NONE, REFUSED, "it makes no code: env.Command with clang -fsyntax-only"),
    Row("fdevice-time-trace", "fdevice-time-trace", ONE, IGNORED, _TIMES),
    Row("fdevice-time-trace-granularity", "fdevice-time-trace-granularity", ONE, IGNORED, _TIMES),
    Row("keep", "keep", NONE, IGNORED, _KEEP),
    Row("keep-dir", "keep-dir", ONE, IGNORED, _KEEP),
    Row("save-temps", "save-temps", NONE, IGNORED, _KEEP),
    Row("clean-targets", "clean", NONE, REFUSED, "scons -c does it"),
    Row("time", "time", ONE, IGNORED, _TIMES),
    Row("input-drive-prefix", "idp", ONE, IGNORED, _WINDOWS),
    Row("dependency-drive-prefix", "ddp", ONE, IGNORED, _WINDOWS),
    Row("drive-prefix", "dp", ONE, IGNORED, _WINDOWS),
    Row("no-align-double", "", NONE, IGNORED, "for programs of 32 bits"),
    Row("no-device-link", "nodlink", NONE, REFUSED, "GPU_RDC=1 links device code once for each program"),
    # Code of the GPU.
    Row("gpu-architecture", "arch", ONE, MAPPED, "sm_90 alone means sm_90 and compute_90; native is refused", to="GPU_ARCHS"),
    Row("gpu-code", "code", LIST, MAPPED, "of what -arch names", to="GPU_ARCHS"),
    Row(
        "generate-code",
        "gencode",
        ONE,
        MAPPED,
        "each code=, compiled for that itself: so is __CUDA_ARCH__",
        to="GPU_ARCHS",
    ),
    Row("relocatable-device-code", "rdc", ONE, MAPPED, "device code that calls across files", value="true", to="GPU_RDC", sets=True),
    Row("relocatable-device-code", "rdc", ONE, MAPPED, "each file's device code is whole", value="false", to="GPU_RDC", sets=False),
    Row("entries", "e", LIST, REFUSED, "all kernels of a source are built: leave the others out with a define"),
    Row("maxrregcount", "maxrregcount", ONE, IGNORED, _DEFAULT, value="0"),
    Row("maxrregcount", "maxrregcount", ONE, MAPPED, "registers per thread at most", to="GPU_MAXRREGCOUNT"),
    Row("use_fast_math", "use_fast_math", NONE, MAPPED, "fast, less exact arithmetic", to="GPU_FAST_MATH", sets=True),
    Row("ftz", "ftz", ONE, MAPPED, "denormal floats become zero", value="true", to="GPU_FTZ", sets=True),
    Row("ftz", "ftz", ONE, MAPPED, "the default; with -use_fast_math it is refused", value="false", to="GPU_FTZ", sets=False),
    Row("prec-div", "prec-div", ONE, IGNORED, f"{_DEFAULT}; with -use_fast_math it is refused", value="true", kept=ALL),
    Row("prec-div", "prec-div", ONE, TOLD, _EXACT.format("divisions"), value="false", kept=ALL),
    Row("prec-sqrt", "prec-sqrt", ONE, IGNORED, f"{_DEFAULT}; with -use_fast_math it is refused", value="true", kept=ALL),
    Row("prec-sqrt", "prec-sqrt", ONE, TOLD, _EXACT.format("square roots"), value="false", kept=ALL),
    Row("fmad", "fmad", ONE, IGNORED, _DEFAULT, value="true", kept=ALL),
    Row(
        "fmad", "fmad", ONE, MAPPED, "products and sums stay apart", value="false", to="GPU_CLANGFLAGS", sets="-ffp-contract=off", kept=ALL
    ),
    Row("extra-device-vectorization", "extra-device-vectorization", NONE, IGNORED, "LLVM vectorises as it sees fit", kept=ALL),
    Row("prune", "prune", NONE, IGNORED, "what GPU_ARCHS does not name is not made"),
    Row("default-stream", "default-stream", ONE, IGNORED, _DEFAULT, value="legacy"),
    Row("default-stream", "default-stream", ONE, IGNORED, _DEFAULT, value="null"),
    Row(
        *("default-stream", "default-stream", ONE, MAPPED, "clang's own flag for it"),
        value="per-thread",
        to="GPU_CLANGFLAGS",
        sets="-Xclang -fgpu-default-stream=per-thread",
        kept=FRONT,
    ),
    # What nvcc says, and the rest.
    Row("disable-warnings", "w", NONE, MAPPED, "clang's flag of that name", to="GPU_CLANGFLAGS", sets="-w", kept=ALL),
    Row("keep-device-functions", "keep-device-functions", NONE, TOLD, "what no kernel reaches is left out", kept=FRONT),
    Row("source-in-ptx", "src-in-ptx", NONE, TOLD, "PTX has line numbers, not lines", kept=FRONT),
    Row("restrict", "restrict", NONE, TOLD, "clang has no such flag: write __restrict__ at the parameters", kept=ALL),
    Row("Wreorder", "Wreorder", NONE, MAPPED, "clang's flag of that name", to="GPU_CLANGFLAGS", sets="-Wreorder", kept=ALL),
    Row("Wdefault-stream-launch", "Wdefault-stream-launch", NONE, IGNORED, "only nvcc has that warning", kept=FRONT),
    Row("Wmissing-launch-bounds", "Wmissing-launch-bounds", NONE, IGNORED, "only nvcc has that warning", kept=FRONT),
    Row("Wext-lambda-captures-this", "Wext-lambda-captures-this", NONE, IGNORED, "only nvcc has that warning", kept=FRONT),
    Row(
        *("Wno-deprecated-declarations", "Wno-deprecated-declarations", NONE, MAPPED, "clang's flag of that name"),
        to="GPU_CLANGFLAGS",
        sets="-Wno-deprecated-declarations",
        kept=FRONT,
    ),
    Row("Wno-deprecated-gpu-targets", "Wno-deprecated-gpu-targets", NONE, IGNORED, "only nvcc has that warning", kept=FRONT),
    Row("Wconversion", "Wconversion", NONE, MAPPED, "clang's flag of that name", to="GPU_CLANGFLAGS", sets="-Wconversion", kept=FRONT),
    Row("Werror", "Werror", LIST, MAPPED, "all of clang's", value="all-warnings", to="GPU_CLANGFLAGS", sets="-Werror", kept=FRONT),
    Row("Werror", "Werror", LIST, MAPPED, "clang's of that name", value="reorder", to="GPU_CLANGFLAGS", sets="-Werror={}", kept=FRONT),
    Row("Werror", "Werror", LIST, MAPPED, "clang's of that name", value="conversion", to="GPU_CLANGFLAGS", sets="-Werror={}", kept=FRONT),
    Row(
        *("Werror", "Werror", LIST, MAPPED, "clang's of that name"),
        value="deprecated-declarations",
        to="GPU_CLANGFLAGS",
        sets="-Werror={}",
        kept=FRONT,
    ),
    Row("Werror", "Werror", LIST, IGNORED, "only nvcc has that warning", kept=FRONT),
    Row("resource-usage", "res-usage", NONE, IGNORED, "the report is always kept: scons-gpu kernels shows it"),
    Row("extensible-whole-program", "ewp", NONE, REFUSED, "GPU_RDC=1 has device code call across files"),
    Row("no-compress", "no-compress", NONE, IGNORED, _FATBIN, kept=OBJECT),
    Row("compress-mode", "compress-mode", ONE, IGNORED, _FATBIN, kept=OBJECT),
    Row("concat", "concat", NONE, IGNORED, _FATBIN, kept=OBJECT),
    Row("qpp-config", "qpp-config", ONE, REFUSED, "builds run on Linux"),
    Row("compile-as-tools-patch", "astoolspatch", NONE, REFUSED, _WHOLE),
    Row("list-gpu-code", "code-ls", NONE, REFUSED, _ASKED),
    Row("list-gpu-arch", "arch-ls", NONE, REFUSED, _ASKED),
    Row("display-error-number", "err-no", NONE, IGNORED, _NUMBERS, kept=ALL),
    Row("no-display-error-number", "no-err-no", NONE, IGNORED, _NUMBERS, kept=ALL),
    Row("diag-error", "diag-error", LIST, TOLD, _NUMBERS, kept=ALL),
    Row("diag-suppress", "diag-suppress", LIST, IGNORED, _NUMBERS, kept=ALL),
    Row("diag-warn", "diag-warn", LIST, IGNORED, _NUMBERS, kept=ALL),
    Row("host-linker-script", "hls", ONE, REFUSED, _LINKER),
    Row("augment-host-linker-script", "aug-hls", NONE, REFUSED, _LINKER),
    Row("relocatable-link", "r", NONE, REFUSED, _LINKER),
    Row("brief-diagnostics", "brief-diag", ONE, IGNORED, "clang's flag is -fno-caret-diagnostics, for GPU_CLANGFLAGS", kept=ALL),
    Row("jump-table-density", "jtd", ONE, TOLD, "LLVM has its own measure", kept=ALL),
    Row("relocatable-ptx", "reloc-ptx", NONE, REFUSED, "compute_XX in GPU_ARCHS puts PTX into the fatbin"),
    Row("device-stack-protector", "device-stack-protector", ONE, IGNORED, _DEFAULT, value="false"),
    Row("device-stack-protector", "device-stack-protector", ONE, REFUSED, "LLVM makes no such code for GPUs"),
    Row("frandom-seed", "frandom-seed", ONE, IGNORED, "equal sources give equal bytes by themselves", kept=OBJECT),
    Row("fdevice-sanitize", "fdevice-sanitize", ONE, REFUSED, "only nvcc makes such code; compute-sanitizer also runs programs without it"),
    Row("jobserver", "jobserver", NONE, IGNORED, "scons -j is the one budget of jobs"),
    Row("skip-ptx-semantics-check", "skip-ptx-semantics-check", NONE, IGNORED, "the assembler reads all PTX"),
    Row("utf-8", "utf-8", NONE, IGNORED, "the only kind there is", kept=FRONT),
    Row("safety-compatibility", "safety-compat", NONE, REFUSED, _WHOLE),
    Row("help", "h", NONE, REFUSED, _ASKED),
    Row("version", "V", NONE, REFUSED, _ASKED),
    Row("options-file", "optf", LIST, MAPPED, "the file's flags, read in its place; an edit of it is an edit of them", to="GPU_NVCCFLAGS"),
    # NVRTC's own.
    Row("device-as-default-execution-space", "default-device", NONE, TOLD, "NVRTC's own", kept=("nvrtc",), documented=False),
    Row("device-int128", "device-int128", NONE, IGNORED, "clang has it", kept=("nvrtc",), documented=False),
)

_BY_NAME: dict[str, tuple[Row, ...]] = {}
for _row in TABLE:
    for _name in _row.names:
        _BY_NAME[_name] = (*_BY_NAME.get(_name, ()), _row)
