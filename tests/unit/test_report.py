from __future__ import annotations

from scons_gpu.assemble.report import parse

# As 13.5 prints it for sm_90.
NEW = """\
ptxas info    : 40 bytes gmem, 16 bytes cmem[3]
ptxas info    : Compiling entry function '_Z2k2Pf' for 'sm_90'
ptxas info    : Function properties for _Z2k2Pf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 4 registers, used 0 barriers
ptxas info    : Compile time = 6.005 ms
ptxas info    : Compiling entry function 'k1' for 'sm_90'
ptxas info    : Function properties for k1
    64 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 72 bytes cumulative stack size, 100 bytes smem
ptxas info    : Compile time = 4.898 ms
ptxas info    : Function properties for dev
    16 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
"""
# As older ones do, with constant banks and a plain function first.
OLD = """\
ptxas info    : Overriding maximum register limit 256 for 'k' with  24 of maxrregcount option
ptxas info    : 0 bytes gmem
ptxas info    : Function properties for dev
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'k' for 'sm_75'
ptxas info    : Function properties for k
    464 bytes stack frame, 464 bytes spill stores, 460 bytes spill loads
ptxas info    : Used 24 registers, 360 bytes cmem[0], 8 bytes cmem[2], 4 bytes lmem
"""


def test_every_figure_of_each_kernel() -> None:
    report = parse(NEW)
    k2, k1 = report.kernels
    assert (k2.symbol, k2.registers, k2.barriers, k2.stack_bytes, k2.shared_bytes, k2.compile_ms) == ("_Z2k2Pf", 4, 0, 0, None, 6.005)
    assert (k1.registers, k1.barriers, k1.stack_bytes, k1.cumulative_stack_bytes, k1.shared_bytes) == (10, 1, 64, 72, 100)
    assert (k1.spill_stores, k1.spill_loads, k1.compile_ms) == (8, 12, 4.898)
    assert report.global_bytes == 40
    assert report.said == ""


def test_functions_that_are_no_kernels_keep_their_own_figures() -> None:
    report = parse(NEW)
    assert [each.symbol for each in report.functions] == ["_Z2k2Pf", "k1", "dev"]
    assert [each.symbol for each in report.spilling] == ["k1", "dev"]
    assert (report.functions[2].kernel, report.functions[2].stack_bytes) == (False, 16)


def test_older_formats() -> None:
    report = parse(OLD)
    (kernel,) = report.kernels
    assert (kernel.registers, kernel.barriers, kernel.local_bytes) == (24, None, 4)
    assert kernel.constants == ((0, 360), (2, 8))
    assert report.said == ""


def test_resources_say_none_only_for_what_is_unknown() -> None:
    k2, k1 = (each.resources() for each in parse(NEW).kernels)
    assert (k2.kernel, k2.shared_bytes, k2.stack_bytes, k2.constant_bytes) == ("_Z2k2Pf", 0, 0, None)
    assert (k1.shared_bytes, k1.stack_bytes, k1.spill_stores, k1.spill_loads) == (100, 72, 8, 12)
    (old,) = (each.resources() for each in parse(OLD).kernels)
    assert old.constant_bytes == 368
    (silent,) = (each.resources() for each in parse("ptxas info    : Compiling entry function 'k' for 'sm_90'\n").kernels)
    assert (silent.registers, silent.shared_bytes) == (None, None)


def test_advice_and_warnings_are_no_report() -> None:
    advice = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized in 'k'\n"
    warning = "ptxas warning : Stack size for entry function 'k' cannot be statically determined\n"
    assert parse(advice + NEW + warning).said == advice + warning


def test_the_ptxas_in_a_library_puts_its_name_before_each_line() -> None:
    """As nvJitLink 13.5 prints it."""
    library = NEW.replace("    64 bytes stack frame", "ptxas         .     64 bytes stack frame")
    assert library != NEW
    assert parse(library) == parse(NEW)
