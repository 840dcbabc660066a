"""The inputs that a user gives for a model: samples, and constants for single inputs.

A sample has an array for each input. A constant, such as a sampling rate, is the value of all
elements of one input.

The sizes of the samples are used as size hints (expected sizes). A program is verified and timed on
a sample whose shapes match the program's inputs, or on random inputs if no sample matches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.runtime.ports import Dims
from tilewright.compiler.runtime.program import Port
from tilewright.compiler.sizes import Dimension
from tilewright.compiler.sizes.hinted_ranges import MOST_STATED, Shares
from tilewright.tuner.measure.model_runs import draw_inputs
from tilewright.tuner.protocol.runs import INPUT_SEED

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class GivenInputs:
    """The inputs that a user gives for a model.

    Attributes:
        samples: the samples; each has an array for every input, by name.
        values: numbers that fill single inputs, such as a sampling rate, by the name of the input.
    """

    samples: tuple[Arrays, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)

    def draw(self, ports: Iterable[Port], seed: int = INPUT_SEED) -> dict[str, np.ndarray]:
        """Return an array for each input of a program, by name: given by the user, or else
        random.

        Args:
            ports: the inputs of the program.
            seed: the seed of the random arrays; it also selects the sample (`provided`).
        """
        ports = tuple(ports)
        provided = self.provided(ports, seed)
        if provided.keys() == {port.name for port in ports}:
            return provided
        return {**draw_inputs(ports, seed), **provided}

    def provided(self, ports: Iterable[Port], seed: int = INPUT_SEED) -> dict[str, np.ndarray]:
        """Return the arrays that the user gives for the inputs of a program, by name.

        If a sample has the same shapes as the inputs, its arrays are returned. If several samples
        match, consecutive seeds select consecutive samples. Inputs for which the user gives a
        number are filled with the number.

        Args:
            ports: the inputs of the program.
            seed: INPUT_SEED selects the first matching sample.
        """
        ports = tuple(ports)
        shapes = {port.name: port.shape for port in ports}
        fitting = [
            each
            for each in self.samples
            if {name: array.shape for name, array in each.items()} == shapes
        ]
        found = dict(fitting[(seed - INPUT_SEED) % len(fitting)]) if fitting else {}
        for port in ports:
            if port.name in self.values:
                like = draw_inputs([port], seed)[port.name]
                found[port.name] = np.full_like(like, self.values[port.name])
        return found

    def sizes_within(
        self,
        inputs: Mapping[str, Dims],
        ranges: Mapping[str, Dimension] | None = None,
        others: Mapping[str, Collection[int]] | None = None,
    ) -> dict[str, Counter[int]]:
        """Count how often each size of each dynamic dimension occurs in the samples.

        Args:
            inputs: the shapes of the model's inputs; a dynamic dimension is represented by its
                name.
            ranges: the ranges of dimensions that the user has given.
            others: sizes for which the user wants separate programs. A sample may have such a size
                outside the range of its dimension; the size is then not counted.

        Returns:
            for each dimension, the number of samples by size.

        Raises:
            InvalidArgumentError: if a sample has a size outside a given range.
        """
        counts: dict[str, Counter[int]] = {}
        for number, sample in enumerate(self.samples, 1):
            sizes = {
                dim: size
                for name, dims in inputs.items()
                for dim, size in zip(dims, sample[name].shape, strict=True)
                if isinstance(dim, str)
            }
            for name, size in sizes.items():
                ranged = (ranges or {}).get(name)
                if ranged is None or size in ranged:
                    counts.setdefault(name, Counter())[size] += 1
                elif size not in (others or {}).get(name, ()):
                    raise InvalidArgumentError(
                        f"sample {number} has size {size} in dimension '{name}', which the range "
                        f"--dim '{name}={ranged.range_text}' does not hold: widen the range, or "
                        "leave the sample out"
                    )
        return counts

    def of_each_size(self) -> list[Arrays]:
        """Return the first sample of each combination of shapes, at most MOST_STATED samples.

        An input for which the user gives a number is filled with the number.
        """
        found: dict[tuple[tuple[str, tuple[int, ...]], ...], Arrays] = {}
        for sample in self.samples:
            shapes = tuple((name, array.shape) for name, array in sorted(sample.items()))
            found.setdefault(shapes, sample)
        return [
            {n: np.full_like(a, self.values[n]) if n in self.values else a for n, a in each.items()}
            for each in list(found.values())[:MOST_STATED]
        ]


def most_frequent(sizes: Mapping[str, Counter[int]]) -> Shares:
    """Count the most frequent sizes of each dimension, which become size hints (expected sizes).

    Args:
        sizes: for each dimension, the number of samples by size.

    Returns:
        for each dimension, the number of samples by size, for at most MOST_STATED sizes.
    """
    return {
        name: {size: float(n) for size, n in sorted(counted.most_common(MOST_STATED))}
        for name, counted in sizes.items()
    }


NONE_GIVEN = GivenInputs()
