"""Execution providers, with ONNX Runtime's interface; only the CPU's provider is available."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

PROVIDER = "CPUExecutionProvider"


def normalized(
    providers: Sequence[Any] | None,
    provider_options: Sequence[Mapping[Any, Any]] | None,
    available: Sequence[str] = (PROVIDER,),
) -> tuple[list[str], list[dict[str, str]]]:
    """Return those requested providers that are available, and the options of each.

    The result is a list of names, and a list of options with values as strings. Providers that are
    not in `available`, and repeated ones, are left out with a warning.

    Args:
        providers: the requested providers: names, or pairs (name, options).
        provider_options: the options of each requested provider, if `providers` are names only.
        available: the names of the providers that exist.

    Raises:
        ValueError: if an item of `providers` is neither a name nor a pair, or if the number of
            options differs from the number of providers.
    """
    given = _sequence(providers, "providers")
    options: list[Any] = [{} for _ in given]
    if provider_options is not None:
        options = _sequence(provider_options, "provider_options")
        if len(options) != len(given):
            raise ValueError(
                f"there are {len(given)} providers and {len(options)} provider_options, expected "
                "as many of each"
            )
        if any(isinstance(each, tuple) for each in given):
            raise ValueError("options are given both in providers and in provider_options")
    found: dict[str, dict[str, str]] = {}
    for each, beside in zip(given, options, strict=True):
        name, own = each if isinstance(each, tuple) and len(each) == 2 else (each, beside)
        if not isinstance(name, str) or not isinstance(own, Mapping):
            raise ValueError(f"provider {each!r} is not a name, or has invalid options: {own!r}")
        if name not in available:
            warnings.warn(
                f"{name} is not available, only {', '.join(available)}", UserWarning, stacklevel=4
            )
        elif name in found:
            warnings.warn(f"{name} is listed twice", UserWarning, stacklevel=4)
        else:
            found[name] = {str(key): str(value) for key, value in own.items()}
    return list(found), list(found.values())


def _sequence(given: Any, name: str) -> list[Any]:
    if given is None:
        return []
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise ValueError(f"{name} is {given!r}, expected a list")
    return list(given)


def get_available_providers() -> list[str]:
    """Return the name of the CPU's provider, the only one."""
    return [PROVIDER]


def get_all_providers() -> list[str]:
    """Return the name of the CPU's provider, the only one."""
    return [PROVIDER]


def get_device() -> str:
    """Return `CPU`."""
    return "CPU"
