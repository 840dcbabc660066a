"""Errors of quantisation that are shown to users."""

from __future__ import annotations

from importlib import import_module

from tilewright.compiler.errors import CompilerError


class QuantizeError(CompilerError):
    """A model, its samples or an option is invalid; the message is one sentence."""


class NothingToQuantizeError(QuantizeError):
    """The quantisation method can change no node of the model; the message is one sentence."""


def require(library: str) -> None:
    """Check that a library can be imported.

    Raises:
        QuantizeError: if the library is missing or fails to load; the message names the extra of
            the package to install.
    """
    try:
        import_module(library)
    except ImportError as error:
        raise QuantizeError(
            f"quantising needs '{library.partition('.')[0]}' ({error}): "
            "pip install 'tilewright[quantize]' has it"
        ) from error
