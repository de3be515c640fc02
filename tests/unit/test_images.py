from __future__ import annotations

from scons_gpu.scons.packing import program_archs


def test_m7_the_order_of_submodules_does_not_show_in_a_programs_architectures() -> None:
    one, two, root = ["sm_90", "sm_75"], ["sm_100"], ["sm_90", "sm_80"]
    assert program_archs([one, two, root]) == program_archs([two, one, root]) == ["sm_90", "sm_80", "sm_100", "sm_75"]


def test_a1_the_roots_own_order_stays() -> None:
    assert program_archs([["compute_90", "sm_90", "sm_80"]]) == ["compute_90", "sm_90", "sm_80"]
