from __future__ import annotations

import pytest

from scons_gpu.errors import BudgetError, UsageError
from scons_gpu.inspect.budgets import check, read, refusal
from scons_gpu.inspect.figures import Figures, Row


def row(name: str, *, module: str = "then", arch: str = "sm_90", **figures: int | None) -> Row:
    return Row(module, f"_Z{name}", name, "k.cu", arch, "d" * 32, Figures(**figures))


ROWS = [
    row("softmax<256>(float*)", registers=40, spill_bytes=8, code_bytes=1024),
    row("softmax<512>(float*)", registers=90, spill_bytes=0, code_bytes=4096),
    row("fill", module="els", registers=8, spill_bytes=0, code_bytes=256),
    row("fill", module="els", arch="compute_90"),
]
BUDGET = """
[[kernels]]
match = "*"
registers = 64
spill_bytes = 0

[[kernels]]
match = "softmax<512>*"
registers = 90
"""


def test_the_last_table_that_names_a_figure_decides_on_it() -> None:
    checked = check(read(BUDGET, path="b.toml"), ROWS)
    assert [(each.row.readable, each.figure, each.value, each.limit, each.by) for each in checked.exceeded] == [
        ("softmax<256>(float*)", "spill_bytes", 8, 0, "*")
    ]
    assert (checked.kernels, checked.free) == (4, 0)
    assert checked.sentence() == "3 of 4 kernels are within their budget"
    turned = check(tuple(reversed(read(BUDGET, path="b.toml"))), ROWS)
    assert ("softmax<512>(float*)", 64) in {(each.row.readable, each.limit) for each in turned.exceeded}


def test_a_table_may_be_for_a_module_or_an_architecture() -> None:
    limits = read('[[kernels]]\nmatch = "*"\nmodule = "e*"\narch = "sm_*"\ninstructions = 15\n', path="b.toml")
    checked = check(limits, ROWS)
    assert [(each.row.module, each.row.arch, each.figure, each.value) for each in checked.exceeded] == [
        ("els", "sm_90", "instructions", 16)
    ]
    assert checked.sentence() == "0 of 1 kernels are within their budget, 3 have none"


def test_a_symbol_matches_too() -> None:
    assert check(read('[[kernels]]\nmatch = "_Zfill"\nregisters = 7\n', path="b.toml"), ROWS).exceeded[0].row.readable == "fill"


def test_the_refusal_shows_all_that_exceeds() -> None:
    checked = check(read('[[kernels]]\nmatch = "softmax*"\nregisters = 32\ncode_bytes = 2000\n', path="b.toml"), ROWS)
    refused = refusal(checked, budget="b.toml")
    assert isinstance(refused, BudgetError)
    assert str(refused).splitlines() == [
        "2 kernels take more than b.toml allows",
        "    module  kernel                arch   what        is    limit  by",
        "    then    softmax<256>(float*)  sm_90  registers   40    32     softmax*",
        "    then    softmax<512>(float*)  sm_90  registers   90    32     softmax*",
        "    then    softmax<512>(float*)  sm_90  code_bytes  4096  2000   softmax*",
        "  make them smaller, or raise the limit in b.toml",
    ]
    assert refusal(check(read('[[kernels]]\nmatch = "*"\nregisters = 99\n', path="b.toml"), ROWS), budget="b.toml") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[kernels]\n", "b.toml is no TOML"),
        ("", r"b.toml: there is no table \[\[kernels\]\]"),
        ('[kernels]\nmatch = "*"\n', r"there is no table \[\[kernels\]\]"),
        ('[limits]\n[[kernels]]\nmatch = "*"\nregisters = 1\n', "b.toml: limits means nothing here"),
        ('[[kernels]]\nmatch = "*"\nregister = 64\n', "(?s)table 1: register is no limit.*did you mean registers"),
        (
            '[[kernels]]\nmatch = "*"\nregisters = 64\n[[kernels]]\nmatch = "*"\nweight = 1\n',
            "(?s)table 2: weight is no limit.*the limits are registers,",
        ),
        ("[[kernels]]\nregisters = 64\n", "match says which kernels it is for"),
        ("[[kernels]]\nmatch = 3\nregisters = 64\n", "match, module and arch are patterns"),
        ('[[kernels]]\nmatch = "*"\n', "table 1 sets no limit"),
        ('[[kernels]]\nmatch = "*"\nregisters = "64"\n', "registers = '64' is no number of 0 or more"),
        ('[[kernels]]\nmatch = "*"\nregisters = true\n', "registers = True is no number"),
        ('[[kernels]]\nmatch = "*"\nspill_bytes = -1\n', "spill_bytes = -1 is no number"),
    ],
)
def test_a_budget_that_cannot_be_meant_is_told(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(text, path="b.toml")


def test_a_pattern_without_a_kernel_is_told() -> None:
    with pytest.raises(UsageError, match=r"(?s)table 1: no kernel matches fil.*there is fill"):
        check(read('[[kernels]]\nmatch = "fil"\nregisters = 64\n', path="b.toml"), ROWS)
    with pytest.raises(UsageError, match=r"no kernel matches fill, module then"):
        check(read('[[kernels]]\nmatch = "fill"\nmodule = "then"\nregisters = 64\n', path="b.toml"), ROWS)


def test_a_figure_that_nobody_knows_is_told() -> None:
    with pytest.raises(UsageError, match=r"(?s)stack_bytes is known of no kernel that matches fill.*PTX"):
        check(read('[[kernels]]\nmatch = "fill"\nstack_bytes = 0\n', path="b.toml"), ROWS)
