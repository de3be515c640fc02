from __future__ import annotations

import pytest

from scons_gpu.assemble.failures import classify, entry_at, silent, spilled
from scons_gpu.assemble.report import parse
from scons_gpu.errors import (
    GpuError,
    LinkError,
    MissingSymbolError,
    PtxSyntaxError,
    RefusedError,
    RegisterError,
    ToolError,
    ToolKilledError,
    ToolSilentError,
    ToolStoppedError,
    UnsupportedArchError,
)

ABORTED = "ptxas fatal   : Ptx assembly aborted due to errors\n"

# (what the tool said, class, what the message must hold): each line as ptxas or nvlink 13.5 prints it.
SAID: list[tuple[str, type[GpuError], str]] = [
    ("ptxas fatal   : Value 'sm_33' is not defined for option 'gpu-name'", UnsupportedArchError, "does not know sm_33"),
    ("ptxas fatal   : Value 'sm_33' is not a recognized value for option 'gpu-name'", UnsupportedArchError, "does not know sm_33"),
    ("nvlink fatal   : Value 'sm_33' is not defined for option 'arch'", UnsupportedArchError, "does not know sm_33"),
    (
        "ptxas PTX line 1; fatal   : Unsupported .version 9.9; current version is '9.5'",
        UnsupportedArchError,
        "reads PTX up to 9.5, and this is PTX 9.9",
    ),
    ("ptxas PTX line 2; fatal   : Unsupported .target 'sm_130'", UnsupportedArchError, "does not know sm_130"),
    (
        "ptxas fatal   : PTX with .target 'sm_90a' cannot be compiled for architecture 'sm_90'",
        UnsupportedArchError,
        "written for another architecture",
    ),
    (
        "ptxas fatal   : SM version specified by .target is higher than default SM version assumed",
        UnsupportedArchError,
        "written for another architecture",
    ),
    (
        "ptxas PTX line 7; error   : Feature 'cp.async' requires .target sm_80 or higher",
        UnsupportedArchError,
        "cp.async needs sm_80 or higher",
    ),
    (
        "ptxas PTX line 7; error   : Instruction 'wgmma.fence' not supported on .target 'sm_80'",
        UnsupportedArchError,
        "wgmma.fence needs sm_90a",
    ),
    (
        "ptxas PTX line 7; error   : Instruction 'new.thing' not supported on .target 'sm_80'",
        UnsupportedArchError,
        "new.thing is not supported",
    ),
    (
        "ptxas PTX line 7; error   : Feature 'ldmatrix' requires PTX ISA .version 6.5 or later",
        PtxSyntaxError,
        "ldmatrix needs PTX ISA 6.5",
    ),
    (
        "ptxas error   : Registers allocation failed with register count of '32'. Compile the program with a higher register target",
        RegisterError,
        "registers",
    ),
    (
        "ptxas fatal   : (C7602) Insufficient registers (64) to compile instruction at line 138 in function wg. Try to compile with register target of 154 or higher.",
        RegisterError,
        "one instruction needs more than 64 registers: 154 at least",
    ),
    (
        "nvlink error   : entry function 'lb' with max regcount of 64 calls function 'big' with regcount of 254",
        RegisterError,
        "its launch bounds leave 64 registers, and it calls big, which takes 254",
    ),
    ("ptxas error   : too many registers", RegisterError, "registers"),
    ("ptxas PTX line 5; fatal   : Parsing error near '.noinline': syntax error", PtxSyntaxError, "does not accept the PTX"),
    ("ptxas PTX line 7; error   : Unknown symbol '%q'", PtxSyntaxError, "does not accept the PTX"),
    ("ptxas fatal   : Unresolved extern function 'ext'", MissingSymbolError, "nobody defines ext"),
    (
        "nvlink error   : Undefined reference to 'b' in 'x'\nnvlink error   : Undefined reference to 'a' in 'y'",
        MissingSymbolError,
        "nobody defines a, b",
    ),
    ("nvlink error   : Multiple definition of 'k1' in 'x', first defined in 'y'", LinkError, "k1 is defined twice"),
    (
        "ptxas error   : Entry function '_Z1kPf' uses too much shared data (0xea60 bytes, 0xc000 max)",
        RefusedError,
        "its 60000 bytes of shared memory are more than the 49152 that a kernel can have",
    ),
    (
        "ptxas error   : File uses too much global constant data (0x13880 bytes, 0x10000 max)",
        RefusedError,
        "its 80000 bytes of constants do not fit into the 65536 of a program",
    ),
    ("nvlink fatal   : Input file 'x' arch does not match target 'sm_80'", LinkError, "another architecture"),
    ("ptxas fatal   : Unknown option 'bogus'", ToolError, "exit code 255"),
]


@pytest.mark.parametrize(("said", "kind", "message"), SAID)
def test_l10_each_class_by_the_tools_words(said: str, kind: type[GpuError], message: str) -> None:
    error = classify(255, said + "\n" + (ABORTED if "PTX line" in said else ""), tool="ptxas", arch="sm_80")
    assert type(error) is kind
    assert message in error.what
    assert said.splitlines()[0] in str(error)


