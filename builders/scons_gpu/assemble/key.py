"""The key of an object: everything that shapes its bytes, as fields that the store compares."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from scons_gpu.assemble.provider import AssembleOptions, Provider
    from scons_gpu.plan.model import Part
    from scons_gpu.toolchain.arch import Target

__all__ = ["FORMAT", "Kind", "is_twin", "object_key", "options_of", "unit_key"]

FORMAT = "scons-gpu/object/2"
Kind = Literal["whole", "rel"]


def options_of(part: Part, options: AssembleOptions) -> AssembleOptions:
    """How the part becomes an object: as its module's do, unless it has options of its own."""
    if part.assemble is None:
        return options
    return dataclasses.replace(options, **{**part.assemble, "flags": tuple(part.assemble["flags"])})


def unit_key(  # noqa: PLR0913 - one keyword per thing that shapes an object
    part: Part, *, kind: Kind, provider: Provider, options: AssembleOptions, target: Target, twin: bool = False
) -> tuple[tuple[str, str], ...]:
    """The key of a part's object. The PTX's whole key stands in it, so a collision of digests is none of objects.

    `twin`: the object may serve kernels of other names too, so its key has the body where others have the slice.
    """
    named = {"body": part.body} if twin else {}
    shaped = {f"ptx {name}": value for name, value in part.key if not (twin and name == "slice")}
    fields = object_key(digest=part.body if twin else part.digest, kind=kind, provider=provider, options=options, target=target)
    return tuple(sorted({**dict(fields), **named, **shaped}.items()))


def is_twin(part: Part, *, share: bool) -> bool:
    """Whether the part's whole object may serve kernels of other names too, where the user wants that."""
    return share and part.role == "unit" and len(part.kernels) == 1


def object_key(*, digest: str, kind: Kind, provider: Provider, options: AssembleOptions, target: Target) -> tuple[tuple[str, str], ...]:
    """(field, value), sorted by field. `digest` names the PTX (or the body, where twins share an object).

    The options go in as the provider spells them. Those about spills shape no byte, but an object made without them may be one that they
    would refuse or tell of.
    """
    spelled = provider.spelling(target=target, options=options, relocatable=kind == "rel")
    fields = {
        "arch": target.name,
        "digest": digest,
        "format": FORMAT,
        "kind": kind,
        "options": json.dumps(spelled),
        "provider": f"{provider.name} {provider.identity}",
        **{name: "1" for name in ("fail_on_spill", "warn_on_spill") if getattr(options, name)},
    }
    return tuple(sorted(fields.items()))
