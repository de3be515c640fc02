from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scons_gpu.assemble import nvjitlink, nvjitlink_library
from scons_gpu.assemble.choose import choose
from scons_gpu.assemble.nvjitlink import NvJitLinkProvider
from scons_gpu.assemble.provider import AssembleOptions
from scons_gpu.errors import LinkError, ToolError, ToolKilledError, ToolMissingError
from scons_gpu.toolchain.libraries import Found, Libraries
from scons_gpu.toolchain.model import Tool
from scons_gpu.toolchain.tools import Toolchain

if TYPE_CHECKING:
    from scons_gpu.assemble.provider import Provider

from provider_parts import CALL, CALLEE, CALLER, HEAD, PLAIN, SM_80, SM_90, SM_90A, Parts, kernel, sections, symbols, tool

# nvJitLink


def test_one_spelling_of_nvjitlink(every: dict[str, Provider]) -> None:
    options = AssembleOptions(opt=1, lineinfo=True, debug=True, maxrregcount=40, flags=("-dlcm=ca",))
    spelled = (
        "-arch=sm_90a -Xptxas=-v -Xptxas=-O1 -lineinfo -g -maxrregcount=40 -Xptxas=-enable-func-clone-sc -Xptxas=true -r -Xptxas=-dlcm=ca"
    )
    assert " ".join(every["nvjitlink"].spelling(target=SM_90A, options=options, relocatable=True)) == spelled


