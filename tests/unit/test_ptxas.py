from __future__ import annotations

import shlex
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scons_gpu.assemble.provider import AssembleOptions, LinkInput
from scons_gpu.assemble.ptxas import PtxasProvider
from scons_gpu.errors import (
    LinkError,
    MissingSymbolError,
    PtxSyntaxError,
    RegisterError,
    SpillError,
    ToolError,
    ToolKilledError,
    ToolSilentError,
    UnsupportedArchError,
)
from scons_gpu.link import elf
from scons_gpu.toolchain.arch import Target, parse
from scons_gpu.toolchain.tools import Tool

if TYPE_CHECKING:
    from collections.abc import Callable

BIN = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin"
SM_75, SM_80, SM_90, SM_90A = parse(["sm_75", "sm_80", "sm_90", "sm_90a"])
PLAIN = AssembleOptions()

HEAD = ".version 7.8\n.target sm_75\n.address_size 64\n"


def kernel(name: str, body: str = "", *, regs: str = "", head: str = HEAD) -> str:
    return (
        f"{head}.visible .entry {name}(.param .u64 p)\n{{\n.reg .b64 %rd<4>; .reg .b32 %r<4>;{regs}\nld.param.u64 %rd1, [p];\n"
        f"mov.u32 %r1, %tid.x;\n{body}\nst.global.b32 [%rd1], %r1;\nret;\n}}\n"
    )


CALLS = (
    HEAD
    + """\
.func (.param .b32 r) dev(.param .b32 a)
{
 .reg .b32 %r<4>;
 ld.param.b32 %r1, [a];
 mul.lo.s32 %r2, %r1, %r1;
 st.param.b32 [r], %r2;
 ret;
}
"""
    + kernel(
        "calls",
        "{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), dev, (a); ld.param.b32 %r1, [b]; }",
        head="",
    )
)
MISSING = kernel(
    "wants",
    "{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), ext, (a); ld.param.b32 %r1, [b]; }",
    head=HEAD + ".extern .func (.param .b32 r) ext(.param .b32 a);\n",
)
SPILLS = kernel(
    "_Z5heavyPf",
    "\n".join(f"ld.volatile.global.b32 %s{n}, [%rd1+{4 * n}];" for n in range(80))
    + "\n".join(f"st.volatile.global.b32 [%rd1+{4 * n}], %s{n * 37 % 80};" for n in range(80)),
    regs=" .reg .b32 %s<80>;",
)
LINES = kernel("lines", ".loc 1 4 1", head=HEAD + '.file 1 "/some/where/x.cu"\n')


def tool(name: str) -> Tool:
    return Tool(name=name, path=str(BIN / name), version="13.5.37", identity=name * 10, origin="wheel")


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> PtxasProvider:
    return PtxasProvider(ptxas=tool("ptxas"), nvlink=tool("nvlink"), facts=tmp_path_factory.mktemp("facts"))


@pytest.fixture
def wrapped(tmp_path: Path) -> Callable[[str], PtxasProvider]:
    """A provider whose tools are shell scripts; $REAL is the real one of their name."""

    def make(script: str) -> PtxasProvider:
        made = []
        for name in ("ptxas", "nvlink"):
            path = tmp_path / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\nREAL={shlex.quote(str(BIN / name))}\n{script}\n")
            path.chmod(0o755)
            made.append(replace(tool(name), path=str(path), identity=""))
        return PtxasProvider(ptxas=made[0], nvlink=made[1], facts=tmp_path / "facts")

    return make


@pytest.fixture
def save(tmp_path: Path, provider: PtxasProvider) -> Callable[..., LinkInput]:
    """Assembles PTX and stores the object, as an input for a link."""

    def make(name: str, ptx: str, *, target: Target = SM_90, whole: bool = False, options: AssembleOptions = PLAIN) -> LinkInput:
        made = (provider.compile if whole else provider.compile_relocatable)(ptx, target=target, options=options)
        path = tmp_path / f"{name}.cubin"
        path.write_bytes(made.data)
        return LinkInput(path=path, label=f"kernel {name} of net/{name}.cu")

    return make


