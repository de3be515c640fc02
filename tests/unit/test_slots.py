from __future__ import annotations

import pytest

from scons_gpu.inspect.cubin import Place
from scons_gpu.inspect.slots import led

PRINT, ASSERT = (
    Place(what="function", name="vprintf", bytes=0, function=True),
    Place(what="function", name="__assertfail", bytes=0, function=True),
)
SLOTS = {0x0: PRINT, 0x28: ASSERT}


@pytest.mark.parametrize(
    ("opcode", "operands", "place"),
    [
        ("MOV", "R0,0x28", ASSERT),
        ("IMAD.MOV.U32", "R0,RZ,RZ,0x28", ASSERT),
        ("IMAD.MOV.U32", "R0,RZ,RZ,RZ", PRINT),
        ("HFMA2.MMA", "R0,-RZ,RZ,0,2.384185791015625e-06", ASSERT),  # the half whose bits are 0x28
        ("HFMA2.MMA", "R0,-RZ,RZ,0,0", PRINT),
        ("HFMA2.MMA", "R0,-RZ,RZ,1,0", None),  # no such slot
    ],
)
def test_an_offset_in_a_register_leads_to_its_slot(opcode: str, operands: str, place: Place | None) -> None:
    code = [(opcode, operands, False), ("MOV", "R5,0x1", False), ("LDC.64", "R2,c[0x4][R0]", False)]
    assert led(code, SLOTS.get) == {0: (place,), 2: (place,)}


def test_what_lies_behind_the_register_counts() -> None:
    code = [("MOV", "R0,0x20", False), ("LDC.64", "R2,c[0x4][R0+0x8]", False)]
    assert led(code, SLOTS.get) == {0: (ASSERT,), 1: (ASSERT,)}


@pytest.mark.parametrize(
    "code",
    [
        [("MOV", "R0,R9", False)],
        [("IADD3", "R0,R9,0x28,RZ", False)],
        [("MOV", "R0,0x28", False), ("BRA", "0x100", True)],  # it may come from elsewhere
        [],
    ],
)
def test_a_register_that_cannot_be_told_is_none(code: list[tuple[str, str, bool]]) -> None:
    assert led([*code, ("LDC.64", "R2,c[0x4][R0]", False)], SLOTS.get) == {len(code): (None,)}
