"""The key of an object: everything that shapes its bytes, as fields that the store compares."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from scons_gpu.assemble.provider import AssembleOptions, Provider
    from scons_gpu.toolchain.arch import Target

__all__ = ["FORMAT", "Kind", "object_key"]

FORMAT = "scons-gpu/object/1"
Kind = Literal["whole", "rel"]


def object_key(*, digest: str, kind: Kind, provider: Provider, options: AssembleOptions, target: Target) -> tuple[tuple[str, str], ...]:
    """(field, value), sorted by field. `digest` names the PTX (or the body, where twins share an object).

    The options go in as the provider spells them. `fail_on_spill` shapes no byte, but an object made without it may be one it would refuse.
    """
    spelled = provider.spelling(target=target, options=options, relocatable=kind == "rel")
    fields = {
        "arch": target.name,
        "digest": digest,
        "format": FORMAT,
        "kind": kind,
        "options": json.dumps(spelled),
        "provider": f"{provider.name} {provider.identity}",
        **({"fail_on_spill": "1"} if options.fail_on_spill else {}),
    }
    return tuple(sorted(fields.items()))
