"""What a user can do wrong here."""

from __future__ import annotations

from compiler.errors import CompilerError


class QuantizeError(CompilerError):
    """A model, its samples or what is asked of them is wrong; the message is one sentence."""
