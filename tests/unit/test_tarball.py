from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from scons_gpu.link.tarball import misnamed, read_tar, where, write_tar

if TYPE_CHECKING:
    from collections.abc import Callable

FILES = {"net/z": b"last", "net/a/b": b"x" * 1000, "net/empty": b""}


def tar(*infos: tarfile.TarInfo, data: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for info in infos:
            info.size = len(data) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def member(name: str, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def test_what_is_written_is_read_again_in_order() -> None:
    data = write_tar(FILES)
    assert list(read_tar(data).items()) == sorted(FILES.items())
    assert write_tar(dict(reversed(FILES.items()))) == data
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:  # and by everybody else
        told = {(info.mode, info.mtime, info.uid, info.gid, info.uname, info.gname) for info in archive}
        assert archive.getnames() == sorted(FILES)
    assert told == {(0o644, 315532800, 0, 0, "", "")}


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../b", "a//b", "", ".", "a/./b", "line\nbreak", "back\\slash", "nul\0"])
def test_a_name_stays_below_its_folder_or_is_refused(name: str) -> None:
    assert misnamed(name)
    with pytest.raises(ValueError, match=r"path below|checksum files"):
        write_tar({name: b""})


def test_names_that_are_harmless_are_taken() -> None:
    long = "n" * 90 + "/" + "m" * 90
    names = {"net-1.0/ein Modul/späti.cubin": b"1", "...": b"2", "a/..b": b"3", long: b"4"}
    assert read_tar(write_tar(names)) == names
    with pytest.raises(ValueError, match="too long"):
        write_tar({"n" * 300: b""})


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: tar(member("a", type=tarfile.SYMTYPE, linkname="/etc/passwd")), "'a', whose header is at byte 0: it is a symbolic link"),
        (lambda: tar(member("a", type=tarfile.LNKTYPE, linkname="b")), "a hard link"),
        (lambda: tar(member("a", type=tarfile.DIRTYPE)), "a folder"),
        (lambda: tar(member("a", type=tarfile.CHRTYPE)), "a device"),
        (lambda: tar(member("a", type=tarfile.FIFOTYPE)), "a pipe"),
        (lambda: tar(member("../../x")), r"'../../x', whose header is at byte 0: its name is no path below"),
        (lambda: tar(member("/x")), "no path below"),
        (lambda: tar(member("x"), member("x")), "x: there twice"),
        (lambda: tar(member("x"), data=b"y" * 600)[:900], "x: cut short: 388 of 600 bytes are there"),
        (lambda: b"", "no tar file"),
        (lambda: bytes(10240), "without members"),
        (lambda: b"rubbish" * 200, "the header at byte 0 does not read"),
        (lambda: write_tar(FILES).replace(b"ustar\x0000", b"ustar  \0"), "the checksum of its header is another"),
        (lambda: write_tar(FILES).replace(b"net/z", b"net/y", 1), "'net/y', whose header is at byte 2048: the checksum"),
    ],
)
def test_what_no_release_holds_is_refused_by_name(made: Callable[[], bytes], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_tar(made())


def test_a_byte_is_found_by_what_it_is_part_of() -> None:
    names = [where(FILES, place) for place in (0, 512, 512 + 999, 512 + 1000, 512 + 1024, 512 + 1024 + 512 + 513, 9000)]
    assert names == [
        "the header of net/a/b",
        "byte 0 of net/a/b",
        "byte 999 of net/a/b",
        "the padding behind net/a/b",
        "the header of net/empty",
        "byte 1 of net/z",
        "the padding at the end",
    ]
