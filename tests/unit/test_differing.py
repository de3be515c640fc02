from __future__ import annotations

from scons_gpu.inspect.differing import Place, places
from scons_gpu.link import release
from scons_gpu.store.archive import write_zip


def test_equal_files_have_no_places() -> None:
    assert places(b"a", b"a") == []


def test_text_differs_in_a_line() -> None:
    assert places(b"one\ntwo\n", b"one\n three\n") == [Place("line 2", "two", "three")]
    assert places(b"one\n", b"one\ntwo\n") == [Place("line 2", "", "two")]
    long = places(b"x" * 500 + b"/home/a" + b"y" * 500, b"x" * 500 + b"/home/b" + b"y" * 500)[0]
    assert len(long.one) <= 160
    assert ("/home/a" in long.one, "/home/b" in long.other) == (True, True)


def test_bytes_show_the_text_around_them_or_themselves() -> None:
    assert places(b"\0\0/home/first\0", b"\0\0/home/other\0") == [Place("", "/home/first", "/home/other")]
    assert places(b"\0\1\2", b"\0\1\3") == [Place("", "02 at byte 2 of 3", "03 at byte 2 of 3")]
    assert places(b"\0\1", b"\0\1\3") == [Place("", "nothing at byte 2 of 2", "03 at byte 2 of 3")]


def test_archives_differ_in_members_from_the_outside_in() -> None:
    one, other = (write_zip({"sm_90/k.cubin": data, "manifest.json": b"{}"}) for data in (b"\0a", b"\0b"))
    assert places(one, other) == [Place("sm_90/k.cubin", "61 at byte 1 of 2", "62 at byte 1 of 2")]
    outer = [write_zip({"in": each}) for each in (one, other)]
    assert [place.where for place in places(*outer)] == ["in: sm_90/k.cubin"]
    assert places(write_zip({"a": b""}), write_zip({"b": b""})) == [Place("a", "there", "not there"), Place("b", "not there", "there")]


def test_releases_differ_in_files() -> None:
    one, other = (
        release.archive("net-1.0", {"f": data}, programs=[], inputs=[], options=release.Options(level=1), versions={})
        for data in (b"a\n", b"b\n")
    )
    found = {place.where: (place.one, place.other) for place in places(one, other)}
    assert found["f: line 1"] == ("a", "b")
    assert {where.partition(":")[0] for where in found} == {"f", "SHA256SUMS", "components.cdx.json", "provenance.intoto.json"}


def test_what_only_looks_like_a_format_is_compared_as_bytes() -> None:
    for start in (b"\x7fELF", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"\x50\xed\x55\xba"):
        assert places(start + b"\0\0a", start + b"\0\0b") != []