def test_contract_nvjitlink_itself_drops_a_whole_object_in_silence(
    every: dict[str, Provider], parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scons_gpu.assemble.inputs._wrong", lambda *_, **__: "")
    whole = parts.save(every["ptxas"].compile(kernel("b"), target=SM_90, options=PLAIN).data, "b")
    linked = every["nvjitlink"].link([parts.object(kernel("a"), "a"), whole], target=SM_90, options=PLAIN)
    assert (symbols(linked.data), linked.output) == (["a"], "")


def test_a_library_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    real = nvjitlink_library.probe
    monkeypatch.setattr(nvjitlink_library, "probe", lambda path: tried.append(path) or real(path))
    for _ in range(2):
        assert NvJitLinkProvider(nvjitlink=tool("nvjitlink"), facts=tmp_path).capabilities.relocatable
    assert tried == [tool("nvjitlink").path]
    monkeypatch.setattr(nvjitlink, "bindings", lambda _: "")
    for _ in range(2):
        assert NvJitLinkProvider(nvjitlink=tool("nvjitlink"), facts=tmp_path / "other").capabilities.link
    assert len(tried) == 3, "what may change unseen is not kept"


FORGETS = """
from scons_gpu.assemble.nvjitlink_library import load
import sys
library, options, (undefined, unread) = load(sys.argv[1]), ["-arch=sm_90"], [[("x.ptx", text.encode())] for text in sys.argv[2:]]
codes = [library._here(options, inputs).code for inputs in (undefined, unread, undefined)]
print(*(code == 0 for code in codes), library.link(options, unread).code == 0, library.link(options, undefined).code == 0)
"""


def test_contract_nvjitlink_that_failed_links_what_is_undefined() -> None:
    """So it is not asked again in its process."""
    newer = kernel("a").replace("7.8", "99.9")
    done = subprocess.run(
        [sys.executable, "-c", FORGETS, tool("nvjitlink").path, CALLER, newer], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False", "True", "False", "False"]


def test_a_call_in_a_process_of_its_own_gives_the_same(parts: Parts) -> None:
    library = nvjitlink_library.load(tool("nvjitlink").path)
    given = [("part-000000.ptx", CALLER.encode()), ("part-000001.cubin", parts.object(CALLEE).path.read_bytes())]
    for options in (["-arch=sm_90", "-Xptxas=-v"], ["-arch=sm_33"]):
        apart = nvjitlink_library._apart(tool("nvjitlink").path, options, given)
        here = library.link(options, given)
        info = re.compile(r"[\d.]+ ms")
        assert replace(apart, seconds=0, cpu=0, info=info.sub("", apart.info)) == replace(
            here, seconds=0, cpu=0, info=info.sub("", here.info)
        )
    with pytest.raises(ToolError, match="the process in which nvJitLink was to run failed") as caught:
        nvjitlink_library._apart("/nowhere.so", [], [])
    assert "cannot open shared object file" in caught.value.output


def test_a_library_that_does_not_load_can_do_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "libnvJitLink.so.13"
    broken.write_bytes(b"no library")
    provider = NvJitLinkProvider(nvjitlink=replace(tool("nvjitlink"), path=str(broken)), facts=tmp_path / "facts")
    for ask in (lambda: provider.capabilities, lambda: provider.compile(kernel("a"), target=SM_90, options=PLAIN)):
        with pytest.raises(ToolMissingError, match=r"nvJitLink \(.*\) cannot be used: .*(invalid ELF header|file too short)$"):
            ask()


def test_g4_code_that_reads_constants_is_no_relocatable_object(every: dict[str, Provider]) -> None:
    """Its object would be linked without a word, and would read c[0x1c][-0x1]."""
    head = HEAD + ".extern .const .align 4 .u32 scale;\n"
    reads = kernel("a", "ld.const.u32 %r1, [scale];", head=head)
    with pytest.raises(ToolError, match="read other memory than the constants that they name") as caught:
        every["nvjitlink"].compile_relocatable(reads, target=SM_90, options=PLAIN)
    assert "GPU_DEFER=always" in caught.value.hint
    assert every["nvjitlink"].compile(reads.replace(".extern", ".visible"), target=SM_90, options=PLAIN).data


def test_t4_why_a_library_does_not_load_is_told_where_one_is_chosen(tmp_path: Path) -> None:
    """GPU_CUDA_PATH at a folder with such a file: "cannot link" would send its user after the wrong thing."""
    broken = tmp_path / "libnvJitLink.so.13"
    broken.write_bytes(b"")
    found = Found(Tool(name="nvjitlink", path=str(broken), version="13.5.37", identity="0" * 64, origin="GPU_CUDA_PATH"))
    for name in ("nvjitlink", "ptxas+nvjitlink"):
        machine = Toolchain(ptxas=tool("ptxas"), libraries=Libraries(known={"nvjitlink": found}))
        with pytest.raises(ToolMissingError, match="does not fit") as caught:
            choose(machine, wanted=name, needs=["link"], facts=tmp_path / "facts")
        assert f"{name}: nvJitLink ({broken}) cannot be used: {broken}: file too short" in caught.value.output


def test_a_trial_that_somebody_killed_says_nothing_about_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remembered, it would shut the library out until it changes."""
    facts, library = tmp_path / "facts", tool("nvjitlink")
    with monkeypatch.context() as patch:
        patch.setattr(nvjitlink_library, "_PROBE", "import os; os.kill(os.getpid(), 9)")
        with pytest.raises(ToolKilledError, match="nvJitLink was killed by SIGKILL"):
            _ = NvJitLinkProvider(nvjitlink=library, facts=facts).capabilities
    assert NvJitLinkProvider(nvjitlink=library, facts=facts).capabilities.link


def test_a_second_library_in_one_process_is_refused(every: dict[str, Provider], tmp_path: Path) -> None:
    every["nvjitlink"].compile(kernel("a"), target=SM_90, options=PLAIN)
    other = tmp_path / "libnvJitLink.so.13"
    other.write_bytes(Path(tool("nvjitlink").path).read_bytes())
    with pytest.raises(ToolError, match="another nvJitLink was loaded into this process before"):
        nvjitlink_library.load(str(other))
    assert nvjitlink_library.probe(str(other)) == {"link": "yes", "relocatable": "yes", "clones": "yes", "words": ""}, "alone, it is taken"


def test_what_others_print_meanwhile_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    import os  # noqa: PLC0415

    with nvjitlink_library._overheard() as heard:
        os.write(2, b"a warning of somebody\n@E@error   : its own\nerror   : its other\nno line end")
        assert capfd.readouterr().err == ""
    assert heard == ["error   : its own\n", "error   : its other\n"]
    assert capfd.readouterr().err == "a warning of somebody\nno line end"


def test_contract_nvjitlink_makes_ptxas_code_and_a_clone_keeps_the_registers(every: dict[str, Provider]) -> None:
    text = kernel("calls", CALL.replace("ext", "dev"), head=CALLEE.replace(".visible .func", ".func").replace("ext", "dev"))
    made = [
        every[name].compile_relocatable(text, target=SM_90, options=options)
        for name in ("ptxas", "nvjitlink")
        for options in (PLAIN, AssembleOptions(flags=("-enable-func-clone-sc", "false")))
    ]
    code = [{each.name: data.data[each.offset : each.offset + each.size] for each in sections(data.data)} for data in made]
    assert code[0][".text.calls"] == code[2][".text.calls"]
    assert code[1][".text.calls"] == code[3][".text.calls"]
    assert [each.resources[0].registers for each in made] == [8, 24, 8, 24]


def test_contract_an_object_of_nvjitlink_tells_no_suffix(every: dict[str, Provider], parts: Parts) -> None:
    own = Parts(folder=parts.folder, objects=every["nvjitlink"])
    with pytest.raises(LinkError, match=r"assembled for sm_80 \(a suffix is not told\), and this image is for sm_90"):
        every["nvjitlink"].link([own.object(kernel("a"), target=SM_80)], target=SM_90, options=PLAIN)
    assert symbols(every["nvjitlink"].link([own.object(kernel("a"))], target=SM_90A, options=PLAIN).data) == ["a"]
