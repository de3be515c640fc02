from __future__ import annotations

from pathlib import Path

import pytest

from scons_gpu.errors import DamagedError, UsageError
from scons_gpu.link import release
from scons_gpu.link.manifest import Image, Manifest, Module, to_text


def test_a_release_is_called_after_its_file() -> None:
    assert release.name_of("dist/net-1.0.tar.zst") == "net-1.0"
    for file in ("net.zip", ".tar.zst", "dist/..tar.zst", "a\nb.tar.zst"):
        with pytest.raises(UsageError, match=r"a release is a file NAME\.tar\.zst"):
            release.name_of(file)


def test_a_file_that_names_its_folder_is_refused() -> None:
    release.checked_places({"a": b"/home/you/p/x"}, Path("/home/me/p"))
    with pytest.raises(UsageError, match=r"^b holds the folder that it was built in, /home/me/p"):
        release.checked_places({"a": b"", "b": b"\0/home/me/p/x.cu\0"}, Path("/home/me/p"))
    release.checked_places({"a": b"/src"}, Path("/src"))  # so short that code may hold it by chance


def test_two_files_of_one_path_are_refused() -> None:
    with pytest.raises(UsageError, match=r"two files of the release would be net\.json"):
        release.contents([{"net.json": b""}, {"net.json": b""}], {})
    with pytest.raises(UsageError, match="would be SHA256SUMS"):
        release.contents([{release.SUMS: b""}], {})


def test_code_of_another_build_or_elsewhere_is_refused(tmp_path: Path) -> None:
    def written(file: str) -> Path:
        module = Module(bypass=False, images={"sm_90": Image(file=file, sha256=release.digest(b"code"))})
        path = tmp_path / "net.json"
        path.write_text(to_text(Manifest(program="net", archs=("sm_90",), tools={}, modules={"m": module})))
        return path

    with pytest.raises(DamagedError, match=r"net/x\.cubin: cannot be read: no such file"):
        release.read_program(written("net/x.cubin"))
    (tmp_path / "x.cubin").write_bytes(b"else")
    with pytest.raises(DamagedError, match=r"x\.cubin: not the image that its manifest names"):
        release.read_program(written("x.cubin"))
    (tmp_path / "x.cubin").write_bytes(b"code")
    assert sorted(release.read_program(written("x.cubin"))) == ["net.json", "x.cubin"]
    with pytest.raises(UsageError, match="is no path below a folder"):
        release.read_program(written("../x.cubin"))
