from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scons_gpu.errors import UsageError
from scons_gpu.plan import Part, PlannedKernel
from scons_gpu.scons.unit_files import file_name, folder_of


def unit(readable: str, symbol: str = "", *more: str, candidate: str = "") -> Part:
    kernels = tuple(PlannedKernel(symbol=each, readable=each, source="a.cu") for each in more)
    first = PlannedKernel(symbol=symbol or readable, readable=readable, source="a.cu")
    return Part(digest="d", key=(), slice="s", role="unit", source="a.cu", bytes=1, kernels=(first, *kernels), candidate=candidate)


def test_a_plain_name_stays() -> None:
    assert file_name(unit("saxpy")) == "saxpy"
    assert file_name(unit("_kernel_2.x")) != "_kernel_2.x"  # hidden and private names get a letter in front


def test_what_a_name_loses_a_hash_replaces() -> None:
    names = [
        file_name(unit("void softmax<256>(float*)", "_Z7softmaxILi256EEvPf")),
        file_name(unit("void softmax<256>(int*)", "_Z7softmaxILi256EEvPi")),
        file_name(unit("softmax_256")),
        file_name(unit("softmax", "softmax", "other")),
        file_name(unit("softmax", candidate="TILE=64")),
        file_name(unit("softmax", candidate="TILE=128")),
    ]
    assert [name.partition("-")[0] for name in names] == [
        "softmax_256",
        "softmax_256",
        "softmax_256",
        "softmax_and_1_more",
        "softmax_TILE_64",
        "softmax_TILE_128",
    ]
    assert len(set(names)) == 6
    assert file_name(unit("k", candidate="MODE=a+b")) != file_name(unit("k", candidate="MODE=a-b"))
    state = Part(digest="d", key=(), slice="s", role="state", source="ops/a.cu", bytes=1, defines=("x",))
    assert file_name(state).startswith("state_of_ops_a.cu-")


@given(st.text(min_size=1), st.text(min_size=1))
def test_names_are_safe_short_and_do_not_meet(one: str, other: str) -> None:
    for name in (file_name(unit(one)), file_name(unit(other))):
        assert name.isascii()
        assert not set(name) & set("/\\\0 <>*?:|\"'\n$`~;&()")
        assert not name.startswith((".", "-"))
        assert len(name) <= 110
    assert (file_name(unit(one)) == file_name(unit(other))) == (one == other)


def test_modules_do_not_meet_wherever_their_folders_are() -> None:
    top, dump = Path("/work/tree"), Path("/dump")
    assert folder_of(dump, Path("/work/tree/build/net/ops"), top=top) == Path("/dump/build/net/ops")
    outside = [folder_of(dump, Path(f"/{place}/net/ops"), top=top) for place in ("one", "two")]
    assert all(path.parent.parent == dump and path.parent.name.startswith("net-") and path.name == "ops" for path in outside)
    assert len(set(outside)) == 2


def test_a_dump_among_what_is_built_is_refused() -> None:
    """A kernel may be called as a source is: its slice would lie where the source's IR does."""
    for dump in ("/work/tree", "/work/tree/"):
        with pytest.raises(UsageError, match="the files would lie among those that the build makes in /work/tree/build/net/ops"):
            folder_of(Path(dump), Path("/work/tree/build/net/ops"), top=Path("/work/tree"))
