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
    """Compiles the float32 model and its quantised variants with the same options.

    Attributes:
        dims: the sizes of named dimensions.
        threads: the threads of a run.
        kernels: caches kernels across the models, because quantised variants share most of them.
    """

    dims: Mapping[str, int]
    threads: int
    kernels: KernelCache = field(default_factory=KernelCache, repr=False, compare=False)

    def compile(self, model: onnx.ModelProto | Path) -> Model:
        """Compile a model, and return it.

        Raises:
            CompilerError: if the model is invalid or not supported.
        """
        options = CompileOptions(Mode(threads=self.threads), self.dims, kernels=self.kernels)
        return driver.compile_with(model, options)


@dataclass(frozen=True, slots=True, eq=False)
class FloatOutputs:
    """The reference outputs: those of the float32 model for some samples.

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
        """Return the outputs of the first `count` samples."""
        return replace(self, samples=self.samples[:count], outputs=self.outputs[:count])

    def constant(self) -> tuple[str, ...]:
        """Return the names of the outputs with several elements, all of which are equal in each
        sample.
        """
        by_output = zip(self.names, zip(*self.outputs, strict=True), strict=True)
        return tuple(
            name for name, arrays in by_output if all(_is_constant(array) for array in arrays)
        )

    def compare(self, executable: Model, more: Mapping[str, Array] | None = None) -> Outputs:
        """Run another model on the same samples. Return the fidelity of its outputs to the
        reference.

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
    """Run a model on a sample, with the same random numbers each time."""
    with pinned_random_keys():
        found: Sequence[Array] = executable.run(sample, labels=False)
        return found


def _names(executable: Model) -> tuple[str, ...]:
    """Return the names of outputs, including the elements of lists."""
    return tuple(port.name for port in executable.outputs)


def _named(executable: Model, outputs: Sequence[Array]) -> dict[str, Array]:
    """Return outputs as numeric arrays by name."""
    return dict(zip(_names(executable), outputs, strict=True))


def layer_fidelity(
    model: onnx.ModelProto,
    quantised: onnx.ModelProto,
    layers: Sequence[Layer],
    samples: Sequence[InputArrays],
    sizes: CompiledFor,
) -> list[Fidelity | None]:
    """Run both models on the samples. Return the fidelity of each layer's value in the quantised
    model.

    The sums are taken over all samples. The result is None for a layer whose value does not exist
    in both models.
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
