"""Sessions, as ONNX Runtime has them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.compiling import compile_model
from compiler.errors import InvalidInputError
from compiler.granted_cores import granted_cores
from compiler.ort.binding import IOBinding
from compiler.ort.description import (
    ModelMetadata,
    NodeArg,
    SessionDescription,
    numpy_type,
    of_artifact,
    of_model,
)
from compiler.ort.options import RunOptions, SessionOptions
from compiler.ort.values import InvalidArgument, OrtValue, as_array
from compiler.runtime.artifact import load_artifact, read_artifact
from compiler.runtime.executable import Executable

if TYPE_CHECKING:
    from compiler.kept_models import Compiled

PROVIDER = "CPUExecutionProvider"


class InferenceSession:
    """A compiled model with ONNX Runtime's interface.

    `run` may be called from several threads at once.

    Args:
        path_or_bytes: an ONNX file, its bytes, or the folder of an artifact.
        sess_options: how many threads, and which dimensions are fixed.
        providers: only the CPU's runs here; others are warned of and left out.
        provider_options: taken and not used.
        options: of `compile_model`, such as `dims`, `numerics`, `precision`.

    Raises:
        CompilerError: naming what is wrong with the model or the options.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        self._options = sess_options or SessionOptions()
        names = [each if isinstance(each, str) else each[0] for each in providers or ()]
        if foreign := [name for name in names if name != PROVIDER]:
            warnings.warn(
                f"{', '.join(foreign)} cannot be used, {PROVIDER} is", UserWarning, stacklevel=2
            )
        threads = self._options.intra_op_num_threads or granted_cores()
        self._source: Path | bytes = (
            path_or_bytes if isinstance(path_or_bytes, bytes) else Path(fspath(path_or_bytes))
        )
        self._described: SessionDescription | None = None
        self._compiled: Compiled
        if isinstance(self._source, Path) and self._source.is_dir():
            self._described = of_artifact(read_artifact(self._source))
            self._compiled = load_artifact(self._source, threads)
        else:
            dims = {**self._options.sizes, **(options.pop("dims", None) or {})}
            self._compiled = compile_model(self._source, threads=threads, dims=dims, **options)

    @property
    def _description(self) -> SessionDescription:
        """What the model says of itself, read when it is first asked for."""
        if self._described is None:
            self._described = of_model(self._source)
        return self._described

    def get_inputs(self) -> list[NodeArg]:
        """Name, type and shape of each input."""
        return list(self._description.inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Name, type and shape of each output."""
        return list(self._description.outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: constants are compiled in."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """Who made the model, and what they wrote into it."""
        return self._description.metadata

    def get_session_options(self) -> SessionOptions:
        """Those that it was made with."""
        return self._options

    def get_providers(self) -> list[str]:
        """The CPU's."""
        return [PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """None has any."""
        return {PROVIDER: {}}

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Run once.

        Args:
            output_names: which outputs, in this order; all if it is None or empty.
            input_feed: by name: arrays, lists, OrtValues, or whatever has `__dlpack__` on a CPU.
            run_options: taken and not used.

        Raises:
            InvalidArgument: if an input is missing, unknown or of another type or shape, or there
                is no such output.
        """
        if missing := [name for name in self._input_names if name not in input_feed]:
            raise InvalidArgument(
                f"Required inputs ({missing}) are missing from input feed ({list(input_feed)})."
            )
        names = self._output_names(output_names)
        feeds = {
            name: as_array(given, partial(self._type, name)) for name, given in input_feed.items()
        }
        try:
            found = self._compiled.run(feeds)
        except InvalidInputError as error:
            raise InvalidArgument(str(error)) from error
        outputs = dict(zip(self._compiled.output_names, found, strict=True))
        return [outputs[name] for name in names]

    @property
    def _input_names(self) -> Sequence[str]:
        if isinstance(self._compiled, Executable):
            return [port.name for port in self._compiled.inputs]
        return list(self._compiled.ports.inputs)

    def _type(self, name: str) -> np.dtype | None:
        """Of an input's elements; None if there is no such input, or it is no tensor."""
        kinds = {each.name: each.type for each in self._description.inputs}
        return numpy_type(kinds.get(name, ""))

    def _output_names(self, asked: Sequence[str] | None) -> list[str]:
        known = self._compiled.output_names
        for name in asked or ():
            if name not in known:
                raise InvalidArgument(f"Invalid output name: {name}, there are {', '.join(known)}")
        return list(asked or known)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """As `run`, with OrtValues. Raises InvalidArgument as that does."""
        return [OrtValue(each) for each in self.run(output_names, input_dict_ort_values)]

    def io_binding(self) -> IOBinding:
        """What a run reads and writes, to be filled in."""
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run on what is bound. Raises InvalidArgument as `run` does, or if an output does not fit
        what it is bound to."""
        iobinding._run()


def get_available_providers() -> list[str]:
    """The CPU's."""
    return [PROVIDER]


def get_device() -> str:
    """`CPU`."""
    return "CPU"
