"""The architectures that nvcc's -arch, -code and -gencode ask for, as GPU_ARCHS spells them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.toolchain.arch import Target, assembles_for

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Archs", "WrongArchError", "generated", "named"]

_NAME = re.compile(r"(?P<kind>sm|compute|lto)_(?P<number>\d+[af]?)")
_GROUPS = ("all", "all-major")
_WORD = re.compile(r"""\s*(?P<key>arch|code)\s*=\s*(?P<value>"[^"]*"|\[[^\]]*\]|'[^']*'|[^,\[\]"']*)\s*(?:,|$)""")


class WrongArchError(ValueError):
    """What cannot be built, with what to do."""


@dataclass(frozen=True)
class Archs:
    """What one option came to."""

    names: tuple[str, ...]
    """In GPU_ARCHS' spelling."""
    remark: str = ""
    """What is other than with nvcc; empty where nothing is."""


def generated(spec: str) -> Archs:
    """Of -gencode: `arch=compute_80,code=[sm_80,compute_80]`, with quotes or brackets or neither, in either order."""
    found: dict[str, str] = {}
    place = 0
    while place < len(spec):
        match = _WORD.match(spec, place)
        if match is None or match["key"] in found:
            msg = f'"{spec[place:]}" does not read: as in arch=compute_90,code=[sm_90,compute_90]'
            raise WrongArchError(msg)
        found[match["key"]] = match["value"].strip("\"'[] ")
        place = match.end()
    if missing := [key for key in ("arch", "code") if not found.get(key)]:
        msg = f"{missing[0]}= is missing: as in arch=compute_90,code=sm_90"
        raise WrongArchError(msg)
    return named(found["arch"], _parts(found["code"]))


def named(arch: str, codes: Sequence[str] = ()) -> Archs:
    """Of -arch, with what -code names. Without that `sm_90` stands for machine code and its PTX, as nvcc has it.

    `sm_90a` stands for plain PTX besides, for other GPUs (nvcc 13.0 and 13.5).
    """
    if arch == "native":
        msg = "it asks for a GPU at build time; name what is meant, so that all machines build the same"
        raise WrongArchError(msg)
    if arch in _GROUPS:
        if codes:
            msg = "it says all, and -code some"
            raise WrongArchError(msg)
        return Archs((arch,))
    kind, number = _split(arch)
    if not codes:
        plain = (f"compute_{number[:-1]}",) if number[-1] in "af" else ()
        return Archs((arch, f"compute_{number}", *plain) if kind == "sm" else (arch,))
    if kind != "compute":
        msg = f"with code= it is a dialect of PTX: compute_{number}"
        raise WrongArchError(msg)
    for code in codes:
        _check(number, code)
    older = [code for code in codes if _split(code)[1] != number]
    return Archs(tuple(codes), f"{', '.join(older)}: __CUDA_ARCH__ is that of the code, not of {arch}" if older else "")


def _parts(text: str) -> list[str]:
    return [part.strip(" \"'") for part in text.split(",") if part.strip(" \"'")]


def _split(name: str) -> tuple[str, str]:
    match = _NAME.fullmatch(name)
    if match is None:
        msg = f'"{name}" is no architecture: as in sm_90 or compute_90'
        raise WrongArchError(msg)
    if match["kind"] == "lto":
        msg = f"{name} puts optimising off to the link; here what a kernel calls is compiled into it before: sm_{match['number']}"
        raise WrongArchError(msg)
    return match["kind"], match["number"]


def _check(number: str, code: str) -> None:
    """Nvcc's own rule: the code must be one that the PTX can become."""
    kind, _ = _split(code)
    if not assembles_for(f"sm_{number}", Target(code, real=kind == "sm")):
        msg = f"{code} cannot be made of compute_{number}"
        raise WrongArchError(msg)
