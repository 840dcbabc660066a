from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.host import host_target, resolve_target

TARGET = resolve_target("x86-64-v3")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"numerics": "exact"}, "numerics is 'exact', known are fast, strict, loose"),
        ({"precision": "int8"}, "precision is 'int8', known are float32, bfloat16, float16"),
        ({"threads": 0}, "expected 1 to 256 threads, got 0"),
    ],
)
def test_an_impossible_value_is_refused_when_the_mode_is_made(
    wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        Mode(TARGET, **wrong)
    with pytest.raises(InvalidArgumentError, match=said):
        replace(Mode(TARGET), **wrong)


def test_the_default_is_this_machine() -> None:
    assert Mode().target == host_target()


def test_a_record_key_holds_target_threads_and_numerics() -> None:
    mode = Mode(TARGET, 2, "strict", "bfloat16", in_place=False)
    assert mode.key == (TARGET.key, 2, "strict")


@pytest.mark.parametrize(
    "other",
    [
        {"target": resolve_target("x86-64-v4")},
        {"threads": 2},
        {"numerics": "loose"},
        {"precision": "float16"},
        {"in_place": False},
    ],
)
def test_modes_that_differ_have_different_json(other: dict[str, Any]) -> None:
    mode = Mode(TARGET)
    assert set(mode.to_json()) == {"target", "threads", "numerics", "precision", "in_place"}
    assert replace(mode, **other).to_json() != mode.to_json()
