from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from scons_gpu.errors import ToolError
from scons_gpu.inspect.cubin import Cubin
from scons_gpu.inspect.disassembly import Program

if TYPE_CHECKING:
    from pathlib import Path

    from scons_gpu.toolchain.tools import Toolchain

PTX = """
.version 9.0
.target {arch}
.address_size 64
.visible .entry k(.param .u64 x, .param .u32 n) {{
  .local .align 4 .b8 array[400];
  .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<2>;
  ld.param.u64 %rd1, [x]; ld.param.u32 %r1, [n];
  mov.u64 %rd2, array;
  mul.wide.u32 %rd3, %r1, 4; add.u64 %rd4, %rd2, %rd3;
  st.local.u32 [%rd4], %r1; st.local.u32 [%rd2], %r1;
  ld.local.u32 %r2, [%rd4+8];
  st.global.u32 [%rd1], %r2;
  ret;
}}
"""


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_instructions_are_counted_as_nvdisasm_shows_them(arch: str, toolchain: Toolchain, tmp_path: Path) -> None:
    """Counts come from the bytes, so that nothing is disassembled for their sake."""
    assert toolchain.ptxas
    assert toolchain.nvdisasm
    (tmp_path / "k.ptx").write_text(PTX.format(arch=arch))
    subprocess.run([toolchain.ptxas.path, f"-arch={arch}", "k.ptx", "-o", "k.cubin"], cwd=tmp_path, check=True)
    code = Program(Cubin((tmp_path / "k.cubin").read_bytes()), nvdisasm=toolchain.nvdisasm.path).functions["k"]
    opcodes = [one.opcode for one in code.instructions]
    assert "NOP" in opcodes
    assert code.length == sum(opcode != "NOP" for opcode in opcodes)
    assert code.local == sum(opcode.startswith(("LDL", "STL")) for opcode in opcodes) >= 3


def test_a_disassembler_that_says_nothing_is_a_tool_error(toolchain: Toolchain, tmp_path: Path) -> None:
    assert toolchain.ptxas
    (tmp_path / "k.ptx").write_text(PTX.format(arch="sm_90").replace("+8", "+12"))
    subprocess.run([toolchain.ptxas.path, "-arch=sm_90", "k.ptx", "-o", "k.cubin"], cwd=tmp_path, check=True)
    code = Program(Cubin((tmp_path / "k.cubin").read_bytes(), label="k.cubin"), nvdisasm="/bin/true").functions["k"]
    assert code.length > 5  # needs none
    with pytest.raises(ToolError, match=r"does not read k\.cubin"):
        assert code.instructions
