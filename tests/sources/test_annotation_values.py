"""Values of annotation files in every spelling that tools write, and notes on findings."""

from __future__ import annotations

import math

import pytest

from mmload.sources import Findings
from mmload.sources.annotation_values import read_flag, read_integer, read_number


@pytest.mark.parametrize("value", [1, 1.0, "1", "1.0", " 1 ", "1e0", "+1"])
def test_integer_of_one_in_any_spelling_is_one(value: object) -> None:
    assert read_integer(value) == 1
    assert type(read_integer(value)) is int


def test_integer_of_19_digits_as_text_keeps_every_digit() -> None:
    assert read_integer("9007199254740993") == 9007199254740993
    assert read_integer(str(2**63 - 1)) == 2**63 - 1


@pytest.mark.parametrize(
    "value", [None, True, 1.5, "1.5", "", "one", [1], {}, "nan", math.inf, 2**63, "1e30", -1e19, "1_0"]
)
def test_integer_of_anything_else_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="integer of 64 bits|finite number"):
        read_integer(value)


@pytest.mark.parametrize(("value", "expected"), [(1200, 1200.0), ("1200", 1200.0), ("1e3", 1000.0), (0.5, 0.5)])
def test_number_of_any_spelling_is_a_float(value: object, expected: float) -> None:
    assert read_number(value) == expected


@pytest.mark.parametrize("value", [None, False, "", "a", math.nan, "NaN", "inf", 10**400, [1.0], "1_0"])
def test_number_of_anything_else_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="finite number"):
        read_number(value)


@pytest.mark.parametrize("value", [1, 1.0, True, "1", "1.0", "true", "True", "yes"])
def test_flag_of_one_is_true(value: object) -> None:
    assert read_flag(value) is True


@pytest.mark.parametrize("value", [0, 0.0, False, None, "0", "0.0", "", "false", "No"])
def test_flag_of_zero_or_nothing_is_false(value: object) -> None:
    assert read_flag(value) is False


@pytest.mark.parametrize("value", [2, "Unspecified", 0.5, []])
def test_flag_of_anything_else_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="neither 0 nor 1"):
        read_flag(value)


def test_findings_of_a_kind_are_counted_with_the_first_three() -> None:
    findings = Findings()
    for name in "abcd":
        findings.add("boxes of no area are left out", name)
    findings.add("two names: the last is taken", "z")
    assert findings.notes() == (
        "boxes of no area are left out: 4 (a, b, c, ...)",
        "two names: the last is taken: 1 (z)",
    )
