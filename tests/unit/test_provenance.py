from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement, statement_pb2

from scons_gpu.errors import DamagedError
from scons_gpu.link.provenance import Input, Provenance, from_text, to_text

if TYPE_CHECKING:
    from collections.abc import Callable

HASH = "ab" * 32
SAID = Provenance(
    subjects={"net/b.fatbin": HASH, "net.json": "cd" * 32},
    inputs=[Input("tool", "driver", "", "580.1"), Input("source", "k.cu", HASH), Input("tool", "ptxas", HASH, "13.5.37")],
    external={"release": "net-1.0", "programs": {"net.json": {"archs": ["sm_90"]}}},
    internal={"compression": {"level": 19}},
    versions={"scons-gpu": "1.0 abc"},
)


def test_it_is_a_statement_with_a_slsa_predicate_by_the_published_formats() -> None:
    text = to_text(SAID)
    read = json_format.Parse(text, statement_pb2.Statement())  # a field that the format does not have is an error there
    statement.Statement.copy_from_pb(read).validate()
    made = json_format.Parse(json.dumps(json.loads(text)["predicate"]), provenance_pb2.Provenance())
    assert read.type == "https://in-toto.io/Statement/v1"
    assert read.predicate_type == "https://slsa.dev/provenance/v1"
    assert [subject.name for subject in read.subject] == ["net.json", "net/b.fatbin"]
    assert made.build_definition.build_type.startswith("urn:")
    assert [dependency.name for dependency in made.build_definition.resolved_dependencies] == ["k.cu", "driver", "ptxas"]
    assert made.build_definition.resolved_dependencies[2].digest["sha256"] == HASH
    assert made.run_details.builder.version["scons-gpu"] == "1.0 abc"
    assert not made.run_details.HasField("metadata"), "it would tell when"


def test_it_is_read_again_and_does_not_depend_on_order() -> None:
    text = to_text(SAID)
    assert to_text(from_text(text, path="p")) == text
    assert to_text(Provenance(SAID.subjects, [*reversed(SAID.inputs), SAID.inputs[0]], SAID.external, SAID.internal, SAID.versions)) == text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.update(_type="https://in-toto.io/Statement/v0.1"), "_type is 'https://in-toto.io/Statement/v0.1', not"),
        (lambda data: data.update(predicateType="x"), "predicateType is 'x'"),
        (lambda data: data["predicate"]["buildDefinition"].update(buildType=1), "buildType is 1"),
        (lambda data: data["predicate"].pop("runDetails"), "runDetails is no object"),
        (lambda data: data["subject"][0].pop("digest"), "field 'digest' is not there"),
        (lambda data: data.update(predicate=[]), "predicate is no object"),
        (lambda data: data.update(subject=7), "not iterable"),
    ],
)
def test_another_form_is_told_by_its_field(change: Callable[[Any], Any], said: str) -> None:
    data = json.loads(to_text(SAID))
    change(data)
    with pytest.raises(DamagedError, match=r"^p: no provenance of a release: ") as error:
        from_text(json.dumps(data), path="p")
    assert said in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "7", "[" * 100000, '{"predicate": null}'])
def test_what_is_none_at_all_is_a_plain_error(text: str) -> None:
    with pytest.raises(DamagedError):
        from_text(text, path="p")
