"""Error messages as one line that is safe to print on a terminal, in a log, in a document."""

from __future__ import annotations

LIMIT = 1000
"""Limit of a message, in characters. A name in a model can be a megabyte long."""


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