def sections(data: bytes) -> dict[str, bytes]:
    head = elf.cubin.head(data)
    assert not isinstance(head, str)
    return {each.name: data[each.offset : each.offset + each.size] for each in elf._sections(data, head.sections)}


# Assembling


def test_three_operations(provider: PtxasProvider, save: Callable[..., LinkInput]) -> None:
    whole = provider.compile(CALLS, target=SM_90, options=PLAIN)
    assert elf.read(whole.data).arch == "sm_90"
    assert (whole.output, [each.kernel for each in whole.resources]) == ("", ["calls"])
    image = provider.link([save("a", kernel("a")), save("calls", CALLS)], target=SM_90, options=PLAIN)
    assert [each.symbol for each in elf.read(image.data).kernels] == ["a", "calls"]
    assert image.output == ""


def test_contract_cloning_keeps_the_registers_of_the_whole_object(provider: PtxasProvider) -> None:
    whole = provider.compile(CALLS, target=SM_90, options=PLAIN).resources[0]
    cloned = provider.compile_relocatable(CALLS, target=SM_90, options=PLAIN).resources[0]
    off = AssembleOptions(flags=("-enable-func-clone-sc", "false"))
    plain = provider.compile_relocatable(CALLS, target=SM_90, options=off).resources[0]
    assert plain.registers == 24, "the ABI's least, where a call stays"
    assert cloned.registers == whole.registers
    assert whole.registers is not None
    assert whole.registers < 24


def test_contract_the_report_changes_no_byte_but_the_note_of_options(
    provider: PtxasProvider, wrapped: Callable[[str], PtxasProvider]
) -> None:
    silent = wrapped('shift; exec "$REAL" "$@"').compile(CALLS, target=SM_90, options=PLAIN)
    told = provider.compile(CALLS, target=SM_90, options=PLAIN)
    one, other = sections(silent.data), sections(told.data)
    assert one.keys() == other.keys()
    assert {name for name in one if one[name] != other[name]} == {".note.nv.tkinfo"}
    assert not silent.resources
    assert told.resources


def test_contract_a_default_spelled_out_changes_bytes(provider: PtxasProvider) -> None:
    spelled = provider.compile(CALLS, target=SM_90, options=AssembleOptions(flags=("-O3",)))
    assert spelled.data != provider.compile(CALLS, target=SM_90, options=PLAIN).data


@pytest.mark.parametrize(
    "options", [PLAIN, AssembleOptions(lineinfo=True), AssembleOptions(debug=True, opt=0)], ids=["plain", "lineinfo", "debug"]
)
@pytest.mark.parametrize("relocatable", [False, True], ids=["whole", "rel"])
def test_t10_no_path_and_no_time_in_objects(
    provider: PtxasProvider, options: AssembleOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, relocatable: bool
) -> None:
    operation = provider.compile_relocatable if relocatable else provider.compile
    first = operation(LINES, target=SM_90, options=options)
    elsewhere = tmp_path / "a much longer folder"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.chdir(elsewhere)
    assert operation(LINES, target=SM_90, options=options).data == first.data
    assert b"scons-gpu-" not in first.data, "no temporary folder's name"
    assert not list(elsewhere.iterdir()), "nothing stays behind"


def test_l11_100_parallel_calls_give_equal_bytes(provider: PtxasProvider, save: Callable[..., LinkInput]) -> None:
    """Of the link: those of what compiles are beside those of the other providers, in `test_providers`."""
    inputs = [save("a", kernel("a")), save("calls", CALLS)]
    with ThreadPoolExecutor(8) as pool:
        images = {each.data for each in pool.map(lambda _: provider.link(inputs, target=SM_90, options=PLAIN), range(100))}
    assert len(images) == 1


def test_maxrregcount_and_what_it_costs_is_in_the_resources(provider: PtxasProvider) -> None:
    free = provider.compile(SPILLS, target=SM_75, options=PLAIN).resources[0]
    bound = provider.compile(SPILLS, target=SM_75, options=AssembleOptions(maxrregcount=24)).resources[0]
    assert (free.spill_stores, bound.registers) == (0, 24)
    assert bound.spill_stores
    assert bound.spill_stores == bound.stack_bytes


