"""Parses and formats option values of the command line: fractions, sizes, values of inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tilewright.compiler.limits import LARGEST_SIZE


class OptionError(ValueError):
    """An option is unknown, malformed or outside its bounds; the message names the option."""


def parse_share(option: str, text: str) -> float:
    """Parse a fraction: 0.005 for "0.5%" or "0.005".

    Raises:
        OptionError: if the text is not a number from 0 to below 1, or a percentage below 100.
    """
    number = text.removesuffix("%")
    try:
        share = float(number) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise OptionError(f"{option} '{text}': expected a share such as 0.5% or 0.005, below 1")
    return share


def share_text(share: float) -> str:
    """Format a fraction: "0.5%" for 0.005.

    If the percentage has more than six digits, the text is a plain number: "0.123456789".
    """
    percent = f"{100 * share:g}%"
    return percent if parse_share("", percent) == share else str(share)


def parse_dims(given: Iterable[str] | None) -> dict[str, int]:
    """Parse sizes of dimensions: {"batch": 1} for ["batch=1"].

    Raises:
        OptionError: if a text is not NAME=SIZE with a positive size, or a dimension has two sizes.
    """
    dims: dict[str, int] = {}
    for text in given or ():
        name, _, size = text.rpartition("=")
        number = _size(text, name, size)
        if dims.get(name, number) != number:
            raise OptionError(f"--dim '{text}': '{name}' is {dims[name]} already")
        dims[name] = number
    return dims


def _size(text: str, name: str, size: str) -> int:
    """Parse a size of the dimension `name`.

    Raises:
        OptionError: if the size or the name is invalid; the message quotes `text`, the whole
            option.
    """
    number = int(size) if size.isascii() and size.isdecimal() and len(size) < 20 else 0
    if not name or not 1 <= number <= LARGEST_SIZE:
        raise OptionError(
            f"--dim '{text}': expected NAME=SIZE with a size from 1 to {LARGEST_SIZE}"
        )
    return number


def parse_sizes(given: Iterable[str] | None) -> dict[str, tuple[int | str, ...]]:
    """Parse sizes and ranges: {"sequence": ("1..512", 128)} for ["sequence=1..512,128"].

    Raises:
        OptionError: if a text is malformed, or a dimension has different sizes in two texts.
    """
    from tilewright.compiler.errors import InvalidArgumentError
    from tilewright.compiler.sizes.hinted_ranges import size_choices

    sizes: dict[str, tuple[int | str, ...]] = {}
    for text in given or ():
        name, _, given_sizes = text.rpartition("=")
        listed, at, hints = given_sizes.partition("@")
        each: list[int | str] = []
        *sizes_before, last = listed.split(",")
        for size in (*sizes_before, f"{last}{at}{hints}"):
            ranged = name and (".." in size or "@" in size)
            each.append(size if ranged else _size(text, name, size))
        try:
            chosen = size_choices(name, each)
        except InvalidArgumentError as error:
            raise OptionError(f"--dim '{text}': {error}") from error
        if sizes.get(name, chosen) != chosen:
            raise OptionError(f"--dim '{text}': '{name}' has sizes already")
        sizes[name] = chosen
    return sizes


def size_texts(sizes: Mapping[str, int | str | Sequence[int | str]]) -> list[str]:
    """Format sizes and ranges: ["sequence=128,1..512@8"] for {"sequence": ("1..512@8", 128)}.

    Within a text, a range follows the fixed sizes, because numbers after `@` are size hints.
    """
    found = []
    for name, choices in sizes.items():
        listed = [choices] if isinstance(choices, int | str) else choices
        ordered = sorted(listed, key=lambda size: isinstance(size, str))
        found.append(f"{name}={','.join(map(str, ordered))}")
    return found


def parse_ranges(given: Iterable[str] | None) -> dict[str, int | str]:
    """Parse one size or range per dimension: {"sequence": "1..512"} for ["sequence=1..512"].

    Raises:
        OptionError: if a text is malformed, or a dimension has several sizes.
    """
    ranges: dict[str, int | str] = {}
    for name, choices in parse_sizes(given).items():
        if len(choices) != 1:
            raise OptionError(f"--dim '{name}': expected one size or one range, not {len(choices)}")
        (ranges[name],) = choices
    return ranges


def parse_values(given: Iterable[str] | None) -> dict[str, int | float]:
    """Parse values of inputs: {"sr": 16000} for ["sr=16000"].

    Raises:
        OptionError: if a text is not NAME=NUMBER.
    """
    found: dict[str, int | float] = {}
    for text in given or ():
        name, _, number = text.rpartition("=")
        try:
            found[name] = int(number)
        except ValueError:
            try:
                found[name] = float(number)
            except ValueError as error:
                raise OptionError(f"--value '{text}': expected NAME=NUMBER") from error
    return found


def value_texts(values: Mapping[str, float]) -> list[str]:
    """Format values of inputs: ["sr=16000"] for {"sr": 16000}."""
    return [f"{name}={number}" for name, number in values.items()]
