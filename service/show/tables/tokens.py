"""Columns of tables of tokens."""

from __future__ import annotations

from tilewright.service.api.schemas.tokens import TokenView
from tilewright.service.show.table import Cell, CellKind, Column
from tilewright.service.show.units import moment


def tokens(now: float) -> tuple[Column[TokenView], ...]:
    """Return the columns of tokens.

    `now`, in Unix seconds, determines which tokens have expired.
    """

    def state(token: TokenView) -> Cell:
        if token.revoked_at is not None:
            return Cell("revoked", note=moment(token.revoked_at))
        expired = token.expires_at is not None and token.expires_at <= now
        return Cell("expired" if expired else "valid")

    def previous(token: TokenView) -> str:
        until = token.previous_until
        return "-" if until is None or until <= now else moment(until)

    return (
        Column("token", lambda token: token.id[:12], CellKind.TEXT),
        Column("name", lambda token: token.name, CellKind.NAME),
        Column("scopes", lambda token: ", ".join(token.scopes), CellKind.TEXT),
        Column(
            "sees", lambda token: "all owners" if token.all_owners else "its own", CellKind.TEXT
        ),
        Column("made", lambda token: moment(token.created_at), CellKind.MOMENT),
        Column("last used", lambda token: moment(token.last_used_at), CellKind.MOMENT),
        Column("ends", lambda token: moment(token.expires_at), CellKind.MOMENT),
        Column("previous secret until", previous, CellKind.MOMENT),
        Column("state", state, CellKind.STATE),
    )
