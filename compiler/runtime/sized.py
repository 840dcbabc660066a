"""Executables for more than one size: the named dimensions of the inputs select a program.

One program may serve all sizes of a range; some sizes may have programs of their own, which then
run. What neither serves is compiled when its sizes are first seen, in a process that has the
compiler. An artifact holds a closed list of sizes and ranges. Where its manifest says so, inputs
between two served sizes are padded with zeros up to the next one and the outputs cut back.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod

import numpy as np

from tilewright.compiler.errors import InvalidInputError, InvalidModelError, ModelWarning
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.inputs import arrays_in_order, shapes_of
from tilewright.compiler.runtime.model import OpenModel
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import (
    Dims,
    OpenPorts,
    Sizes,
    checked_sizes,
    dims_text,
    ranges_text,
    sizes_text,
)
from tilewright.compiler.runtime.session import Session
from tilewright.compiler.runtime.stopping import StopFlag
from tilewright.compiler.sizes import Dimension


class SizedExecutable(OpenModel):
    """A compiled model with open dimensions.

    `run` may be called from several threads at once; a program is made once.

    Args:
        ports: inputs and outputs.
        make: gives the executable for sizes, when they are first needed.
        served: the sizes that have programs of their own; None is any, and nothing is padded then.
        ranges: the sizes that dimensions may have, by name; those without one may have any.
        ranged: serves all sizes within the ranges of its dimensions, maybe a part of `ranges`.
        reason: why no program serves all sizes of the ranges, as a sentence; empty where one does.
        own: sizes that get programs of their own when they are first met, within ranges or not.

    Raises:
        InvalidArgumentError: if padding is asked for where an output could not be cut back.
    """

    def __init__(
        self,
        ports: OpenPorts,
        make: Callable[[Sizes], Executable],
        served: Sequence[Sizes] | None = None,
        ranges: Mapping[str, Dimension] | None = None,
        ranged: Executable | None = None,
        reason: str = "",
        own: Collection[Sizes] = (),
    ) -> None:
        ports.check_padding()
        self.ports = ports
        self.served = None if served is None else tuple(served)
        self.ranges = dict(ranges or {})
        self.ranged = ranged
        self.reason = reason
        self._own = frozenset(served or own)
        # Dimensions that the program expresses by others: it does not know what ranges they had.
        known = {d.name for d in ranged.dimensions} if ranged is not None else self.ranges.keys()
        self._implied = any(name in self.ranges and name not in known for name in ports.open)
        self._names = tuple(ports.inputs)
        self._make = make
        self._made: dict[Sizes, Executable] = {}
        self._lock = threading.Lock()

    @property
    def made(self) -> tuple[Sizes, ...]:
        """The sizes that there are programs of their own for, in the order in which they were first
        needed."""
        return tuple(self._made)

    def executable(self, sizes: Mapping[str, int]) -> Executable:
        """The executable for exactly these sizes, made if it is not there.

        Raises:
            InvalidInputError: if the sizes are not served, or one that has no program of its own is
                outside of its range.
            ArtifactError: if the sizes contradict each other.
            InvalidArgumentError: if they are no mapping from names to integers.
            CompilerError: if no program can be made for them.
        """
        key = tuple(sorted(checked_sizes(sizes).items()))
        found = self._made.get(key)
        if found is not None:
            return found
        for name, size in () if key in (self.served or ()) else key:
            known = self.ranges.get(name)
            if known is not None and size not in known:
                raise InvalidInputError(
                    f"dimension '{name}' is {size}, expected {self._expected(known)}"
                )
        if self.served is not None and key not in self.served and not self._in_ranges(sizes):
            raise InvalidInputError(f"{sizes_text(key)} is not served, {self._served_text()}")
        with self._lock:
            if key not in self._made:
                self._made[key] = self._make(key)
            return self._made[key]

    def _in_ranges(self, sizes: Mapping[str, int]) -> bool:
        """Whether sizes are given for all dimensions of the program that serves ranges."""
        if self.ranged is None:
            return False
        needed = {dimension.name for dimension in self.ranged.dimensions}
        return needed <= sizes.keys() <= needed | set(self.open)

    def run(
        self,
        inputs: Mapping[str, Array] | Sequence[Array],
        *,
        labels: bool = True,
        stop: StopFlag | None = None,
    ) -> list[Array]:
        """Run the program for the inputs' sizes; the outputs in order, as `Executable.run` gives
        them.

        Raises:
            InvalidInputError: if an input is missing, contradicts another, or has sizes that are
                not served.
            StoppedError: if `stop` was set before the end.
        """
        arrays = arrays_in_order(inputs, self._names)
        if self.ranged is not None and not self._made and not self._own:
            if self._implied:
                self._check_ranges(arrays)
            try:
                return self.ranged.run(arrays, labels=labels, stop=stop)
            except InvalidInputError:
                if self.ranged.takes(arrays):  # a dtype, then, and no size
                    raise
        sizes = self.sizes_of(arrays)
        padded = self.ports.pad and sizes not in (self.served or ())
        if not padded or (self.ranged is not None and self.ranged.takes(arrays)):
            return self._fitting(arrays, sizes).run(arrays, labels=labels, stop=stop)
        return self._padded(arrays, sizes, labels, stop)

    def _padded(
        self, arrays: Sequence[Array], sizes: Sizes, labels: bool, stop: StopFlag | None
    ) -> list[Array]:
        """The outputs of a larger size, cut back."""
        larger = self._next_sizes(sizes)
        padded = [
            _enlarged(np.asarray(array), _shape(dims, dict(larger)))
            for array, dims in zip(arrays, self.ports.inputs.values(), strict=True)
        ]
        executable = self.executable(dict(larger))
        results = executable.run(padded, labels=False, stop=stop)
        cut = [
            _cut(result, _shape(dims, dict(sizes)))
            for result, dims in zip(results, self.ports.outputs.values(), strict=True)
        ]
        return executable.labelled(cut) if labels else cut

    def bind(
        self, states: Mapping[str, str], initial: Mapping[str, Array] | None = None
    ) -> Session:
        """As `Executable.bind`; a state with open dimensions needs a first value, and may grow.

        The sizes of a step are those of its inputs, states among them; nothing is padded. What
        types states have is only checked in the first step.
        """
        names = self.output_names
        if self.ranged is not None:
            names = tuple(port.name for port in self.ranged.outputs)
        return Session(self.ports.inputs, names, self._fitting, self.run, states, initial or {})

    def _fitting(self, arrays: Sequence[Array], sizes: Sizes | None = None) -> Executable:
        """The executable for the sizes of these inputs, which `sizes` may say already."""
        alone = self.ranged is not None and not (self._made or self._own or self._implied)
        if alone and self.ranged is not None and self.ranged.takes(arrays):  # as most steps do
            return self.ranged
        sizes = self.sizes_of(arrays) if sizes is None else sizes
        found = self._made.get(sizes)
        if found is not None:
            return found
        if sizes in self._own:
            return self.executable(dict(sizes))
        if self._implied:
            self._check_ranges(arrays)
        if self.ranged is not None and self.ranged.takes(arrays):
            return self.ranged
        self._check_ranges(arrays)
        return self._at(sizes, arrays) if self.served is None else self.executable(dict(sizes))

    def _check_ranges(self, arrays: Sequence[Array]) -> None:
        """Raises InvalidInputError if a dimension is outside of its range."""
        for array, (name, dims) in zip(arrays, self.ports.inputs.items(), strict=True):
            for position, (extent, dim) in enumerate(zip(np.shape(array), dims, strict=False)):
                known = self.ranges.get(dim) if isinstance(dim, str) else None
                if known is not None and extent not in known:
                    raise InvalidInputError(
                        f"input '{name}': dimension {position} ('{dim}') is {extent}, "
                        f"expected {self._expected(known)}"
                    )

    def _expected(self, known: Dimension) -> str:
        """The range, and the sizes that have programs of their own: `1..4, or batch=8`."""
        return ", or ".join([known.range_text, *map(sizes_text, self.served or ())])

    def _at(self, sizes: Sizes, arrays: Sequence[Array]) -> Executable:
        """The executable for sizes of which some may be apart from the name that they share.

        Raises:
            InvalidInputError: if inputs disagree about a dimension that has one size in the model.
            InvalidModelError: if the model contradicts itself at these sizes, naming them.
        """
        apart = self._disagreement(arrays)
        if not apart:
            try:
                return self.executable(dict(sizes))
            except InvalidModelError as error:
                raise InvalidModelError(f"at {sizes_text(sizes)}: {error}") from error
        try:
            found = self.executable(dict(sizes))
        except InvalidModelError as error:
            raise InvalidInputError(apart) from error
        warnings.warn(f"{apart}: they are taken as two dimensions", ModelWarning, stacklevel=4)
        return found

    def sizes_of(self, arrays: Sequence[Array]) -> Sizes:
        """What the named dimensions are in these inputs.

        Where two disagree about a dimension, and any sizes are served, the later one is a dimension
        of its own (`x[0]`): the name that they share in the file means nothing.

        Raises:
            InvalidInputError: if an input is no array, has another rank, or two disagree about a
                dimension of an artifact.
        """
        sizes: dict[str, int] = {}
        shapes = shapes_of(arrays, self._names)
        for shape, (name, dims) in zip(shapes, self.ports.inputs.items(), strict=True):
            fits = len(shape) == len(dims) and all(
                isinstance(dim, str) or extent == dim
                for extent, dim in zip(shape, dims, strict=True)
            )
            if not fits:
                raise InvalidInputError(
                    f"input '{name}' has shape {shape}, expected {dims_text(dims)}"
                )
            for position, (extent, dim) in enumerate(zip(shape, dims, strict=True)):
                if not isinstance(dim, str):
                    continue
                if sizes.setdefault(dim, extent) != extent:
                    if self.served is not None:
                        raise InvalidInputError(self._disagreement(arrays))
                    sizes[f"{name}[{position}]"] = extent
        return tuple(sorted(sizes.items()))

    def _disagreement(self, arrays: Sequence[Array]) -> str:
        """The first two inputs that have other sizes of one dimension; empty where none have."""
        first: dict[str, tuple[str, int]] = {}
        for array, (name, dims) in zip(arrays, self.ports.inputs.items(), strict=True):
            for position, (extent, dim) in enumerate(zip(np.shape(array), dims, strict=True)):
                if not isinstance(dim, str):
                    continue
                other, known = first.setdefault(dim, (name, extent))
                if known != extent:
                    return (
                        f"input '{name}': dimension {position} ('{dim}') is {extent}, "
                        f"input '{other}' has {known}"
                    )
        return ""

    def _next_sizes(self, sizes: Sizes) -> Sizes:
        """The smallest served sizes that hold these."""
        wanted = dict(sizes)
        fitting = [
            served
            for served in self.served or ()
            if all(size >= wanted[name] for name, size in served)
        ]
        if not fitting:
            raise InvalidInputError(f"{sizes_text(sizes)} is not served, {self._served_text()}")
        return min(fitting, key=lambda served: (prod(size for _, size in served), served))

    def _served_text(self) -> str:
        listed = [sizes_text(sizes) for sizes in self.served or ()]
        if self.ranged is not None:
            listed.append(ranges_text(self.ranged.dimensions))
        return f"only {'; '.join(listed)}"


def _shape(dims: Dims, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in dims)


def _enlarged(array: Array, shape: tuple[int, ...]) -> Array:
    """An array with zeros after each dimension, up to a shape."""
    if array.shape == shape:
        return array
    whole = np.zeros(shape, array.dtype)
    whole[tuple(map(slice, array.shape))] = array
    return whole


def _cut(array: Array, shape: tuple[int, ...]) -> Array:
    """The first part of an array, as an array of its own."""
    if array.shape == shape:
        return array
    return np.ascontiguousarray(array[tuple(map(slice, shape))])
