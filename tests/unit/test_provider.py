from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import scons_gpu
from scons_gpu.assemble.key import is_twin, object_key, unit_key
from scons_gpu.assemble.provider import AssembleOptions, Capabilities
from scons_gpu.assemble.ptxas import PtxasProvider
from scons_gpu.errors import ToolMissingError
from scons_gpu.plan import Part, PlannedKernel
from scons_gpu.toolchain.arch import Target, parse
from scons_gpu.toolchain.tools import Tool

SM_90, SM_90A = parse(["sm_90", "sm_90a"])


@pytest.fixture
def fake(tmp_path: Path) -> Tool:
    """A ptxas that counts its calls and knows function cloning."""
    path = tmp_path / "ptxas"
    path.write_text(f"#!/bin/sh\necho $* >>{tmp_path}/calls\necho '--enable-func-clone-sc <true|false>'\n")
    path.chmod(0o755)
    return Tool(name="ptxas", path=str(path), version="13.5.37", identity="a" * 64, origin="test")


def key(provider: PtxasProvider, **changes: object) -> tuple[tuple[str, str], ...]:
    options = AssembleOptions(**{name: value for name, value in changes.items() if name not in ("digest", "kind", "target")})  # type: ignore[arg-type]
    rest = {
        "digest": "d" * 32,
        "kind": "rel",
        "target": SM_90,
        **{name: changes[name] for name in ("digest", "kind", "target") if name in changes},
    }
    return object_key(provider=provider, options=options, **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "e" * 32},
        {"kind": "whole"},
        {"target": SM_90A},
        {"opt": 1},
        {"lineinfo": True},
        {"debug": True},
        {"maxrregcount": 32},
        {"flags": ("-dlcm=ca",)},
        {"fail_on_spill": True},
        {"warn_on_spill": True},
    ],
)
def test_d2_whatever_shapes_an_object_is_in_its_key(fake: Tool, tmp_path: Path, change: dict[str, object]) -> None:
    provider = PtxasProvider(ptxas=fake, nvlink=None, facts=tmp_path / "facts")
    assert key(provider) == key(provider)
    assert key(provider, **change) != key(provider)


def test_d2_another_assembler_is_another_key(fake: Tool, tmp_path: Path) -> None:
    one, other = (PtxasProvider(ptxas=replace(fake, identity=each * 64), nvlink=None, facts=tmp_path / "facts") for each in "ab")
    assert key(one) != key(other)


def part(*kernels: str, body: str = "b", **fields: str) -> Part:
    named = tuple(PlannedKernel(symbol=name, readable=name, source="a.cu") for name in kernels)
    key = tuple(sorted({"slice": f"slice of {kernels}", "opt": "3", **fields}.items()))
    return Part(digest="d", key=key, slice="", role="unit" if kernels else "state", source="a.cu", bytes=1, kernels=named, body=body)


def test_d7_units_of_one_digest_have_objects_of_their_own(fake: Tool, tmp_path: Path) -> None:
    provider = PtxasProvider(ptxas=fake, nvlink=None, facts=tmp_path / "facts")
    keys = [
        unit_key(each, kind="whole", provider=provider, options=AssembleOptions(), target=SM_90)
        for each in (part("one"), part("two"), part("one", opt="1"))
    ]
    assert len(set(keys)) == 3


def test_d1_twins_have_one_object_where_nothing_but_names_differs(fake: Tool, tmp_path: Path) -> None:
    provider = PtxasProvider(ptxas=fake, nvlink=None, facts=tmp_path / "facts")

    def twin(each: Part, *, is_one: bool = True) -> tuple[tuple[str, str], ...]:
        return unit_key(each, kind="whole", provider=provider, options=AssembleOptions(), target=SM_90, twin=is_one)

    assert twin(part("one")) == twin(replace(part("two"), digest="e"))
    others = [twin(part("one", body="c")), twin(part("one", opt="1")), twin(part("one"), is_one=False)]
    assert len({twin(part("one")), *others}) == 4
    # A body that is another unit's digest, as a cut hash may have it.
    assert twin(part("one", body="d")) != twin(part("one"), is_one=False)
    assert is_twin(part("one"), share=True)
    assert not any((is_twin(part("one"), share=False), is_twin(part("one", "two"), share=True), is_twin(part(), share=True)))


def test_the_report_and_the_linker_are_in_no_key(fake: Tool, tmp_path: Path) -> None:
    provider = PtxasProvider(ptxas=fake, nvlink=None, facts=tmp_path / "facts")
    linking = PtxasProvider(ptxas=fake, nvlink=replace(fake, name="nvlink"), facts=tmp_path / "facts")
    assert key(provider, verbose=True) == key(provider) == key(linking)


