from __future__ import annotations

import pytest

from scons_gpu.errors import RefusedError
from scons_gpu.host.check import check
from scons_gpu.host.registered import Registered
from scons_gpu.plan import Part, Plan, PlannedKernel, PlannedState


def plan(arch: str, *kernels: str, state: str = "") -> Plan:
    parts = tuple(
        Part(digest=name, key=(), slice="s", role="unit", source="k.cu", bytes=1, kernels=(PlannedKernel(name, name, "k.cu"),))
        for name in kernels
    )
    held = (PlannedState(symbol=state, bytes=4, space="global", source="k.cu"),) if state else ()
    return Plan(module="k.cu", arch=arch, link="image", parts=parts, state=held, notes=(), problems=())


def plans(*found: Plan) -> dict[str, Plan]:
    return {each.arch: each for each in found}


def test_all_that_is_registered_is_there() -> None:
    held = plans(plan("sm_80", "k", "more", state="v"), plan("sm_90", "k", state="v"))
    assert check(Registered(kernels=("k",), variables=("v",)), held) == ""


def test_a_kernel_that_no_architecture_has_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"^kernel l\(\) is in the host's half"):
        check(Registered(kernels=("k", "_Z1lv"), variables=()), plans(plan("sm_80", "k"), plan("sm_90", "k")))


def test_a_variable_that_is_not_there_is_told() -> None:
    """Clang registers constants that host code only reads."""
    assert check(Registered(kernels=(), variables=("w", "v")), plans(plan("sm_80", "k"), plan("sm_90", "k", state="v"))) == (
        "variable w is not there for sm_80, sm_90: to copy to it or from it there will fail\n"
        "variable v is not there for sm_80: to copy to it or from it there will fail"
    )


def test_what_some_architectures_lack_is_told() -> None:
    held = plans(plan("sm_80", "l"), plan("sm_90", "k", "l"), plan("compute_75"))
    assert check(Registered(kernels=("k", "l"), variables=()), held) == (
        "kernel k is not there for sm_80, compute_75: to launch it there will fail\n"
        "kernel l is not there for compute_75: to launch it there will fail"
    )


def test_a_name_that_is_registered_twice_is_refused() -> None:
    with pytest.raises(RefusedError, match="kernel k is registered 2 times"):
        check(Registered(kernels=("k", "k"), variables=()), plans(plan("sm_90", "k")))


def test_a_stub_without_its_kernel_is_refused() -> None:
    """Without a fatbin nothing is registered."""
    stubs = Registered(kernels=(), variables=(), stubs=("_Z1kILi3EEvPi",))
    with pytest.raises(RefusedError, match=r"kernel k<3>\(int\*\) is in the host's half"):
        check(stubs, plans(plan("sm_90")))
    assert check(stubs, plans(plan("sm_90", "_Z1kILi3EEvPi"))) == ""
