from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scons_gpu import errors
from scons_gpu.errors import GpuError, RegisterError, SourceError, ToolError, UsageError, from_json
from scons_gpu.lower.llvm import lower
from scons_gpu.lower.options import LowerOptions
from scons_gpu.source.ir import read_ir
from scons_gpu.split import split
from scons_gpu.toolchain.arch import parse

if TYPE_CHECKING:
    from pathlib import Path

CLASSES = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, GpuError)]
PARTS = ("kernel", "module", "source", "arch", "output", "hint")


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ({}, "it broke"),
        ({"kernel": "f(int)", "module": "then", "source": "a.cu", "arch": "sm_90"}, "kernel f(int) of then/a.cu (sm_90): it broke"),
        ({"kernel": "f(int)"}, "kernel f(int): it broke"),
        ({"kernel": "f(int)", "source": "a.cu"}, "kernel f(int) of a.cu: it broke"),
        ({"kernel": "f(int)", "arch": "sm_90"}, "kernel f(int) (sm_90): it broke"),
        ({"kernel": "f(int)", "module": "then"}, "kernel f(int) of then: it broke"),
        ({"module": "then"}, "module then: it broke"),
        ({"module": "then", "arch": "sm_90"}, "module then (sm_90): it broke"),
        ({"module": "then", "source": "a.cu"}, "then/a.cu: it broke"),
        ({"source": "a.cu", "arch": "sm_90"}, "a.cu (sm_90): it broke"),
        ({"arch": "sm_90"}, "sm_90: it broke"),
    ],
)
def test_a_message_says_which_kernel_of_which_module_and_source(context: dict[str, str], message: str) -> None:
    assert str(GpuError("it broke", **context)) == message


def test_the_tools_words_are_indented_and_the_hint_is_last() -> None:
    error = ToolError("ptxas failed", module="m", output="line 1\n  line 2\n\n", hint="do this")
    assert str(error) == "module m: ptxas failed\n    line 1\n      line 2\n  do this"


def test_at_fills_in_what_is_not_known_and_keeps_the_rest() -> None:
    error = SourceError("no", source="a.cu")
    assert error.at(module="m", source="b.cu", arch="sm_90") is error
    assert str(error) == "m/a.cu (sm_90): no"
    assert str(error.at()) == "m/a.cu (sm_90): no"
    with pytest.raises(SourceError):
        raise error.at(kernel="k")


def test_every_class_has_a_kind_of_its_own() -> None:
    assert len(CLASSES) > 10
    assert len({cls.kind for cls in CLASSES}) == len(CLASSES)
    assert {cls.__name__ for cls in CLASSES} <= set(errors.__all__)


@given(st.sampled_from(CLASSES), st.text(), st.dictionaries(st.sampled_from(PARTS), st.text()))
def test_an_error_crosses_a_process_boundary(cls: type[GpuError], what: str, context: dict[str, str]) -> None:
    error = cls(what, **context)
    again = from_json(json.loads(json.dumps(error.to_json())))
    assert type(again) is cls
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_empty_parts_are_not_written() -> None:
    assert UsageError("no").to_json() == {"kind": "usage", "what": "no"}


def test_an_unknown_kind_is_still_an_error() -> None:
    assert type(from_json({"kind": "of a later version", "what": "no", "later": "field"})) is GpuError
    assert type(from_json({"what": "no"})) is GpuError


def test_providers_may_pass_on_by_class() -> None:
    assert issubclass(RegisterError, ToolError)
    assert not issubclass(SourceError, ToolError)


LAYOUT_OF_BYTES = 'target datalayout = "e-\u00e9i64:64"\ntarget triple = "nvptx64-nvidia-cuda"\n'
"""LLVM names the first byte of a letter, which is no text."""


def test_what_llvm_cuts_in_the_middle_of_a_letter_is_told(tmp_path: Path) -> None:
    (target,) = parse("sm_90")
    path = tmp_path / "a.ll"
    path.write_text(LAYOUT_OF_BYTES, encoding="utf-8")
    for read in (
        lambda: split(LAYOUT_OF_BYTES, source="a.ll", target=target, form="apart", put=lambda text: text),
        lambda: read_ir(path, target=target),
        lambda: lower(LAYOUT_OF_BYTES, target=target, options=LowerOptions(ptx=78)),
    ):
        with pytest.raises(SourceError) as caught:
            read()
        assert "unknown specifier" in str(caught.value)
        assert "\u00e9i64" in str(caught.value)
