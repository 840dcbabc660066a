"""Size hints: typical sizes of dynamic dimensions, with which a model is planned and measured.

A program is valid for the whole range of each dimension, but is tuned for its size hints, like the
`opt` shapes of a TensorRT optimisation profile. If the user states no size, the default hint
depends on the dimension's role, inferred from the inputs: batch, image side or sequence length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tilewright.compiler.runtime.ports import Dims, ModelPorts
from tilewright.compiler.sizes import (
    Dimension,
    DynamicSizeError,
    at,
    dimensions,
    dynamic_size,
    is_dynamic,
    substituted,
    typical_sizes,
)

BATCH_HINT = 1
"""Default size hint of a batch. Most requests have a single sample."""

IMAGE_HINT = 224
"""Default size hint of the height and width of images with three channels, as in models for
ImageNet."""

LENGTH_HINT = 128
"""Default size hint of sequence and cache lengths, and of all dimensions of other kinds."""

IMAGE_CHANNELS = 3

MOST_ELEMENTS = 1 << 27
"""Maximum total number of elements of a model's values at the default size hints. In float32, they
take half a gibibyte."""

LARGEST_SOLUTION = 4096
"""Largest size that is tried for a dimension of which the model requires a single size."""

_BATCH = re.compile(r"batch", re.IGNORECASE)
_BATCH_OF_LEADING = re.compile(r"(?:^|_)(?:n|b|bs)$", re.IGNORECASE)
_OF_TORCH = re.compile(r"s\d+")
"""Names of dimensions that torch.export generates. Two inputs of equal size may have different
names."""

_LENGTH = re.compile(
    r"seq|len|time|frame|step|token|phoneme|node|edge|point|height|width|row|box|num_",
    re.IGNORECASE,
)


def size_hints(ports: ModelPorts, ranges: Iterable[Dimension]) -> dict[str, int]:
    """Return a default size hint for each dimension, by name: a typical size within its range.

    Args:
        ports: the model's inputs, from which the role of each dimension is inferred.
        ranges: the dimensions that need a hint. A dimension that occurs in no input is treated as a
            sequence length.
    """
    batches, sides = _batches(ports), _image_sides(ports)
    found = {}
    for dimension in ranges:
        name = dimension.name
        wanted = LENGTH_HINT
        if name in sides:
            wanted = IMAGE_HINT
        elif name in batches:
            wanted = BATCH_HINT
        found[name] = nearest_size(dimension, wanted)
    return found


def affordable_hints(
    hints: Mapping[str, int],
    stated: Mapping[str, int],
    ranges: Iterable[Dimension],
    elements: Iterable[int],
) -> dict[str, int]:
    """Reduce size hints until a model's values have at most 2**27 elements in total.

    All hints are halved repeatedly, but stay within their ranges. For example, one tensor with five
    dimensions of 128 has 32 Gi elements, more than a machine can hold.

    Args:
        hints: default sizes of dimensions, by name.
        stated: sizes of the other dimensions, which do not change.
        ranges: all dimensions. A dimension without a hint or a stated size has its typical size.
        elements: the number of elements of each value: an int, or a formula over the dimensions
            (`Size`), such as `batch * 1000`.

    Returns:
        The reduced hints.
    """
    known = {d.name: d for d in ranges}
    values = [*elements]
    found = {name: size for name, size in hints.items() if name in known}
    while True:
        sizes = {**typical_sizes(*map(dynamic_size, known.values())), **stated, **found}
        held = sum(at(each, sizes) for each in values)
        smaller = {name: nearest_size(known[name], size // 2) for name, size in found.items()}
        if held <= MOST_ELEMENTS or smaller == found:
            return {**hints, **found}
        found = smaller


def profile_text(
    ranges: Iterable[Dimension], hints: Mapping[str, Iterable[int]], defaults: Sequence[str] = ()
) -> str:
    """Describe dimensions and their size hints in a line such as `dynamic: batch=1,8 (1..4096)`.

    The result is empty without hints.

    Args:
        ranges: the dimensions.
        hints: the sizes at which each dimension is tuned, by name.
        defaults: names of dimensions whose range the user did not state. If `hints` has one of
            them, the line ends with the command-line option by which the user can state a range.
    """
    listed = [
        f"{d.name}={','.join(map(str, hints[d.name]))} ({d.range_text})"
        for d in ranges
        if d.name in hints
    ]
    if not listed:
        return ""
    name = next((name for name in defaults if name in hints), "")
    advice = f"; change with --dim '{name}=LOW..HIGH@SIZE'" if name else ""
    return f"dynamic: {', '.join(listed)}; tuned at these sizes{advice}"


def nearest_size(dimension: Dimension, wanted: int) -> int:
    """Return the size in a dimension's range that is nearest to `wanted`, and not 0 if possible.

    Size 0, such as an empty cache in the first run of a session, is not representative for
    measurements.
    """
    high = max(dimension.low, wanted) if dimension.high is None else dimension.high
    low = max(dimension.low, min(1, high))
    return min(max(round(wanted / dimension.multiple), low), high) * dimension.multiple


def agreeing_size(error: DynamicSizeError, sizes: Mapping[str, int]) -> tuple[str, int] | None:
    """Select a dimension and a fixed size for it, because a dynamic size caused an error.

    The error states a condition on dynamic sizes that holds for only some sizes in their ranges. If
    the condition is that two sizes are equal, the selected size makes them equal. For example, a
    text recogniser that squeezes the height of its features needs images of one height. For any
    other condition, or if no size makes the two sizes equal, a dimension in the condition is
    selected, with its size in `sizes`.

    Args:
        error: the error.
        sizes: a preferred size of each dimension that may be fixed, by name.

    Returns:
        The dimension's name, and its size. If no dimension in the condition is in `sizes`, the last
        dimension of `sizes` is selected. None if `sizes` is empty.
    """
    for question in filter(is_dynamic, (error.unequal, error.undecided)):
        asked = [d for d in dimensions(question) if d.name in sizes]
        if question is error.unequal and not error.may_differ:
            solved = [(d.name, found) for d in asked if (found := _solution(question, d, sizes))]
            if solved:
                return min(solved, key=lambda pair: abs(pair[1] - sizes[pair[0]]))
        if asked:
            return asked[0].name, sizes[asked[0].name]
    return next(reversed(list(sizes.items())), None)


def _solution(difference: int, dimension: Dimension, sizes: Mapping[str, int]) -> int | None:
    """Return the size of a dimension at which two dynamic sizes are equal, or None.

    `difference` is a formula over dimensions (`Size`): the first size minus the second. The other
    dimensions have their sizes in `sizes`. Of several solutions, the one nearest to the dimension's
    own size in `sizes` is returned. Sizes above 4096 are not tried.
    """
    low = max(dimension.low, 1)
    high = LARGEST_SOLUTION // dimension.multiple
    if dimension.high is not None:
        high = min(high, dimension.high)
    own = sizes[dimension.name] // dimension.multiple
    for number in sorted(range(low, high + 1), key=lambda n: (abs(n - own), n)):

        def value(each: Dimension, number: int = number) -> int:
            if each.name == dimension.name:
                return number
            return sizes.get(each.name, LENGTH_HINT) // each.multiple

        if substituted(difference, value) == 0:
            return number * dimension.multiple
    return None


def _batches(ports: ModelPorts) -> frozenset[str]:
    """Return the names of the dimensions that count as a batch.

    A dimension whose name contains `batch` counts. Any other dimension counts only if all of these
    conditions hold:

    - It is the first dimension of an input that has no dimension with `batch` in its name.
    - It is not a later dimension of any input, except of states of recurrent networks.
    - It has no name, a usual name for a batch (such as `N`), or the only candidate name.

    A candidate name is the name of the first dimension of an input, or contains `batch`. A name
    that is usual for a length, such as `frames`, never counts as the only candidate. Inputs with
    several candidate names are ambiguous: one of them may be, for example, the number of nodes in a
    graph.

    torch.export generates names such as `s0`. If all inputs of two or more dimensions begin with a
    generated name, their first dimensions count as unnamed.
    """
    shaped = [dims for dims in ports.inputs.values() if len(dims) > 1]
    unnamed = {f"{name}[{n}]" for name, dims in ports.inputs.items() for n in range(len(dims))}
    states = [dims for dims in shaped if _is_state(dims)]
    elsewhere = {dim for dims in shaped if dims not in states for dim in dims[1:]}
    said = {name for name in ports.open if _BATCH.search(name)}
    leading = {dims[0] for dims in shaped if isinstance(dims[0], str) and not said & {*dims}}
    if all(_OF_TORCH.fullmatch(str(dims[0])) for dims in shaped if dims not in states):
        unnamed |= leading
    named = (leading | said) - unnamed
    by_place = {
        name
        for name in leading - elsewhere
        if isinstance(name, str)
        and (
            name in unnamed
            or _BATCH_OF_LEADING.search(name)
            or (named == {name} and not _LENGTH.search(name))
        )
    }
    return frozenset(by_place | said)


def _is_state(dims: Dims) -> bool:
    """Return whether an input has the shape of a recurrent network's state.

    The shape is (directions, batch, hidden size), as that of `initial_h` of ONNX's LSTM, with only
    the batch dynamic.
    """
    return [isinstance(dim, str) for dim in dims] == [False, True, False]


def _image_sides(ports: ModelPorts) -> frozenset[str]:
    """Return the names of dynamic heights and widths in inputs that are images with three channels.

    The channels are the second or the last of four dimensions.
    """
    found: set[int | str] = set()
    for dims in ports.inputs.values():
        if len(dims) != 4:
            continue
        if dims[1] == IMAGE_CHANNELS:
            found |= set(dims[2:])
        elif dims[3] == IMAGE_CHANNELS:
            found |= set(dims[1:3])
    return frozenset(each for each in found if isinstance(each, str))
