"""IR that others made: what is read, and what is said of what cannot be."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite import binding

from scons_gpu.errors import SourceError
from scons_gpu.source import ir
from scons_gpu.source.ir import TRIPLE, read_ir
from scons_gpu.toolchain.arch import parse

TARGET = parse("sm_90")[0]
LAYOUT = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
KERNEL = f'target triple = "{TRIPLE}"\ndefine ptx_kernel void @k(ptr %p) {{\n  store i32 1, ptr %p\n  ret void\n}}\n'

OLD_DEBUG = """
!llvm.module.flags = !{!0}
!llvm.dbg.cu = !{!1}
!0 = !{i32 2, !"Debug Info Version", i32 1}
!1 = distinct !DICompileUnit(language: DW_LANG_C_plus_plus, file: !2, emissionKind: FullDebug)
!2 = !DIFile(filename: "k.cu", directory: "")
"""


def read(path: Path, text: str | bytes) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_ir(path, target=TARGET)[0]


def refused(path: Path, text: str | bytes) -> SourceError:
    with pytest.raises(SourceError) as caught:
        read(path, text)
    return caught.value


def bitcode(text: str) -> bytes:
    with binding.create_context() as context, binding.parse_assembly(text, context) as module:
        return module.as_bitcode()


def test_text_and_bitcode_read_the_same(tmp_path: Path) -> None:
    text = read(tmp_path / "k.ll", KERNEL)
    assert "define ptx_kernel void @k(ptr %p)" in text
    body = text[text.index("target datalayout") :]
    assert read(tmp_path / "k.bc", bitcode(KERNEL)).endswith(body)
    assert read(tmp_path / "b.ll", bitcode(KERNEL)).endswith(body)  # as LLVM's own tools, it goes by the content


def test_what_was_read_reads_again(tmp_path: Path) -> None:
    text = read(tmp_path / "k.ll", KERNEL)
    assert read(tmp_path / "again.ll", text) == text


def test_s1_annotations_of_older_tools_are_upgraded(tmp_path: Path) -> None:
    old = KERNEL.replace("ptx_kernel ", "") + '!nvvm.annotations = !{!0}\n!0 = !{ptr @k, !"kernel", i32 1, !"maxntidx", i32 256}\n'
    text = read(tmp_path / "k.ll", old)
    assert "define ptx_kernel void @k(" in text
    assert '"nvvm.maxntid"="256"' in text


def test_the_data_layout(tmp_path: Path) -> None:
    """Absent: the target's. One of the same target by an earlier LLVM: the target's as well. Another: refused."""
    own = f'target datalayout = "{LAYOUT}"'
    earlier = "e-i64:64-i128:128-v16:16-v32:32-n16:32:64"
    for layout in ("", f'target datalayout = "{LAYOUT}"\n', f'target datalayout = "{earlier}"\n'):
        assert own in read(tmp_path / "k.ll", layout + KERNEL)
    assert own in read(tmp_path / "k.bc", bitcode(KERNEL))
    for other in ("e-i64:64-v16:16-v32:32-n16:32:64", "e-m:e-p270:32:32-i64:64-f80:128-n8:16:32:64-S128"):
        error = refused(tmp_path / "k.ll", f'target datalayout = "{other}"\n' + KERNEL)
        assert f'the data layout is "{other}"' in str(error)
        assert LAYOUT in error.hint


def test_contract_the_layout_is_todays() -> None:
    binding.initialize_all_targets()
    machine = binding.Target.from_triple(TRIPLE).create_target_machine(cpu="sm_90")
    assert str(machine.target_data) == LAYOUT


def test_s13_broken_text_names_line_and_column(tmp_path: Path) -> None:
    error = refused(tmp_path / "k.ll", KERNEL.replace("store i32 1", "store i32 %gone"))
    assert str(error).startswith(f"{tmp_path}/k.ll:3:13: use of undefined value '%gone'")
    assert "store i32 %gone, ptr %p" in error.output
    assert error.source == f"{tmp_path}/k.ll:3:13"


def test_s13_text_that_does_not_verify_names_the_line(tmp_path: Path) -> None:
    text = KERNEL.replace("  store i32 1, ptr %p\n", "  %b = add i32 %a, 1 ; used first\n  %a = add i32 0, 1\n")
    error = refused(tmp_path / "k.ll", text)
    assert "LLVM's verifier refuses it: Instruction does not dominate all uses!" in str(error)
    text = KERNEL.replace("ret void", "br label %x\nx:\n  %y = phi i32 [ 1, %0 ], [ 2, %gone ]\n  ret void\ngone:\n  ret void")
    error = refused(tmp_path / "k.ll", text)
    assert error.source == f"{tmp_path}/k.ll:6"


def test_s13_bitcode_that_does_not_verify(tmp_path: Path) -> None:
    text = KERNEL.replace("ret void", "br label %x\nx:\n  %y = phi i32 [ 1, %0 ], [ 2, %gone ]\n  ret void\ngone:\n  ret void")
    error = refused(tmp_path / "k.bc", bitcode(text))
    assert error.source == f"{tmp_path}/k.bc"
    assert "PHINode" in str(error)


def test_s13_truncated_bitcode(tmp_path: Path) -> None:
    whole = bitcode(KERNEL)
    for length in (4, 8, 20, len(whole) // 2, len(whole) - 4, len(whole) - 1):
        error = refused(tmp_path / "k.bc", whole[:length])
        assert error.source == f"{tmp_path}/k.bc"
        assert "the file is truncated or damaged" in error.hint


def test_s13_bitcode_of_a_newer_llvm(tmp_path: Path) -> None:
    """No LLVM 23 is at hand to write some: these are the words that LLVM 22 has for it."""
    words = "LLVM bitcode parsing error\nUnknown attribute kind (102) (Producer: 'LLVM23.1.0' Reader: 'LLVM 22.1.0')"
    error = ir._unreadable(words, path=tmp_path / "k.bc", text="", reader=22)
    assert error.hint == "it was written by LLVM 23.1.0; what reads it here is LLVM 22.1.0"


def test_s13_text_of_a_newer_llvm(tmp_path: Path) -> None:
    newer = 'define void @f() newattribute { ret void }\n!llvm.ident = !{!0}\n!0 = !{!"Debian clang version 99.1.0"}\n'
    assert "it was written by LLVM 99; what reads it here is LLVM 22" in str(refused(tmp_path / "k.ll", newer))
    assert refused(tmp_path / "k.ll", newer.replace("99", "22")).hint == ""


def test_s13_wrong_triples(tmp_path: Path) -> None:
    for triple in ("x86_64-unknown-linux-gnu", "nvptx-nvidia-cuda", "nvptx64-nvidia-nvcl", "amdgcn-amd-amdhsa"):
        error = refused(tmp_path / "k.ll", KERNEL.replace(TRIPLE, triple))
        assert f'the target triple is "{triple}"' in str(error)
        assert f'target triple = "{TRIPLE}"' in error.hint
    error = refused(tmp_path / "k.ll", KERNEL.partition("\n")[2])
    assert "there is no target triple" in str(error)
    assert f'target triple = "{TRIPLE}"' in error.hint


@pytest.mark.parametrize("text", ["", "\n\n", "; only a comment\n", 'source_filename = "x"\n'])
def test_m4_an_empty_source_is_a_module_without_kernels(tmp_path: Path, text: str) -> None:
    assert f'target triple = "{TRIPLE}"' in read(tmp_path / "k.ll", text)


def test_files_that_are_no_ir(tmp_path: Path) -> None:
    assert "this is no LLVM bitcode" in str(refused(tmp_path / "k.bc", ""))
    assert "this is no LLVM bitcode" in str(refused(tmp_path / "k.bc", KERNEL))
    assert f"{tmp_path}/k.ll:2: a zero byte" in str(refused(tmp_path / "k.ll", "; a\n\0\n" + KERNEL))
    assert f"{tmp_path}/k.ll:3: a byte that is not UTF-8" in str(refused(tmp_path / "k.ll", b"; a\n\n\xff\n" + KERNEL.encode()))
    with pytest.raises(SourceError, match=r"gone\.ll: cannot be read: No such file"):
        read_ir(tmp_path / "gone.ll", target=TARGET)
    with pytest.raises(SourceError, match="cannot be read: Is a directory"):
        read_ir(tmp_path, target=TARGET)


def test_comments_may_hold_anything_that_is_utf_8(tmp_path: Path) -> None:
    assert "@k(" in read(tmp_path / "k.ll", "; größer ≥ 中\n" + KERNEL)


def test_d4_what_was_read_before_leaves_no_trace(tmp_path: Path) -> None:
    """In one context LLVM would rename the second file's type to %pair.0."""
    text = KERNEL + "%pair = type { i32, i32 }\n@g = global %pair zeroinitializer\n"
    first = read(tmp_path / "a.ll", text)
    assert read(tmp_path / "a.ll", text) == first
    assert "%pair.0" not in first


def test_t7_what_llvm_says_is_caught(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.ll"
    path.write_text(KERNEL + OLD_DEBUG)
    _, said = read_ir(path, target=TARGET)
    captured = capfd.readouterr()
    assert captured == ("", "")
    assert said == f"warning: ignoring debug info with an invalid version (1) in {path}"
    path.write_text(KERNEL)
    assert read_ir(path, target=TARGET)[1] == ""


def test_t5_llvm_is_loaded_only_when_something_is_read() -> None:
    code = (
        "import sys, scons_gpu.source.ir, scons_gpu.source.clang; assert not [name for name in sys.modules if name.startswith('llvmlite')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_real_ir_of_libdevice(tmp_path: Path) -> None:
    """Bitcode of a much older LLVM, with a triple of its own: read up to that."""
    libdevice = next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13/nvvm/libdevice/libdevice.10.bc"))
    error = refused(tmp_path / "libdevice.bc", libdevice.read_bytes())
    assert re.search(r'the target triple is "nvptx64-nvidia-gpulibs"', str(error))
