"""`InferenceSession`, which compiles and runs a model, with ONNX Runtime's interface."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no types

from tilewright.compiler.api import compile_model
from tilewright.compiler.bindings.ort import failures
from tilewright.compiler.bindings.ort.binding import IOBinding
from tilewright.compiler.bindings.ort.description import (
    ModelMetadata,
    NodeArg,
    SessionDescription,
    denoted,
    numpy_type,
    of_artifact,
    of_model,
    with_initializers,
)
from tilewright.compiler.bindings.ort.failures import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
)
from tilewright.compiler.bindings.ort.options import RunOptions, SessionOptions
from tilewright.compiler.bindings.ort.profile import SessionTrace
from tilewright.compiler.bindings.ort.providers import PROVIDER, normalized
from tilewright.compiler.bindings.ort.values import OrtValue, as_array
from tilewright.compiler.errors import (
    InvalidArgumentError,
    InvalidInputError,
    InvalidModelError,
    StoppedError,
    UnsupportedOperatorError,
    suggestion,
)
from tilewright.compiler.runtime.artifact import load_artifact, read_artifact
from tilewright.compiler.targets.granted_cores import granted_cores

if TYPE_CHECKING:
    from tilewright.compiler.runtime.model import Model


def _named(error: InvalidModelError, source: Path | bytes) -> InvalidModelError:
    """Return the exception that ONNX Runtime would raise for an invalid model.

    This is `NoSuchFile`, `InvalidProtobuf` or `InvalidGraph`, with the same message.
    """
    if isinstance(source, Path) and not source.is_file():
        return NoSuchFile(str(error))
    try:
        data = source if isinstance(source, bytes) else source.read_bytes()
        readable = bool(onnx.ModelProto.FromString(data).HasField("graph"))
    except (DecodeError, OSError):
        readable = False
    return InvalidGraph(str(error)) if readable else InvalidProtobuf(str(error))


def _as_given(output: Any) -> Any:
    """Convert an output of strings to an array of Python strings (dtype `object`).

    ONNX Runtime returns strings in this form. Other outputs are returned unchanged.
    """
    is_text = isinstance(output, np.ndarray) and output.dtype.kind == "U"
    return output.astype(object) if is_text else output


class InferenceSession:
    """A compiled model with ONNX Runtime's interface.

    Several threads may call `run` at once.

    Args:
        path_or_bytes: an ONNX file, its bytes, or the folder of an artifact.
        sess_options: options such as the number of threads, fixed sizes of dynamic dimensions, and
            values that replace initializers.
        providers: names of execution providers; all but the CPU's are ignored with a warning.
        provider_options: options of each provider; accepted and ignored.
        options: options of `compile_model`, such as `dims`, `numerics`, `precision`.

    Raises:
        NoSuchFile: if the file does not exist.
        InvalidProtobuf: if the bytes are not an ONNX model.
        InvalidGraph: if the model is inconsistent or violates ONNX.
        NotImplemented: if the model uses an operator that is not implemented.
        CompilerError: if an option is invalid. It is also the base class of the errors above.
        ValueError: if the providers are not a list of names, or the options do not match them.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        self._options = given = sess_options or SessionOptions()
        if given.optimized_model_filepath:
            raise InvalidArgumentError(
                f"'{given.optimized_model_filepath}' cannot be written: the compiled model "
                "is not an ONNX file; `compile_with` writes artifacts, which sessions load"
            )
        self._provider_options: dict[str, str] = {}
        self.set_providers(providers, provider_options)
        self._trace = SessionTrace(given.profile_file_prefix) if given.enable_profiling else None
        self._source: Path | bytes = (
            path_or_bytes if isinstance(path_or_bytes, bytes) else Path(fspath(path_or_bytes))
        )
        self._described: SessionDescription | None = None
        self._sizes: Mapping[str, Any] = {}
        with self._event("session_initialization"):
            try:
                self._compiled = self._made(options)
            except UnsupportedOperatorError as error:
                raise failures.NotImplemented(error) from error
            except InvalidModelError as error:
                raise _named(error, self._source) from error

    def _made(self, options: dict[str, Any]) -> Model:
        given = self._options
        threads = given.intra_op_num_threads or granted_cores()
        if isinstance(self._source, Path) and self._source.is_dir():
            if given.initializers:
                raise InvalidArgumentError("the initializers of an artifact are compiled in")
            self._described = of_artifact(read_artifact(self._source))
            return load_artifact(self._source, threads)
        sizes = dict(given.sizes)
        if given.denoted_sizes:
            sizes |= denoted(self._source, given.denoted_sizes)
        dims = {**sizes, **(options.pop("dims", None) or {})}
        self._sizes = {name: size for name, size in dims.items() if isinstance(size, int)}
        model: Any = self._source
        if given.initializers:
            model = with_initializers(
                model, {name: as_array(value) for name, value in given.initializers.items()}
            )
        return compile_model(model, threads=threads, dims=dims, **options)

    def _event(self, name: str) -> AbstractContextManager[None]:
        return nullcontext() if self._trace is None else self._trace.event(name)

    @property
    def _model_path(self) -> str | None:
        """The path of the model, or None for a model passed as bytes.

        The library Hugging Face Optimum reads this attribute.
        """
        return None if isinstance(self._source, bytes) else str(self._source)

    @property
    def _description(self) -> SessionDescription:
        """The model's inputs, outputs and metadata, read on first use."""
        if self._described is None:
            self._described = of_model(self._source).at(self._sizes)
        return self._described

    def get_inputs(self) -> list[NodeArg]:
        """Return name, type and shape of each input."""
        return list(self._description.inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Return name, type and shape of each output."""
        return list(self._description.outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return an empty list: initializers are compiled in as constants."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """Return the producer of the model, and the metadata in its file."""
        return self._description.metadata

    def get_session_options(self) -> SessionOptions:
        """Return the options with which the session was created."""
        return self._options

    def get_providers(self) -> list[str]:
        """Return a list with the name of the CPU's provider."""
        return [PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the stored provider options, with the CPU provider's name as the only key.

        The options have no effect.
        """
        return {PROVIDER: dict(self._provider_options)}

    def set_providers(
        self,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Check the providers, and store the options of the CPU's provider; they have no effect.

        Other providers are ignored with a warning.

        Raises:
            ValueError: if the providers are not a list of names, or the options do not match them.
        """
        names, options = normalized(providers, provider_options)
        self._provider_options = dict(zip(names, options, strict=True)).get(PROVIDER, {})

    def enable_fallback(self) -> None:
        """Do nothing: there is only one provider."""

    def disable_fallback(self) -> None:
        """Do nothing: there is only one provider."""

    def get_profiling_start_time_ns(self) -> int:
        """Return the time at which a profiled session started, in ns of a monotonic clock.

        Without profiling, it is 0.
        """
        return 0 if self._trace is None else self._trace.start_ns

    def end_profiling(self) -> str:
        """Write the trace of a profiled session, and return the name of its file.

        Without profiling, return an empty string.
        """
        trace, self._trace = self._trace, None
        return "" if trace is None else trace.write()

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Run the model once, and return the outputs.

        Args:
            output_names: the outputs to return, in this order; None or an empty list selects all.
            input_feed: the inputs by name: arrays, lists, OrtValues, or objects with `__dlpack__`
                on a CPU.
            run_options: options by which another thread can stop the run (`RunOptions.terminate`).

        Raises:
            InvalidArgument: if an input is missing or unknown, an input has another type or shape,
                or an output name is unknown.
            Fail: if the run was stopped by `RunOptions.terminate`.
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
            with self._event("model_run"):
                stop = None if run_options is None else run_options.stop
                found = self._compiled.run(feeds, stop=stop)
        except StoppedError as error:
            raise Fail("Exiting due to terminate flag being set to true.") from error
        except InvalidInputError as error:
            raise InvalidArgument(str(error)) from error
        outputs = dict(zip(self._compiled.output_names, map(_as_given, found), strict=True))
        return [outputs[name] for name in names]

    @property
    def _input_names(self) -> Sequence[str]:
        return [port.name for port in self._compiled.inputs]

    def _type(self, name: str) -> np.dtype | None:
        """Return the element type of an input; None if it does not exist or is not a tensor."""
        kinds = {each.name: each.type for each in self._description.inputs}
        return numpy_type(kinds.get(name, ""))

    def _output_names(self, asked: Sequence[str] | None) -> list[str]:
        known = self._compiled.output_names
        for name in asked or ():
            if name not in known:
                raise InvalidArgument(
                    f"Invalid output name: {name}, there are "
                    f"{', '.join(known)}{suggestion(name, known)}"
                )
        return list(asked or known)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run the model in a separate thread, which calls `callback(outputs, user_data, error)`.

        `error` is empty after success. Otherwise, it is the message of the exception that `run`
        would raise, and `outputs` is empty.
        """

        def work() -> None:
            try:
                found, error = self.run(output_names, input_feed, run_options), ""
            except Exception as raised:  # noqa: BLE001 - passed to the callback
                found, error = [], str(raised) or type(raised).__name__
            callback(found, user_data, error)

        threading.Thread(target=work, name="tilewright-run").start()

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Run the model once with OrtValues as inputs, and return the outputs as OrtValues.

        Apart from the type of the inputs, arguments and errors are those of `InferenceSession.run`.
        """
        found = self.run(output_names, input_dict_ort_values, run_options)
        return [OrtValue(each) for each in found]

    def io_binding(self) -> IOBinding:
        """Return a new, empty binding of inputs and outputs for this session."""
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run the model on the bound inputs, and write the bound outputs.

        Raises:
            InvalidArgument: as in `run`, or if an output does not fit the value bound to it.
            Fail: if the run was stopped by `RunOptions.terminate`.
        """
        iobinding._run(run_options)
