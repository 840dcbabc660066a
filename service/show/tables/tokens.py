"""Columns of tokens."""

from __future__ import annotations

from tilewright.service.api.schemas.tokens import TokenView
from tilewright.service.show.table import Cell, CellKind, Column
from tilewright.service.show.units import moment


def tokens(now: float) -> tuple[Column[TokenView], ...]:
    """Return the columns of tokens. `now`, in Unix seconds, decides which tokens are expired."""

    def state(token: TokenView) -> Cell:
        if token.revoked_at is not None:
            return Cell("revoked", note=moment(token.revoked_at))
        previous = token.previous_until
        note = f"the one before until {moment(previous)}" if previous and previous > now else ""
        expired = token.expires_at is not None and token.expires_at <= now
        return Cell("expired" if expired else "valid", note=note)

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
        Column("state", state, CellKind.STATE),
    )
