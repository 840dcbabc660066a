"""Text that is safe to print on a terminal, in a log, in a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LIMIT = 1000
"""Limit of the characters of a message. A name in a model can be a megabyte long."""


def one_sentence(text: str, limit: int = LIMIT) -> str:
    r"""Return the text on one line, with single spaces and control characters escaped (`\x1b`).

    A text that exceeds the limit loses its middle. The start usually names the offender, and the
    end often states the error.
    """
    line = " ".join(text.split())
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    if len(shown) <= limit:
        return shown
    half = (limit - 3) // 2
    return f"{shown[:half]}...{shown[-half:]}"


def with_reason(what: str, reason: str | None) -> str:
    """Return an event with its reason, `cancelled: out of time`, or the event alone without one.

    The reason is escaped, because it may contain a worker's name.
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
    """Return a schedule's algorithm and knobs on one line, from the service's JSON."""
    if isinstance(chosen, dict) and "algorithm" in chosen:
        choices = chosen.get("choices", {})
        knobs = choices.items() if isinstance(choices, dict) else ()
        return " ".join([str(chosen["algorithm"]), *(f"{k}={v}" for k, v in knobs)])
    return str(chosen) if chosen else "-"


def failures_text(failures: Mapping[str, int]) -> str:
    """Return the numbers of failed trials by kind: "2 crash, 1 build error", or "none"."""
    kinds = (f"{count} {kind.replace('_', ' ')}" for kind, count in failures.items())
    return ", ".join(kinds) or "none"
