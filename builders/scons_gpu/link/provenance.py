"""What a release was made from, by what, with which options: an in-toto Statement v1 with a SLSA Provenance v1 predicate.

Formats: in-toto attestation framework, spec/v1/statement.md and spec/v1/resource_descriptor.md; SLSA v1.0, provenance. Fields that tell
when, where or by whom a build was run are optional there, and are left out: equal inputs have equal statements.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import DamagedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["BUILDER", "BUILD_TYPE", "PREDICATE", "STATEMENT", "Input", "Provenance", "from_text", "to_text"]

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:scons-gpu:release:1"
"""What `externalParameters` and `internalParameters` hold: docs/releasing.md."""
BUILDER = "urn:scons-gpu:builder:1"
"""Whoever runs SCons with this tool: it tells what was built from what, and not who vouches for that."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, order=True)
class Input:
    """One file that shaped the release, or one tool."""

    kind: str
    """`source`, `header`, `tuning`, `licence`, or `tool`."""
    name: str
    """Below the top, or below the root of a toolkit: never where it lies on a machine."""
    sha256: str
    """Of its content; of what a tool's path leads to."""
    version: str = ""


@dataclass(frozen=True)
class Provenance:
    """What the statement says."""

    subjects: Mapping[str, str]
    """File of the release → its SHA-256."""
    inputs: Sequence[Input]
    external: Mapping[str, Any]
    """What the user asked for."""
    internal: Mapping[str, Any] = field(default_factory=dict)
    """What was decided for him, and shapes bytes."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of what ran the build."""


def to_text(provenance: Provenance) -> str:
    """The statement as its file holds it."""
    return json.dumps(_statement(provenance), sort_keys=True, ensure_ascii=False, indent=1) + "\n"


def _statement(provenance: Provenance) -> dict[str, Any]:
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(provenance.subjects.items())],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": dict(provenance.external),
                "internalParameters": dict(provenance.internal),
                "resolvedDependencies": [_descriptor(each) for each in sorted(set(provenance.inputs))],
            },
            "runDetails": {"builder": {"id": BUILDER, "version": dict(provenance.versions)}},
        },
    }


def _descriptor(each: Input) -> dict[str, Any]:
    """A ResourceDescriptor. What has no checksum, as the driver's own compiler, is told by name and version."""
    digest = {"digest": {"sha256": each.sha256}} if _SHA256.fullmatch(each.sha256) else {}
    annotations = {"kind": each.kind, **({"version": each.version} if each.version else {})}
    return {"name": each.name, **digest, "annotations": annotations}


def from_text(text: str, *, path: str) -> Provenance:
    """Reads what `to_text` wrote, and nothing else. Raises DamagedError, which tells the field."""
    try:
        return _read(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        msg = f"{path}: no provenance of a release: {f'field {error} is not there' if isinstance(error, KeyError) else error}"
        raise DamagedError(msg) from None


def _read(data: Mapping[str, Any]) -> Provenance:
    predicate = _held(data, "predicate")
    definition = _held(predicate, "buildDefinition")
    _same("_type", data.get("_type"), STATEMENT)
    _same("predicateType", data.get("predicateType"), PREDICATE)
    _same("buildType", definition.get("buildType"), BUILD_TYPE)
    return Provenance(
        subjects={each["name"]: each["digest"]["sha256"] for each in data["subject"]},
        inputs=[_input(each) for each in definition["resolvedDependencies"]],
        external=_held(definition, "externalParameters"),
        internal=_held(definition, "internalParameters"),
        versions=_held(_held(_held(predicate, "runDetails"), "builder"), "version"),
    )


def _same(name: str, value: object, wanted: str) -> None:
    if value != wanted:
        msg = f"{name} is {value!r}, not {wanted!r}"
        raise ValueError(msg)


def _held(data: Any, name: str) -> dict[str, Any]:  # noqa: ANN401 - what JSON holds
    if not isinstance(data, dict) or not isinstance(data.get(name), dict):
        msg = f"{name} is no object"
        raise TypeError(msg)
    found: dict[str, Any] = data[name]
    return found


def _input(data: Mapping[str, Any]) -> Input:
    annotations = data["annotations"]
    return Input(
        kind=str(annotations["kind"]),
        name=str(data["name"]),
        sha256=str(data.get("digest", {}).get("sha256", "")),
        version=str(annotations.get("version", "")),
    )