def test_verbose_keeps_the_report(provider: PtxasProvider) -> None:
    assert "Used " in provider.compile(CALLS, target=SM_90, options=AssembleOptions(verbose=True)).output


# Failures


def test_l10_spill_with_fail_on_spill(provider: PtxasProvider) -> None:
    assert provider.compile(SPILLS, target=SM_75, options=AssembleOptions(fail_on_spill=True)).data
    with pytest.raises(SpillError) as caught:
        provider.compile_relocatable(SPILLS, target=SM_75, options=AssembleOptions(fail_on_spill=True, maxrregcount=24))
    assert caught.value.kernel == "heavy(float*)"
    assert "bytes stored" in caught.value.what


def test_spills_are_told_where_that_is_asked_for(provider: PtxasProvider) -> None:
    for make in (provider.compile, provider.compile_relocatable):
        assert "spill" not in make(SPILLS, target=SM_75, options=AssembleOptions(maxrregcount=24)).output
        told = make(SPILLS, target=SM_75, options=AssembleOptions(maxrregcount=24, warn_on_spill=True))
        (used,) = told.resources
        line = (
            f"registers of kernel heavy(float*) spill to local memory: {used.spill_stores} bytes stored, {used.spill_loads} bytes loaded\n"
        )
        assert told.output == line
        assert not make(SPILLS, target=SM_75, options=AssembleOptions(warn_on_spill=True)).output


def test_l10_registers_that_do_not_suffice(provider: PtxasProvider) -> None:
    names = ", ".join(f"%f{n}" for n in range(128))
    loads = "\n".join(f"ld.global.f32 %f{n}, [%rd1+{4 * n}];" for n in range(128))
    stores = "\n".join(f"st.global.f32 [%rd1+{4 * n}], %f{n};" for n in range(128))
    multiply = f"wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {{{names}}}, %rd1, %rd1, 1, 1, 1, 0, 0;"
    wait = "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;"
    body = f"{loads}\nwgmma.fence.sync.aligned;\n{multiply}\n{wait}\n{stores}"
    ptx = kernel("_Z8multiplyPf", body, regs=" .reg .f32 %f<128>;", head=".version 8.0\n.target sm_90a\n.address_size 64\n")
    with pytest.raises(RegisterError, match=r"one instruction needs more than 64 registers: \d+ at least") as caught:
        provider.compile(ptx.replace(")\n{", ")\n.reqntid 1024\n{", 1), target=SM_90A, options=PLAIN)
    assert caught.value.kernel == "multiply(float*)"


def test_l10_a_callee_in_another_object_that_takes_more_than_the_launch_bounds_leave(
    provider: PtxasProvider, save: Callable[..., LinkInput]
) -> None:
    call = "{ .param .b64 a; .param .b32 b; st.param.b64 [a], %rd1; call (b), big, (a); ld.param.b32 %r1, [b]; }"
    caller = kernel("bounded", call, head=HEAD + ".extern .func (.param .b32 r) big(.param .b64 p);\n").replace(
        ")\n{", ")\n.maxntid 1024\n{", 1
    )
    callee = SPILLS.replace(".visible .entry _Z5heavyPf(.param .u64 p)", ".visible .func (.param .b32 r) big(.param .b64 p)")
    with pytest.raises(RegisterError, match="its launch bounds leave 64 registers, and it calls big, which takes") as caught:
        provider.link([save("bounded", caller), save("big", callee)], target=SM_90, options=PLAIN)
    assert caught.value.kernel == "bounded"


def test_l10_syntax_names_the_kernel_and_no_temporary_file(provider: PtxasProvider) -> None:
    with pytest.raises(PtxSyntaxError) as caught:
        provider.compile(CALLS + kernel("broken", "frobnicate;", head=""), target=SM_90, options=PLAIN)
    assert caught.value.kernel == "broken"
    assert "PTX line 26; error   : Not a name of any known instruction: 'frobnicate'" in caught.value.output
    assert "unit.ptx" not in str(caught.value)


def test_l10_unknown_architecture_and_version(provider: PtxasProvider) -> None:
    with pytest.raises(UnsupportedArchError, match="ptxas does not know sm_33"):
        provider.compile(CALLS, target=Target(name="sm_33", real=True), options=PLAIN)
    with pytest.raises(UnsupportedArchError, match=r"ptxas reads PTX up to \d+\.\d+, and this is PTX 99\.9"):
        provider.compile(CALLS.replace("7.8", "99.9"), target=SM_90, options=PLAIN)


