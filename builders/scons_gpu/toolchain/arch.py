"""Architecture names: every spelling that people use becomes one of NVIDIA's own names.

    90, 9.0, sm_90, 90-real         sm_90
    90a, 9.0a, sm_90a, 90a-real     sm_90a
    90-virtual, compute_90          compute_90
    8.6+PTX, sm_86+PTX              sm_86, compute_86
    all-major                       the least of each generation, and the last one's compute_XX
    all                             each one, and the last one's compute_XX

`all` and `all-major` never mean `a` and `f` names: their code runs on no other GPU, so they are asked for by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from scons_gpu.errors import UsageError
from scons_gpu.toolchain.tables import ARCHS, LLVM_PTX

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["GENERAL", "KNOWN", "Target", "assembles_for", "parse"]

_NAME = re.compile(r"(?P<kind>sm|compute)_(?P<number>\d+)(?P<suffix>[af]?)")
_TOKEN = re.compile(
    r"(?:(?P<prefix>sm|compute)_?)?(?P<number>\d+(?:\.\d)?)(?P<suffix>[af]?)(?:-(?P<kind>real|virtual))?(?P<ptx>\+ptx)?",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True)
class Target:
    """What one image is made for: a GPU (`sm_90a`, real) or a PTX dialect (`compute_90`, virtual)."""

    name: str
    real: bool

    @property
    def number(self) -> int:
        """The compute capability without its dot: 90 for 9.0, 121 for 12.1."""
        return int(_split(self.name)[1])

    @property
    def suffix(self) -> str:
        """`a` (this GPU only), `f` (its family only) or nothing."""
        return _split(self.name)[2]

    @property
    def cpu(self) -> str:
        """What LLVM and clang call it; `sm_90` also for `compute_90`."""
        return f"sm_{self.number}{self.suffix}"

    def __str__(self) -> str:
        return self.name


def _split(name: str) -> tuple[str, str, str]:
    match = _NAME.fullmatch(name)
    if match is None:
        msg = f'"{name}" is no architecture'
        raise UsageError(msg)
    return match["kind"], match["number"], match["suffix"]


def assembles_for(ptx: str, target: Target) -> bool:
    """Whether PTX whose `.target` is `ptx` can be made into what `target` names (PTX ISA, `.target`; a test asks ptxas).

    Plain PTX fits every later architecture, that of an `a` name itself alone, that of an `f` name its family from there on. PTX for other
    GPUs to come (`compute_90`) has to be plain.
    """
    match = _NAME.fullmatch(ptx)
    if match is None or match["kind"] != "sm":
        return False
    number, suffix = int(match["number"]), match["suffix"]
    if suffix == "a":
        return target.cpu == ptx
    later = target.number >= number
    if suffix == "f":
        return later and target.number // 10 == number // 10 and (target.real or bool(target.suffix))
    return later


# What LLVM or any assembler has ever known, oldest first, `sm_` left out: "90", "90a".
KNOWN: tuple[str, ...] = tuple(
    f"{arch.number}{suffix}" for arch in ARCHS for suffix in ("", "a", "f") if arch.least_ptx(suffix) is not None
)
# What `all` means where nobody says what the tools at hand take: what today's CUDA has not dropped and today's LLVM knows.
GENERAL: tuple[int, ...] = tuple(arch.number for arch in ARCHS if arch.dropped is None and arch.ptx <= max(LLVM_PTX.values()))


def parse(spec: str | Sequence[str], *, general: Collection[int] = GENERAL) -> tuple[Target, ...]:
    """The architectures that `spec` names, in its order, each once.

    A string may hold several, parted by spaces, commas or semicolons. `general` are the numbers that `all` and `all-major` choose from:
    pass `versions.supported(toolchain)`. Raises UsageError, which quotes the token and names what is known.
    """
    tokens = [token for item in _items(spec) for token in re.split(r"[\s,;]+", item) if token]
    if not tokens:
        msg = "no architecture is given"
        raise UsageError(msg, hint='name one or more, as in GPU_ARCHS=["sm_80", "sm_90", "compute_90"]')
    return tuple(dict.fromkeys(target for token in tokens for target in _parse_token(token, general)))


def _items(spec: object) -> list[str]:
    """A SConstruct may also hold numbers: 90, or 8.6."""
    return [str(item) for item in spec] if isinstance(spec, (list, tuple, set, frozenset)) else [str(spec)]


def _parse_token(token: str, general: Collection[int]) -> list[Target]:
    if token.lower() in {"all", "all-major"}:
        return _group(token.lower(), sorted(general))
    match = _TOKEN.fullmatch(token)
    number = _number(match["number"]) if match else 0
    suffix = match["suffix"].lower() if match else ""
    if match is None or f"{number}{suffix}" not in KNOWN:
        raise _unknown(token)
    prefix, kind = (match["prefix"] or "").lower(), (match["kind"] or "").lower()
    if (prefix, kind) in {("sm", "virtual"), ("compute", "real")}:
        msg = f'architecture "{token}" says both real and virtual'
        raise UsageError(msg, hint=f"sm_{number}{suffix} is machine code, compute_{number}{suffix} is PTX")
    virtual = prefix == "compute" or kind == "virtual"
    targets = [_virtual(number, suffix) if virtual else _real(number, suffix)]
    return [*targets, _virtual(number, suffix)] if match["ptx"] else targets


def _real(number: int, suffix: str = "") -> Target:
    return Target(name=f"sm_{number}{suffix}", real=True)


def _virtual(number: int, suffix: str = "") -> Target:
    return Target(name=f"compute_{number}{suffix}", real=False)


def _number(text: str) -> int:
    """8.6, 86 → 86. The digit after the dot is the minor one, so 12.1 is 121."""
    return int(text.replace(".", ""))


def _group(word: str, general: list[int]) -> list[Target]:
    """As nvcc's -arch=all and -arch=all-major: machine code for each, and PTX of the last for GPUs to come."""
    if not general:
        msg = f'architecture "{word}": the tools at hand know none in common'
        raise UsageError(msg)
    if word == "all-major":
        general = list({number // 10: number for number in reversed(general)}.values())[::-1]
    return [*map(_real, general), _virtual(general[-1])]


def _unknown(token: str) -> UsageError:
    known = [f"sm_{name}" for name in KNOWN]
    bare = token.lower().removeprefix("compute_").removeprefix("sm_").replace(".", "")
    near = get_close_matches(f"sm_{bare}", known, n=1, cutoff=0.75)
    msg = f'unknown architecture "{token}"' + (f"; is {near[0]} meant?" if near else "")
    if token.lower() == "native":
        msg = 'architecture "native" asks for a GPU at build time; name what is meant, so that all machines build the same'
    names = ", ".join(known)
    return UsageError(msg, hint=f"known: {names}; each also as compute_XX, and as all-major or all")
