from __future__ import annotations

from typing import TYPE_CHECKING

from scons_gpu.toolchain import runtime

if TYPE_CHECKING:
    from pathlib import Path

    from scons_gpu.toolchain.tools import Toolchain


def test_the_library_of_the_wheels_headers_is_beside_them(toolchain: Toolchain) -> None:
    found = runtime.find(toolchain.headers)
    assert found is not None
    assert found.match("nvidia/cuda_runtime/lib/libcudart_static.a")


def test_a_toolkits_library_is_found_in_its_layout(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include/cuda_runtime.h").touch()
    assert runtime.find(str(tmp_path)) is None
    for folder in ("targets/sbsa-linux/lib", "lib", "lib64"):
        library = tmp_path / folder / runtime.LIBRARY
        library.parent.mkdir(parents=True)
        library.touch()
        assert runtime.find(str(tmp_path)) == library
    assert tmp_path / "lib64" in runtime.folders(str(tmp_path))
