"""Parses `--max-loss`, the largest allowed loss of accuracy, and checks models against it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import assert_never

from tilewright.service.quantize.errors import QuantizeError
from tilewright.service.quantize.fidelity import Outputs


@dataclass(frozen=True, slots=True)
class LeastSqnr:
    """A lower limit of the signal-to-quantisation-noise ratio of each output, in decibels."""

    decibels: float

    def __str__(self) -> str:
        return f"{self.decibels:g} dB"


@dataclass(frozen=True, slots=True)
class MostChanged:
    """An upper limit of the fraction of rows, from 0 to 1, whose top-1 class changes."""

    share: float

    def __str__(self) -> str:
        return f"{100 * self.share:g} %"


Limit = LeastSqnr | MostChanged


def parse_limit(text: str) -> Limit:
    """Parse the text of `--max-loss`: LeastSqnr(30) for "30dB", MostChanged(0.01) for "1%".

    Raises:
        QuantizeError: if the text has neither form, or the number is out of range.
    """
    plain = text.strip().lower()
    for unit in ("db", "%"):
        if plain.endswith(unit):
            try:
                number = float(plain.removesuffix(unit))
            except ValueError:
                break
            if unit == "db" and math.isfinite(number):
                return LeastSqnr(number)
            if unit == "%" and 0 <= number < 100:
                return MostChanged(float(Decimal(str(number)) / 100))  # 0.7 % is 7 of 1000
            break
    raise QuantizeError(
        f"--max-loss '{text}': expected decibels that the outputs keep above their noise (30dB), "
        "or the share of answers of a classification that may change (1%)"
    )


def keeps(limit: Limit, outputs: Outputs) -> bool:
    """Return whether a quantised model's outputs meet the limit.

    Call `check_limit` first, because an output without classes meets any limit on classes.
    """
    match limit:
        case LeastSqnr(decibels):
            return all(output.fidelity.sqnr_db >= decibels for output in outputs)
        case MostChanged(share):
            tops = [output.top_one for output in outputs if output.top_one is not None]
            return all(top.changed <= share for top in tops)
        case _:
            assert_never(limit)


def check_limit(limit: Limit, outputs: Outputs) -> tuple[str, ...]:
    """Check that a limit is applicable to a model's outputs. Return warnings, one sentence each.

    A warning names outputs that the limit does not cover, or states that there are too few samples
    to verify the limit.

    Raises:
        QuantizeError: if the limit is a fraction of changed classes, and no output is a
            classification, or no classification has a row with a single largest element.
    """
    if isinstance(limit, LeastSqnr):
        return ()
    classified = {o.name: o.top_one.rows for o in outputs if o.top_one is not None}
    if not classified:
        raise QuantizeError(
            f"--max-loss {limit}: no output is a classification, (rows, classes); give decibels"
        )
    rows = [count for count in classified.values() if count]
    tied = ", ".join(f"'{name}'" for name, count in classified.items() if not count)
    if not rows:
        raise QuantizeError(
            f"--max-loss {limit}: no row of {tied} has a single largest element in float32, so it "
            "has no top-1 class; give decibels, or other samples"
        )
    notes = []
    if tied:
        notes.append(
            f"{limit} limits no loss of {tied}: no row has a single largest element in float32"
        )
    if limit.share and min(rows) * limit.share < 1:
        notes.append(
            f"{min(rows)} rows cannot show a loss of {limit}: none of their answers may change; "
            f"{math.ceil(1 / limit.share)} rows would show it"
        )
    if others := [f"'{output.name}'" for output in outputs if output.top_one is None]:
        notes.append(
            f"{limit} limits no loss of {', '.join(others)}, whose shape is not "
            "(rows, classes); a limit in decibels covers every output"
        )
    return tuple(notes)
