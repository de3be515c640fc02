from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from scons_gpu.errors import DamagedError, LinkError
from scons_gpu.link.bundle import Entry, object_name, read_bundle, write_bundle

ENTRIES = [Entry("sm_90", "b.cubin", b"second"), Entry("sm_80", "a.cubin", b"first"), Entry("compute_90", "d.ptx", b"text")]


def test_what_goes_in_comes_out() -> None:
    bundle = read_bundle(write_bundle(ENTRIES, manifest='{"schema": "ü"}\n'))
    assert bundle.manifest == '{"schema": "ü"}\n'
    assert bundle.objects == {"sm_90/b.cubin": b"second", "sm_80/a.cubin": b"first", "compute_90/d.ptx": b"text"}


def test_r7_members_are_stored_sorted_and_dated_alike() -> None:
    data = write_bundle(ENTRIES, manifest="{}")
    assert data == write_bundle(ENTRIES[::-1], manifest="{}")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
    assert [member.filename for member in members] == ["compute_90/d.ptx", "manifest.json", "sm_80/a.cubin", "sm_90/b.cubin"]
    assert {member.date_time for member in members} == {(1980, 1, 1, 0, 0, 0)}
    assert {member.compress_type for member in members} == {zipfile.ZIP_STORED}
    assert {member.external_attr >> 16 for member in members} == {0o100644}
    assert {member.create_system for member in members} == {3}
    assert b"second" in data


def test_d1_an_object_that_two_kernels_share_stands_once() -> None:
    assert write_bundle([*ENTRIES, ENTRIES[0]], manifest="{}") == write_bundle(ENTRIES, manifest="{}")


def test_two_objects_of_one_name_are_refused() -> None:
    with pytest.raises(LinkError, match=r"two objects of the bundle have the name sm_90/b\.cubin"):
        write_bundle([*ENTRIES, Entry("sm_90", "b.cubin", b"other")], manifest="{}")


def test_an_objects_name_is_its_key() -> None:
    assert object_name(Path("/s/object/ab/abcd.whole.cubin")) == "abcd"
    assert object_name(Path("/s/ptx/ab/abcd.2.ptx")) == "abcd.2"
    assert object_name(Path("/s/object/ab/abcd.2.rel.cubin")) == "abcd.2"


def test_what_is_no_bundle_is_named() -> None:
    data = write_bundle(ENTRIES, manifest="{}")
    for bad in (
        b"",
        b"PK",
        data[:-30],
        data[10:],
        data.replace(b"second", b"sekond"),
        write_bundle([], manifest="{}").replace(b"manifest", b"manifeZt"),
    ):
        with pytest.raises(DamagedError, match=r"net\.gpubundle: not a bundle"):
            read_bundle(bad, path="net.gpubundle")
