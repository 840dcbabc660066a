"""Makes untrusted text safe for output on a terminal, in a log or in a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LIMIT = 1000
"""Limit of the characters of a message. A name in a model can be a megabyte long."""


def one_sentence(text: str, limit: int = LIMIT) -> str:
    r"""Return the text on one line, with single spaces and control characters escaped (`\x1b`).

    If the text exceeds `limit` characters, its middle is replaced with "...". In error messages the
    start usually names the cause, and the end states the error.
    """
    line = " ".join(text.split())
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    if len(shown) <= limit:
        return shown
    half = (limit - 3) // 2
    return f"{shown[:half]}...{shown[-half:]}"


def with_reason(what: str, reason: str | None) -> str:
    """Return a text and its reason on one line: `cancelled: out of time`.

    Without a reason, return the text. The reason is escaped, because it may contain an untrusted
    name.
    """
    return f"{what}: {one_sentence(reason)}" if reason else what


def visible(text: str) -> str:
    """Return the text with non-printable characters escaped, except line feeds and tabs."""
    if text.isprintable():
        return text
    return "".join(
        c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def schedule_text(chosen: Any) -> str:
    """Return a schedule on one line: the algorithm and the knobs, as in `gemm unroll=4`.

    `chosen` is the JSON form of the schedule.
    """
    if isinstance(chosen, dict) and "algorithm" in chosen:
        choices = chosen.get("choices", {})
        knobs = choices.items() if isinstance(choices, dict) else ()
        return " ".join([str(chosen["algorithm"]), *(f"{k}={v}" for k, v in knobs)])
    return str(chosen) if chosen else "-"


def failures_text(failures: Mapping[str, int]) -> str:
    """Return the numbers of failed trials by kind: "2 crash, 1 build error", or "none"."""
    kinds = (f"{count} {kind.replace('_', ' ')}" for kind, count in failures.items())
    return ", ".join(kinds) or "none"
