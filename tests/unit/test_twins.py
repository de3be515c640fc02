from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scons_gpu.link import elf
from scons_gpu.link.twins import ANONYMOUS, anonymous

PTXAS = next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13/bin/ptxas"))

UNIT = """\
.version 7.8
.target sm_90
.address_size 64
.visible .global .align 4 .u32 kernel;
.visible .global .align 4 .u32 local_0;
.extern .shared .align 4 .b8 dynamic[];
.shared .align 4 .u32 NAME_shared;
.func (.param .b32 func_retval0) NAME_helper(.param .b32 NAME_helper_param_0)
{
	.reg .b32 %r<3>;
	ld.param.u32 %r1, [NAME_helper_param_0];
	st.param.b32 [func_retval0], %r1;
	ret;
}
// NAME starts here
.visible .entry NAME(.param .u64 NAME_param_0)
.maxntid 128
{
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	ld.param.u64 %rd1, [NAME_param_0];
	ld.global.u32 %r1, [kernel];
	st.shared.u32 [NAME_shared], %r1;
	bar.sync 0;
	ld.shared.u32 %r2, [NAME_shared];
	st.global.u32 [local_0], %r2;
	{
	.param .b32 param0;
	.param .b32 retval0;
	st.param.b32 [param0], %r2;
	call.uni (retval0), NAME_helper, (param0);
	ld.param.b32 %r3, [retval0];
	}
	st.global.u32 [%rd1], %r3;
	ret;
}
"""


def test_d1_twins_are_one_text() -> None:
    assert anonymous(UNIT.replace("NAME", "first")) == anonymous(UNIT.replace("NAME", "_Z6secondPf"))
    assert anonymous(UNIT.replace("NAME", "first")) != anonymous(UNIT.replace("NAME", "first").replace(".maxntid 128", ".maxntid 64"))


def test_d1_what_the_host_sees_keeps_its_name_whatever_it_is(tmp_path: Path) -> None:
    """A variable called `kernel` too."""
    (tmp_path / "unit.ptx").write_text(anonymous(UNIT.replace("NAME", "first")))
    subprocess.run([PTXAS, "-arch=sm_90", "unit.ptx", "-o", "unit.cubin"], cwd=tmp_path, check=True)
    read = elf.read((tmp_path / "unit.cubin").read_bytes())
    assert [kernel.symbol for kernel in read.kernels] == [ANONYMOUS]
    assert [symbol.name for symbol in read.variables if symbol.space == "global"] == ["kernel", "local_0"]
