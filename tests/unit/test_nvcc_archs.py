from __future__ import annotations

import pytest

from scons_gpu.source.nvcc_archs import WrongArchError, generated, named


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("arch=compute_80,code=sm_80", ["sm_80"]),
        ("code=sm_90,arch=compute_90", ["sm_90"]),
        ("arch=compute_90,code=[sm_90,compute_90]", ["sm_90", "compute_90"]),
        ('arch=compute_90,code="sm_90,compute_90"', ["sm_90", "compute_90"]),
        ("arch=compute_80, code=sm_80", ["sm_80"]),
        ("arch=compute_90a,code=sm_90a", ["sm_90a"]),
        ("arch=compute_100f,code=sm_103f", ["sm_103f"]),
        ("arch=compute_80,code=compute_80", ["compute_80"]),
    ],
)
def test_code_of_a_dialect(spec: str, names: list[str]) -> None:
    assert list(generated(spec).names) == names


def test_code_for_a_later_gpu_is_told() -> None:
    found = generated("arch=compute_80,code=[sm_80,sm_86]")
    assert found.names == ("sm_80", "sm_86")
    assert found.remark == "sm_86: __CUDA_ARCH__ is that of the code, not of compute_80"
    assert generated("arch=compute_80,code=sm_80").remark == ""


def test_a1_one_gpu_means_its_ptx_too() -> None:
    assert named("sm_90").names == ("sm_90", "compute_90")
    assert named("sm_90a").names == ("sm_90a", "compute_90a", "compute_90")
    assert named("compute_80").names == ("compute_80",)
    assert named("compute_80", ["sm_80", "compute_80"]).names == ("sm_80", "compute_80")
    assert named("all-major").names == ("all-major",)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("arch=compute_90", "code= is missing"),
        ("sm_90", "does not read"),
        ("arch=compute_90,code=sm_90,compute_90", "does not read"),
        ("arch=compute_80,code=sm_80,arch=compute_90,code=sm_90", "does not read"),
        ("arch=sm_90,code=sm_90", "it is a dialect of PTX: compute_90"),
        ("arch=compute_90,code=sm_80", "sm_80 cannot be made of compute_90"),
        ("arch=compute_90,code=lto_90", "lto_90 puts optimising off to the link"),
        ("arch=compute_90,code=90", '"90" is no architecture'),
    ],
)
def test_what_cannot_be(spec: str, words: str) -> None:
    with pytest.raises(WrongArchError, match=words):
        generated(spec)


def test_what_names_no_gpu() -> None:
    with pytest.raises(WrongArchError, match="asks for a GPU at build time"):
        named("native")
    with pytest.raises(WrongArchError, match="it says all, and -code some"):
        named("all", ["sm_90"])
