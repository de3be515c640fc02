"""The CUDA headers for clang: wheels linked together, toolkits, and the user's own folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scons_gpu.errors import GpuError, UsageError
from scons_gpu.toolchain import headers
from scons_gpu.toolchain.headers import Headers


def write_headers(home: Path, version: int = 12090) -> Path:
    (home / "include").mkdir(parents=True, exist_ok=True)
    (home / "include" / "cuda.h").write_text(f"#define CUDA_VERSION {version}\n")
    (home / "include" / "cuda_runtime.h").write_text("")
    return home


def write_wheels(site: Path, *, version: str = "12.9.79", cuda: int = 12090) -> Path:
    write_headers(site / "nvidia" / "cuda_runtime", cuda)
    (site / "nvidia" / "cuda_nvcc" / "include" / "crt").mkdir(parents=True)
    (site / "nvidia" / "cuda_nvcc" / "bin").mkdir()
    (site / "nvidia" / "cuda_cccl" / "include" / "cub").mkdir(parents=True)
    (site / "nvidia" / "cuda_cccl" / "include" / "__init__.py").write_text("")
    (site / f"nvidia_cuda_runtime_cu12-{version}.dist-info").mkdir()
    return site


def link(site: Path, facts: Path) -> Headers:
    found = headers.from_wheels(site, facts=facts)
    assert isinstance(found, Headers), found
    return found


def test_wheels_are_linked_into_one_folder(tmp_path: Path) -> None:
    site, facts = write_wheels(tmp_path / "site"), tmp_path / "facts"
    found = link(site, facts)
    home = Path(found.folder)
    assert found.version == "12.9"
    assert home.parent == facts
    assert sorted(path.name for path in (home / "include").iterdir()) == [
        "crt",
        "cub",
        "cuda.h",
        "cuda_runtime.h",
        "curand_mtgp32_kernel.h",
    ]
    assert (home / "include" / "curand_mtgp32_kernel.h").read_text() == ""
    assert (home / "bin").is_dir()
    assert list(facts.iterdir()) == [home]


def test_a_second_look_makes_nothing_anew(tmp_path: Path) -> None:
    site = write_wheels(tmp_path / "site")
    first = link(site, tmp_path / "facts")
    before = Path(first.folder).stat().st_ino
    assert link(site, tmp_path / "facts") == first
    assert Path(first.folder).stat().st_ino == before


def test_the_random_number_librarys_own_header_is_taken_if_it_is_there(tmp_path: Path) -> None:
    site = write_wheels(tmp_path / "site")
    own = site / "nvidia" / "curand" / "include" / "curand_mtgp32_kernel.h"
    own.parent.mkdir(parents=True)
    own.write_text("// real")
    assert (Path(link(site, tmp_path / "facts").folder) / "include" / own.name).read_text() == "// real"


@pytest.mark.parametrize("damage", ["a link", "the links", "everything"])
def test_t1_a_damaged_folder_is_made_again(tmp_path: Path, damage: str) -> None:
    site, facts = write_wheels(tmp_path / "site"), tmp_path / "facts"
    home = Path(link(site, facts).folder)
    if damage == "a link":
        (home / "include" / "cuda.h").unlink()
        (home / "include" / "cuda.h").symlink_to("/no/such/wheel")
    else:
        shutil.rmtree(home / "include" if damage == "the links" else home)
    assert Path(link(site, facts).folder) == home
    assert (home / "include" / "cuda.h").read_text().startswith("#define")
    assert list(facts.iterdir()) == [home]


def test_wheels_that_moved_are_linked_again(tmp_path: Path) -> None:
    facts = tmp_path / "facts"
    first = link(write_wheels(tmp_path / "one"), facts)
    shutil.move(tmp_path / "one", tmp_path / "other")
    assert link(tmp_path / "other", facts) == first
    assert (Path(first.folder) / "include" / "cuda.h").exists()


def test_t2_another_build_may_be_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, facts = write_wheels(tmp_path / "site"), tmp_path / "facts"
    put = headers._put_in_place

    def late(fresh: Path, home: Path) -> None:
        monkeypatch.setattr(headers, "_put_in_place", put)
        link(site, facts)
        put(fresh, home)

    monkeypatch.setattr(headers, "_put_in_place", late)
    home = Path(link(site, facts).folder)
    assert (home / "include" / "cuda.h").exists()
    assert list(facts.iterdir()) == [home]


def test_the_folders_name_is_made_of_versions_not_of_paths(tmp_path: Path) -> None:
    one = link(write_wheels(tmp_path / "one"), tmp_path / "one")
    two = link(write_wheels(tmp_path / "two-longer"), tmp_path / "two-longer")
    other = link(write_wheels(tmp_path / "other", version="12.8.1"), tmp_path / "other")
    assert Path(one.folder).name == Path(two.folder).name
    assert one.identity == two.identity != other.identity
    assert Path(one.folder).name != Path(other.folder).name


def test_what_is_missing_or_too_new_is_said(tmp_path: Path) -> None:
    assert headers.from_wheels(tmp_path, facts=tmp_path) == "no nvidia-cuda-runtime-cu12, nvidia-cuda-nvcc-cu12, nvidia-cuda-cccl-cu12"
    site = write_wheels(tmp_path / "site", cuda=13000)
    assert "13.0, of which clang 22 reads only a part" in str(headers.from_wheels(site, facts=tmp_path / "facts"))
    assert headers.from_toolkit(tmp_path / "nowhere") == "no headers there"
    assert "13.5, of which" in str(headers.from_toolkit(write_headers(tmp_path / "new", 13050)))
    old = headers.from_toolkit(write_headers(tmp_path / "old", 12040))
    assert old == Headers(folder=str(tmp_path / "old"), version="12.4", identity="cuda-12.4")


def test_given_headers_are_taken_as_they_are(tmp_path: Path) -> None:
    own = write_headers(tmp_path / "own", 13000)
    assert headers.given(str(own)) == Headers(folder=str(own), version="13.0", identity="cuda-13.0")
    with pytest.raises(UsageError, match="the folder above include is meant"):
        headers.given(str(own / "include"))
    with pytest.raises(UsageError, match="GPU_CUDA_HEADERS=/nowhere: there is no"):
        headers.given("/nowhere")


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    site = write_wheels(tmp_path / "site")
    (tmp_path / "file").write_text("")
    with pytest.raises(GpuError, match="file/cuda-headers"):
        link(site, tmp_path / "file")
