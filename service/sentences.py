"""Messages of errors as one line that is safe to show: on a terminal, in a log, in a document."""

from __future__ import annotations

LIMIT = 1000
"""Characters. A name in a model can be a megabyte long."""


def one_sentence(text: str, limit: int = LIMIT) -> str:
    r"""White space becomes single spaces, what a terminal would obey is written as `\x1b`.

    A text over the limit loses its middle: the offender's name stands at the start, what is wrong
    with it often at the end.
    """
    line = " ".join(text.split())
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    if len(shown) <= limit:
        return shown
    half = (limit - 3) // 2
    return f"{shown[:half]}...{shown[-half:]}"


def with_reason(what: str, reason: str | None) -> str:
    """`cancelled: out of time`; what happened alone if nobody gave a reason. A reason may hold
    names that workers chose."""
    return f"{what}: {one_sentence(reason)}" if reason else what