def test_flags_cannot_run_into_one_another(fake: Tool, tmp_path: Path) -> None:
    provider = PtxasProvider(ptxas=fake, nvlink=None, facts=tmp_path / "facts")
    assert key(provider, flags=("a b",)) != key(provider, flags=("a", "b"))


def test_one_spelling(fake: Tool, tmp_path: Path) -> None:
    provider = PtxasProvider(ptxas=fake, nvlink=None, facts=tmp_path / "facts")
    default = provider.spelling(target=SM_90, options=AssembleOptions(), relocatable=False)
    assert default == ("-v", "-arch=sm_90"), "a default spelled out would change bytes"
    every = AssembleOptions(opt=0, lineinfo=True, debug=True, maxrregcount=40, flags=("-dlcm=ca",))
    spelled = "-v -arch=sm_90a -O0 -lineinfo -g -maxrregcount=40 -c -enable-func-clone-sc true -dlcm=ca"
    assert " ".join(provider.spelling(target=SM_90A, options=every, relocatable=True)) == spelled


def test_capabilities_are_what_was_found(fake: Tool, tmp_path: Path) -> None:
    alone = PtxasProvider(ptxas=fake, nvlink=None, facts=tmp_path / "facts")
    assert alone.capabilities == Capabilities(compile=True, relocatable=True, link=False, clones_functions=True)
    assert PtxasProvider(ptxas=fake, nvlink=fake, facts=tmp_path / "facts").capabilities.link
    with pytest.raises(ToolMissingError, match="cannot link: there is no nvlink beside"):
        alone.link([], target=SM_90, options=AssembleOptions())


def test_an_assembler_without_cloning_is_not_asked_for_it(fake: Tool, tmp_path: Path) -> None:
    provider = PtxasProvider(ptxas=replace(fake, path="/bin/true", identity="b" * 64), nvlink=None, facts=tmp_path / "facts")
    assert not provider.capabilities.clones_functions
    assert provider.spelling(target=SM_90, options=AssembleOptions(), relocatable=True) == ("-v", "-arch=sm_90", "-c")


def test_help_is_asked_once_per_tool(fake: Tool, tmp_path: Path) -> None:
    for _ in range(3):
        assert PtxasProvider(ptxas=fake, nvlink=None, facts=tmp_path / "facts").capabilities.clones_functions
    assert (tmp_path / "calls").read_text() == "--help\n"
    for kept in (tmp_path / "facts").rglob("*.json"):
        kept.write_text("{")
    assert PtxasProvider(ptxas=fake, nvlink=None, facts=tmp_path / "facts").capabilities.clones_functions
    assert (tmp_path / "calls").read_text() == "--help\n" * 2, "a damaged fact is asked again"


def test_making_one_starts_nothing(fake: Tool, tmp_path: Path) -> None:
    PtxasProvider(ptxas=fake, nvlink=fake, facts=tmp_path / "facts")
    assert not (tmp_path / "calls").exists()


def test_l12_a_tool_of_unknown_version_is_another_one_in_each_process(fake: Tool, tmp_path: Path) -> None:
    provider = PtxasProvider(ptxas=replace(fake, version=""), nvlink=replace(fake, version=""), facts=tmp_path / "facts")
    assert provider.identity == provider.link_identity
    code = "from scons_gpu.assemble import identity; print('unknown', identity.THIS_PROCESS)"
    environ = {**os.environ, "PYTHONPATH": str(Path(scons_gpu.__file__).parents[1])}
    others = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ).stdout for _ in "ab"}
    assert len({f"{provider.identity}\n", *others}) == 3


@dataclass(frozen=True)
class InProcess:
    """A provider that is no program fits the same key."""

    name: str = "driver"
    identity: str = "580.1"

    def spelling(self, *, target: Target, options: AssembleOptions, relocatable: bool) -> tuple[str, ...]:
        return (target.name, str(options.opt), str(relocatable))


def test_other_providers_fit(fake: Tool, tmp_path: Path) -> None:
    fields = dict(object_key(digest="d", kind="whole", provider=InProcess(), options=AssembleOptions(), target=SM_90))  # type: ignore[arg-type]
    assert fields["provider"] == "driver 580.1"
    assert fields != dict(key(PtxasProvider(ptxas=fake, nvlink=None, facts=tmp_path / "facts"), kind="whole"))