LIBRARIES = [
    ("create: ERROR_UNRECOGNIZED_ARCH", "", UnsupportedArchError, "nvJitLink does not know sm_80"),
    ("create: ERROR_UNSUPPORTED_ARCH", "", UnsupportedArchError, "nvJitLink does not know sm_80"),
    ("create: ERROR_UNRECOGNIZED_OPTION", "its options were: -bogus", ToolError, "nvJitLink does not accept its options"),
    ("add: ERROR_INVALID_INPUT", "ERROR 4: bad input:x", LinkError, "nvJitLink does not accept an input"),
    (
        "add: ERROR_INCORRECT_INPUT_TYPE",
        "ERROR 1: bad input: does not match type NVJITLINK_INPUT_PTXx",
        PtxSyntaxError,
        "does not accept the PTX",
    ),
    ("add: ERROR_PTX_COMPILE", "ptxas fatal   : Unknown option 'bogus'", ToolError, "nvJitLink failed: add: ERROR_PTX_COMPILE"),
    ("complete: ERROR_INTERNAL", "error   : Undefined reference to 'a' in 'x'\nERROR 9: complete", MissingSymbolError, "nobody defines a"),
    (
        "complete: an error was printed",
        "error   : Multiple definition of 'k' in 'x', first defined in 'y'",
        LinkError,
        "k is defined twice",
    ),
    ("cuLinkComplete: CUDA_ERROR_UNKNOWN", "error   : undefined symbol: a", MissingSymbolError, "nobody defines a"),
    ("cuLinkAddData: CUDA_ERROR_INVALID_PTX", "", PtxSyntaxError, "does not accept the PTX"),
    ("cuLinkAddData: CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "", UnsupportedArchError, "is too old for this PTX"),
    ("cuLinkComplete: CUDA_ERROR_NO_BINARY_FOR_GPU", "", UnsupportedArchError, "does not know sm_80"),
    ("cuLinkComplete: CUDA_ERROR_OUT_OF_MEMORY", "", ToolError, "failed: cuLinkComplete: CUDA_ERROR_OUT_OF_MEMORY and said nothing"),
]


@pytest.mark.parametrize(("result", "said", "kind", "message"), LIBRARIES)
def test_l10_each_class_by_what_a_library_answers(result: str, said: str, kind: type[GpuError], message: str) -> None:
    error = classify(209, said, tool="nvJitLink", arch="sm_80", result=result)  # 209 is a CUresult, and no shell's way to tell a signal
    assert type(error) is kind
    assert message in error.what


def test_l10_the_newest_of_several_needs_decides() -> None:
    said = "Feature '.bf16' requires .target sm_80 or higher\nInstruction 'atom.add.bf16.global' requires .target sm_90 or higher\n"
    assert classify(255, said, tool="ptxas", arch="sm_75").what == "atom.add.bf16.global needs sm_90 or higher"


@pytest.mark.parametrize("code", [-9, 137])
def test_l10_killed_by_a_signal_with_its_memory(code: int) -> None:
    error = classify(code, "ptxas fatal   : Ptx assembly aborted due to errors\n", tool="ptxas", arch="sm_90", peak_kib=3 << 20)
    assert type(error) is ToolStoppedError
    assert error.what == "ptxas was killed by SIGKILL at 3072 MiB"
    assert error.hint
    assert type(classify(-11, "", tool="ptxas", arch="sm_90")) is ToolKilledError  # a crash is its input's


def test_l10_killed_where_the_memory_is_not_known() -> None:
    assert classify(-11, "", tool="ptxas", arch="sm_90").what == "ptxas was killed by SIGSEGV"


def test_l10_exit_1_with_and_without_words() -> None:
    assert classify(1, "something new\n", tool="ptxas", arch="sm_90").what == "ptxas failed with exit code 1"
    assert classify(1, "", tool="ptxas", arch="sm_90").what == "ptxas failed with exit code 1 and said nothing"
    assert type(classify(1, "", tool="ptxas", arch="sm_90")) is ToolError


def test_g7_the_largest_constants_of_one_program() -> None:
    ptx = (
        ".const .align 4 .b8 small[8];\n.visible .const .align 4 .b8 large[40000];\n"
        ".visible .const .align 8 .u64 larger[5000] = {1, 2};\n.const .align 4 .f32 one = 0f3F800000;\n.global .align 4 .b8 elsewhere[90000];\n"
    )
    said = "ptxas error   : File uses too much global constant data (0x13880 bytes, 0x10000 max)"
    output = classify(255, said, tool="ptxas", arch="sm_90", ptx=ptx).output.splitlines()
    assert [line.split() for line in output[1:]] == [
        ["40000", "bytes", "larger"],
        ["40000", "bytes", "large"],
        ["8", "bytes", "small"],
        ["4", "bytes", "one"],
    ]


def test_l10_exit_0_without_output() -> None:
    error = silent(tool="ptxas", arch="sm_90", output="hm")
    assert type(error) is ToolSilentError
    assert "wrote nothing" in error.what


def test_a4_the_kernel_around_the_line() -> None:
    ptx = ".version 8.0\n.func dev()\n{\n bad;\n}\n.visible .entry alpha()\n{\n ret;\n}\n.entry beta()\n{\n bad;\n}\n"
    assert [entry_at(ptx, line) for line in (4, 8, 12)] == ["", "alpha", "beta"]
    error = classify(
        255, "ptxas PTX line 12; error   : Feature 'x' requires .target sm_90 or higher\n", tool="ptxas", arch="sm_80", ptx=ptx
    )
    assert error.kernel == "beta"


SPILLS = """\
ptxas info    : Compiling entry function 'clean' for 'sm_90'
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function '_Z5heavyPf' for 'sm_90'
    8 bytes stack frame, 16 bytes spill stores, 4 bytes spill loads
ptxas info    : Function properties for dev
    8 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
"""


def test_spills_name_each_function_with_its_bytes() -> None:
    error = spilled(parse(SPILLS), arch="sm_90")
    assert error is not None
    assert str(error).splitlines()[:3] == [
        "kernel heavy(float*) (sm_90): registers spill to local memory (16 bytes stored, 4 bytes loaded)",
        "    heavy(float*): 16 bytes stored, 4 bytes loaded",
        "    function dev: 8 bytes stored, 4 bytes loaded",
    ]
    assert spilled(parse(""), arch="sm_90") is None
