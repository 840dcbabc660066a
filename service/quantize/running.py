"""Runs models on samples with Tilewright's own executor, and compares their outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from tilewright.compiler import driver
from tilewright.compiler.mode import Mode
from tilewright.compiler.options import CompileOptions
from tilewright.compiler.program.kernels import KernelCache
from tilewright.compiler.runtime.model import Model
from tilewright.compiler.runtime.native import pinned_random_keys
from tilewright.compiler.runtime.packing import Array
from tilewright.service.quantize.fidelity import Fidelity, OutputFidelity, Outputs, added
from tilewright.service.quantize.layers import Layer, as_read
from tilewright.service.quantize.samples import InputArrays
from tilewright.service.quantize.switched import with_outputs


@dataclass(frozen=True, slots=True)
class CompiledFor:
    """Options with which the float32 model and all its quantised variants are compiled.

    Attributes:
        dims: the sizes of named dimensions.
        threads: the number of threads of a run.
        kernels: a cache of kernels, because the variants have most kernels in common.
    """

    dims: Mapping[str, int]
    threads: int
    kernels: KernelCache = field(default_factory=KernelCache, repr=False, compare=False)

    def compile(self, model: onnx.ModelProto | Path) -> Model:
        """Compile a model for this machine, and return it.

        Raises:
            CompilerError: if the model is invalid or not supported.
        """
        options = CompileOptions(Mode(threads=self.threads), self.dims, kernels=self.kernels)
        return driver.compile_with(model, options)


@dataclass(frozen=True, slots=True, eq=False)
class FloatOutputs:
    """The outputs of the float32 model for some samples, with which other models are compared.

    Attributes:
        names: the names of the outputs.
        samples: the samples.
        outputs: for each sample, the output arrays in the order of `names`.
    """

    names: tuple[str, ...]
    samples: tuple[InputArrays, ...]
    outputs: tuple[Sequence[Array], ...]

    @staticmethod
    def of(executable: Model, samples: Sequence[InputArrays]) -> FloatOutputs:
        outputs = tuple(_outputs(executable, sample) for sample in samples)
        return FloatOutputs(_names(executable), tuple(samples), outputs)

    def first(self, count: int) -> FloatOutputs:
        """Return the first `count` samples with their outputs."""
        return replace(self, samples=self.samples[:count], outputs=self.outputs[:count])

    def constant(self) -> tuple[str, ...]:
        """Return the names of constant outputs, for which a comparison is meaningless.

        An output is constant if it has several elements and, in each sample, all of them are equal.
        """
        by_output = zip(self.names, zip(*self.outputs, strict=True), strict=True)
        return tuple(
            name for name, arrays in by_output if all(_is_constant(array) for array in arrays)
        )

    def compare(self, executable: Model, more: Mapping[str, Array] | None = None) -> Outputs:
        """Run another model on the same samples.

        Return the deviation of its outputs, summed over samples.

        Args:
            executable: the other model.
            more: inputs that only the other model has.
        """
        found: Outputs = ()
        for sample, expected in zip(self.samples, self.outputs, strict=True):
            came = _outputs(executable, {**sample, **(more or {})})
            named = _named(executable, came)
            each = zip(self.names, expected, strict=True)
            found = added(found, tuple(OutputFidelity.of(n, e, named[n]) for n, e in each))
        return found


def _is_constant(array: Array) -> bool:
    return array.size > 1 and bool((array == array.flat[0]).all())


def _outputs(executable: Model, sample: InputArrays) -> Sequence[Array]:
    """Run a model on a sample. Random operators of the model use the same seed in each call."""
    with pinned_random_keys():
        found: Sequence[Array] = executable.run(sample, labels=False)
        return found


def _names(executable: Model) -> tuple[str, ...]:
    """Return the names of a model's output arrays.

    An output that is a list has a name per element.
    """
    return tuple(port.name for port in executable.outputs)


def _named(executable: Model, outputs: Sequence[Array]) -> dict[str, Array]:
    """Return the output arrays of a model by name."""
    return dict(zip(_names(executable), outputs, strict=True))


def layer_fidelity(
    model: onnx.ModelProto,
    quantised: onnx.ModelProto,
    layers: Sequence[Layer],
    samples: Sequence[InputArrays],
    sizes: CompiledFor,
) -> list[Fidelity | None]:
    """Return the deviation of each layer's value in the quantised model from the float32 model.

    Both models run on all samples, and each deviation sums all of them. The element for a layer is
    None if its value does not exist in both models.
    """
    values = [layer.value for layer in layers if layer.value]
    seen = as_read(quantised.graph, values)
    first = sizes.compile(with_outputs(model, values))
    second = sizes.compile(with_outputs(quantised, [seen[value] for value in values]))
    totals = dict.fromkeys(values, Fidelity())
    for sample in samples:
        wanted = _named(first, _outputs(first, sample))
        came = _named(second, _outputs(second, sample))
        for value in totals:
            totals[value] += Fidelity.of(wanted[value], came[seen[value]])
    return [totals.get(layer.value) for layer in layers]
