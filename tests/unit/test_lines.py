from __future__ import annotations

import json
from dataclasses import dataclass

from scons_gpu.store.lines import to_lines


@dataclass(frozen=True)
class Item:
    name: str
    parts: tuple[str, ...] = ()


def test_an_item_is_a_line_and_keys_are_sorted() -> None:
    text = to_lines({"items": (Item("b", ("x", 'y"')), Item("ä\n")), "empty": [], "format": "f"})
    assert (
        text
        == '{\n"empty": [],\n"format": "f",\n"items": [\n{"name": "b", "parts": ["x", "y\\""]},\n{"name": "\\u00e4\\n", "parts": []}\n]\n}\n'
    )
    assert json.loads(text)["items"][0] == {"name": "b", "parts": ["x", 'y"']}


def test_an_object_without_fields() -> None:
    assert json.loads(to_lines({})) == {}