def test_a4_an_instruction_that_the_architecture_lacks(provider: PtxasProvider) -> None:
    with pytest.raises(UnsupportedArchError, match=r"wgmma\.fence needs sm_90a") as caught:
        provider.compile(kernel("fences", "wgmma.fence.sync.aligned;", head=HEAD.replace("7.8", "8.0")), target=SM_80, options=PLAIN)
    assert (caught.value.kernel, caught.value.arch) == ("fences", "sm_80")
    with pytest.raises(UnsupportedArchError, match=r"cp\.async\.wait_all needs sm_80 or higher"):
        provider.compile(kernel("copies", "cp.async.wait_all;"), target=SM_75, options=PLAIN)


def test_l10_undefined_in_a_whole_object(provider: PtxasProvider) -> None:
    with pytest.raises(MissingSymbolError, match="nobody defines ext"):
        provider.compile(MISSING, target=SM_90, options=PLAIN)


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ("kill -9 $$", ToolKilledError, "ptxas was killed by SIGKILL"),
        ('sh -c "kill -9 \\$\\$"; exit $?', ToolKilledError, "ptxas was killed by SIGKILL"),
        ("exit 0", ToolSilentError, "ptxas ended with exit code 0 but wrote nothing"),
        (": >unit.cubin", ToolSilentError, "ptxas ended with exit code 0 but wrote nothing"),
        ("echo hello >unit.cubin", ToolError, "ptxas wrote an object that does not read: not an object"),
        ('"$REAL" "$@"; exit 1', ToolError, "ptxas failed with exit code 1"),
        ("echo ptxas error : Registers allocation failed; exit 1", ToolError, "cannot fit it into its registers"),
    ],
)
def test_l10_stub_tools(wrapped: Callable[[str], PtxasProvider], script: str, kind: type[ToolError], message: str) -> None:
    with pytest.raises(kind, match=message):
        wrapped(script).compile(CALLS, target=SM_90, options=PLAIN)


def test_an_assembler_that_forgets_the_relocatable_is_found(wrapped: Callable[[str], PtxasProvider]) -> None:
    with pytest.raises(ToolError, match="ptxas wrote an object that is not relocatable"):
        wrapped('exec "$REAL" -arch=sm_90 unit.ptx -o unit.cubin').compile_relocatable(CALLS, target=SM_90, options=PLAIN)


# Linking


@pytest.mark.parametrize(
    "options", [PLAIN, AssembleOptions(debug=True, opt=0), AssembleOptions(lineinfo=True)], ids=["plain", "debug", "lines"]
)
def test_t10_an_image_depends_on_no_path_but_on_the_order(
    provider: PtxasProvider, save: Callable[..., LinkInput], tmp_path: Path, options: AssembleOptions
) -> None:
    one, two = save("a", kernel("a"), options=options), save("calls", CALLS, options=options)
    first = provider.link([one, two], target=SM_90, options=options).data
    for name in ("elsewhere/x.cubin", "else, where/x.cubin", "a, b/ab/x y.cubin", "a, b/ab/x.cubin"):
        moved = tmp_path / name
        moved.parent.mkdir(parents=True, exist_ok=True)
        moved.write_bytes(one.path.read_bytes())
        assert provider.link([LinkInput(moved, "renamed"), two], target=SM_90, options=options).data == first
    assert provider.link([two, LinkInput(moved, "renamed")], target=SM_90, options=options).data != first


def test_l8_an_object_assembled_without_c_is_refused(provider: PtxasProvider, save: Callable[..., LinkInput]) -> None:
    with pytest.raises(LinkError, match=r"kernel b of net/b\.cu: not a relocatable object \(assembled without -c\)"):
        provider.link([save("a", kernel("a")), save("b", kernel("b"), whole=True)], target=SM_90, options=PLAIN)


