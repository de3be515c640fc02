"""What PTX is refused for where nothing assembles it: ptxas, which refuses the same, is the referee of each row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from provider_parts import PLAIN, SM_90

from scons_gpu.errors import GpuError, RefusedError
from scons_gpu.link.limits import unit_refusal
from scons_gpu.link.whole import merge_module
from scons_gpu.plan.model import Part, Plan, PlannedKernel
from scons_gpu.store import record as records
from scons_gpu.store.record import Entry

if TYPE_CHECKING:
    from scons_gpu.assemble.provider import Provider

WHERE = ("before", "body", "function", "table", "dead")
"""Where shared memory is declared and used: in a function that is called, or may be through a table; behind the end of the kernel."""
HEAD = ".version {version}\n.target sm_75\n.address_size 64\n"


def ptx(before: str = "", body: str = "", *, parameters: str = ".param .u64 p", version: str = "8.0", name: str = "k") -> str:
    head = HEAD.format(version=version)
    return f"{head}{before}.visible .entry {name}({parameters})\n{{\n\t.reg .b32 %r<9>;\n\t.reg .b64 %rd<9>;\n{body}\tret;\n}}\n"


def shared(size: int, *, where: str = "before") -> str:
    text = f".shared .align 4 .b8 tile[{size}];\n"
    use = "\tmov.u32 %r1, 1;\n\tst.shared.u32 [tile], %r1;\n"
    if where in {"function", "table"}:
        function = f"{text}.func inner()\n{{\n\t.reg .b32 %r<9>;\n{use}\tret;\n}}\n"
        if where == "function":
            return ptx(function, "\tcall inner;\n")
        table = ".global .align 8 .u64 table[1] = {inner};\n"
        return ptx(function + table, "\tld.global.u64 %rd1, [table];\n\tproto: .callprototype ()_ ();\n\tcall %rd1, (), proto;\n")
    if where == "dead":
        return ptx(text, f"\tret;\n{use}")
    return ptx(text, use) if where == "before" else ptx(body=f"\t{text}{use}")


def bytes_of(size: int, *, version: str) -> str:
    """A kernel whose parameters take that much: the second lies behind a gap."""
    return ptx(parameters=f".param .u32 .ptr .global .align 1 p, .param .align 8 .b8 q[{size - 8}]", version=version)


def plan_of(*texts: str) -> tuple[Plan, dict[str, Entry]]:
    parts, entries = [], {}
    for number, text in enumerate(texts):
        digest, role = f"{number:032x}", "unit" if ".entry" in text else "table"
        kernels = (PlannedKernel(symbol="k", readable="k(float*)", source="a.cu"),) if role == "unit" else ()
        defines = () if role == "unit" else (f"table{number}",)
        uses = tuple(f"table{other}" for other in range(1, len(texts))) if role == "unit" else ()
        parts.append(Part(digest=digest, key=(), slice="", role=role, source="a.cu", bytes=0, kernels=kernels, defines=defines, uses=uses))
        entries[digest] = Entry(path=Path(f"{digest}.ptx"), data=text.encode(), record=records.make(text.encode(), key=()))
    return Plan(module="net", arch="sm_90", link="image", parts=tuple(parts)), entries


def refused(text: str) -> str:
    """What it is refused for; empty where it is not."""
    (part,) = plan_of(text)[0].parts
    error = unit_refusal(part, text)
    return f"{error.kernel} {error.source} {error.what}" if error else ""


def takes(every: dict[str, Provider], text: str) -> bool:
    try:
        every["ptxas"].compile(text, target=SM_90, options=PLAIN)
    except GpuError:
        return False
    return True


@pytest.mark.parametrize(
    ("fits", "not_", "said"),
    [
        *((shared(49152, where=where), shared(49153, where=where), "49153 bytes of __shared__") for where in WHERE),
        (bytes_of(4352, version="8.0"), bytes_of(4353, version="8.0"), "4353 bytes of parameters are more than the 4352"),
        (bytes_of(32764, version="8.1"), bytes_of(32765, version="8.1"), "32765 bytes of parameters are more than the 32764"),
    ],
)
def test_s7_each_limit_on_both_sides(every: dict[str, Provider], fits: str, not_: str, said: str) -> None:
    assert (refused(fits), takes(every, fits)) == ("", True)
    assert refused(not_).startswith("k(float*) a.cu its ")
    assert said in refused(not_)
    assert not takes(every, not_)


def test_s7_what_a_kernel_does_not_use_does_not_count(every: dict[str, Provider]) -> None:
    """Of variables before a function; and dynamic shared memory is the launch's."""
    unused = ptx(".shared .align 4 .b8 tile[60000];\n.extern .shared .align 4 .b8 more[];\n", "\tmov.u32 %r1, more;\n")
    assert (refused(unused), takes(every, unused)) == ("", True)


def test_g7_constants_of_a_module_are_summed_used_or_not(every: dict[str, Provider]) -> None:
    """Each unit alone would have room."""

    def table(number: int, size: int) -> str:
        return f"{HEAD.format(version='8.0')}.visible .const .align 4 .b8 table{number}[{size}];\n"

    unit = ptx(
        ".extern .const .align 4 .b8 table1[40000];\n.extern .const .align 4 .b8 table2[25536];\n",
        "\tmov.u64 %rd1, table1;\n\tmov.u64 %rd1, table2;\n",
    )
    plan, entries = plan_of(unit, table(1, 40000), table(2, 25536))
    assert takes(every, merge_module(plan, entries))
    plan, entries = plan_of(unit.replace("25536", "25540"), table(1, 40000), table(2, 25540))
    with pytest.raises(RefusedError) as caught:
        merge_module(plan, entries)
    assert str(caught.value).splitlines() == [
        "module net (sm_90): its 65540 bytes of constants do not fit into the 65536 bytes of an image",
        "       40000 bytes  table1 of a.cu",
        "       25540 bytes  table2 of a.cu",
        "  move the largest into __device__ memory, or into another module",
    ]