def test_contract_nvlink_itself_drops_it_in_silence(
    provider: PtxasProvider, save: Callable[..., LinkInput], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scons_gpu.assemble.inputs._wrong", lambda *_, **__: "")
    image = provider.link([save("a", kernel("a")), save("b", kernel("b"), whole=True)], target=SM_90, options=PLAIN)
    assert [each.symbol for each in elf.read(image.data).kernels] == ["a"]


@pytest.mark.parametrize(("keep", "message"), [(300, "cut short at 300 bytes"), (0, "empty"), (40, "no ELF header")])
def test_l8_a_damaged_object_is_refused(provider: PtxasProvider, save: Callable[..., LinkInput], keep: int, message: str) -> None:
    part = save("a", kernel("a"))
    part.path.write_bytes(part.path.read_bytes()[:keep])
    with pytest.raises(LinkError, match=rf"kernel a of net/a\.cu: .*{message}"):
        provider.link([part], target=SM_90, options=PLAIN)


def test_l4_an_object_for_another_architecture_is_refused(provider: PtxasProvider, save: Callable[..., LinkInput]) -> None:
    with pytest.raises(LinkError, match="assembled for sm_90, and this image is for sm_90a"):
        provider.link([save("a", kernel("a"))], target=SM_90A, options=PLAIN)


def test_an_object_twice_and_none_at_all(provider: PtxasProvider, save: Callable[..., LinkInput], tmp_path: Path) -> None:
    part = save("a", kernel("a"))
    (tmp_path / "link").symlink_to(part.path)
    with pytest.raises(LinkError, match=r"again: the same object as kernel a of net/a\.cu"):
        provider.link([part, LinkInput(tmp_path / "link", "again")], target=SM_90, options=PLAIN)
    with pytest.raises(LinkError, match="an object can be linked once"):
        provider.link([part, part], target=SM_90, options=PLAIN)
    with pytest.raises(LinkError, match="nothing to link"):
        provider.link([], target=SM_90, options=PLAIN)
    with pytest.raises(LinkError, match="gone: cannot be read: No such file"):
        provider.link([LinkInput(tmp_path / "gone", "gone")], target=SM_90, options=PLAIN)


def test_l5_messages_name_labels(provider: PtxasProvider, save: Callable[..., LinkInput]) -> None:
    with pytest.raises(MissingSymbolError) as missing:
        provider.link([save("a", kernel("a")), save("w", MISSING)], target=SM_90, options=PLAIN)
    assert missing.value.what == "nobody defines ext"
    assert missing.value.output == "nvlink error   : Undefined reference to 'ext' in 'kernel w of net/w.cu'\n"
    with pytest.raises(LinkError) as twice:
        provider.link([save("a", kernel("a")), save("b", kernel("a"))], target=SM_90, options=PLAIN)
    assert twice.value.what == "a is defined twice"
    assert "'kernel b of net/b.cu', first defined in 'kernel a of net/a.cu'" in twice.value.output


def test_l13_a_link_of_many_objects_meets_no_limit(
    wrapped: Callable[[str], PtxasProvider], save: Callable[..., LinkInput], tmp_path: Path
) -> None:
    template = save("kernel0000", kernel("kernel0000")).path.read_bytes()
    parts = []
    for number in range(1000):
        part = tmp_path / f"{number}.cubin"
        part.write_bytes(template.replace(b"kernel0000", b"kernel%04d" % number))
        parts.append(LinkInput(part, str(number)))
    counting = wrapped(f'echo $# >>{shlex.quote(str(tmp_path))}/arguments; exec "$REAL" "$@"')
    image = elf.read(counting.link(parts, target=SM_90, options=PLAIN).data)
    assert len(image.kernels) == 1000
    assert (tmp_path / "arguments").read_text() == "2\n"


def test_l10_a_linker_that_fails_in_other_ways(wrapped: Callable[[str], PtxasProvider], save: Callable[..., LinkInput]) -> None:
    part = save("a", kernel("a"))
    for script, kind, message in (
        ("exit 0", ToolSilentError, "nvlink ended with exit code 0 but wrote nothing"),
        ("kill -9 $$", ToolKilledError, "nvlink was killed"),
        ("exit 3", ToolError, "nvlink failed with exit code 3 and said nothing"),
    ):
        with pytest.raises(kind, match=message):
            wrapped(script).link([part], target=SM_90, options=PLAIN)
