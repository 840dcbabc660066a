"""Executables: programs whose code and weights are in memory, ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ctypes import addressof, c_char
from functools import cached_property, partial
from math import prod
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import (
    InvalidInputError,
    OutOfMemoryError,
    StoppedError,
    enough_memory_for,
)
from tilewright.compiler.runtime.context import ProgramForm, RunContext, SizedPort
from tilewright.compiler.runtime.inputs import InputSizes, Placed, arrays_in_order, unplaced
from tilewright.compiler.runtime.kernel import ALIGNMENT
from tilewright.compiler.runtime.model import Model
from tilewright.compiler.runtime.native import check_threads, native, native_address
from tilewright.compiler.runtime.packing import Array, Bytes, bfloat16_type
from tilewright.compiler.runtime.ports import ModelPort
from tilewright.compiler.runtime.program import Program, described
from tilewright.compiler.runtime.program_check import check_program
from tilewright.compiler.runtime.program_encoding import encode
from tilewright.compiler.runtime.session import Session
from tilewright.compiler.runtime.slicing import Slicing
from tilewright.compiler.runtime.stopping import StopFlag
from tilewright.compiler.sizes import Dimension, dimensions

STOPPED = -1
"""Status of a run that its caller stopped; defined in native/tilewright.h."""

REFUSED = 4
"""Status of a run that ended at the program's first `Refuse` instruction; defined in
native/tilewright.h. The second one has the status 5, and so on."""


class Executable(Model):
    """A compiled model that consists of one program.

    A program with dynamic sizes derives the sizes of a run from the input shapes; they must be
    within the ranges of its dimensions. Several threads may call `run` concurrently, also with
    different sizes. Every call uses its own arena and scratch memory, which is kept for later
    calls. All executables of a process share one thread pool.

    Args:
        program: the program. The constructor checks that its memory accesses are in bounds.
        weights: the packed constants, aligned to 64 bytes; they are not copied.
        address_of: a function that returns the address of a kernel's function, given its symbol.
        threads: number of threads of a run, including the calling thread.
        code: an object that keeps the functions' code in memory, such as the loaded library.

    Raises:
        ValueError: if the program would access memory out of bounds, or the weights are too small
            or not aligned.
    """

    def __init__(
        self,
        program: Program,
        weights: Bytes,
        address_of: Callable[[str], int],
        threads: int = 1,
        code: object = None,
    ) -> None:
        check_program(program)
        if weights.nbytes < program.weight_bytes or (
            weights.nbytes and weights.ctypes.data % ALIGNMENT
        ):
            raise ValueError(
                f"program '{program.name}' needs {program.weight_bytes} aligned bytes of weights"
            )
        self.program = program
        self.threads = check_threads(threads)
        self._weights = weights
        self._address_of = address_of
        self._code_owner = code
        encoded = encode(program)
        functions = [address_of(s) for s in encoded.symbols]
        functions += [native_address(s) for s in encoded.natives]
        self._starts = list(encoded.starts)
        self._form = ProgramForm(program, encoded, np.array(functions, np.uintp), weights)
        self._sizes = InputSizes(program)
        self._slicing = Slicing(program, self._sizes) if program.slices is not None else None
        self._no_rooms = (0,) * len(program.rooms)
        self._input_names = tuple(port.name for port in program.inputs)
        self._counted = tuple(
            (index, port.counted)
            for index, port in enumerate(program.outputs)
            if port.counted is not None
        )
        self._labelled = tuple(
            (index, port.labels)
            for index, port in enumerate(program.outputs)
            if port.labels is not None
        )
        bits = [k for k, port in enumerate(program.outputs) if port.dtype is DType.BFLOAT16]
        kind = bfloat16_type() if bits else None
        self._bfloat16 = tuple((index, kind) for index in bits if kind is not None)
        results = program.results
        self._lists = results if any(result.is_list for result in results) else ()
        self._texts = tuple(
            (index, port.labels)
            for index, port in enumerate(program.inputs)
            if port.labels is not None
        )
        self._idle: list[RunContext] = []
        self._run: Callable[[int], int] = native().tw_run_program

    @cached_property
    def inputs(self) -> tuple[ModelPort, ...]:
        """The name, dtype and shape of each input, in order, with names for dynamic dimensions."""
        return tuple(map(described, self.program.inputs))

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dynamic dimensions of the program with their ranges, sorted by name."""
        return self.program.dimensions

    @cached_property
    def outputs(self) -> tuple[ModelPort, ...]:
        """The name, dtype and shape of each output, in the order in which `run` returns them.

        If an extent of an output depends on data, the shape contains the largest possible extent.
        """
        return tuple(map(described, self.program.outputs))

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the results that `run` returns, in order; a list of arrays is one result."""
        return tuple(result.name for result in self.program.results)

    @property
    def weights(self) -> Bytes:
        """The packed constants as raw bytes."""
        return self._weights

    def with_threads(self, threads: int) -> Executable:
        """Return an executable of the same program that runs with another number of threads.

        Both executables share code and weights.
        """
        return Executable(self.program, self._weights, self._address_of, threads, self._code_owner)

    def with_program(self, program: Program) -> Executable:
        """Return an executable that runs another program with the same code and weights.

        For example, the other program may also copy intermediate values to outputs.

        Raises:
            ValueError: if the program would access memory out of bounds, or the weights are too
                small.
        """
        return Executable(program, self._weights, self._address_of, self.threads, self._code_owner)

    def run(
        self,
        inputs: Mapping[str, Array] | Sequence[Array],
        *,
        labels: bool = True,
        stop: StopFlag | None = None,
    ) -> list[Array]:
        """Run the program once; arguments, results and errors are those of `Model.run`.

        An executable never compiles another program during a run.
        """
        arrays = arrays_in_order(inputs, self._input_names)
        if self._texts:
            arrays = self._positions(arrays)
        parts = self._slicing.parts(arrays) if self._slicing is not None else []
        if parts and self.takes(arrays):
            runs = [self.run_into(part, {}, stop=stop) for part in parts]
            with enough_memory_for(f"for the outputs of '{self.program.name}'"):
                outputs = [np.concatenate(slices) for slices in zip(*runs, strict=True)]
        else:
            outputs = self.run_into(arrays, {}, stop=stop)
        if not labels:
            return outputs
        return self.listed(self.labelled(outputs))

    def _positions(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the inputs, with strings replaced by int64 positions in the table `Port.labels`.

        Raises:
            InvalidInputError: if an array that should contain strings has other elements.
        """
        made = list(arrays)
        for index, labels in self._texts:
            array = made[index]
            if isinstance(array, np.ndarray) and array.dtype.kind in "OUT":
                try:
                    made[index] = labels.positions(array)
                except TypeError as error:
                    name = self._input_names[index]
                    raise InvalidInputError(f"input '{name}' holds no texts: {error}") from error
        return made

    def bind(
        self, states: Mapping[str, str], initial: Mapping[str, Array] | None = None
    ) -> Session:
        """Create a session of consecutive runs; arguments and errors are those of `Model.bind`."""
        ports = {port.name: port.shape for port in self.inputs}
        names = [port.name for port in self.outputs]
        session = Session(ports, names, lambda arrays: self, self.run, states, initial or {})
        session.check(self)
        return session

    @cached_property
    def in_place(self) -> Mapping[int, int]:
        """Maps the index of an output to the index of the input whose memory it may overwrite.

        The conditions are described at `Program.in_place`.
        """
        return self.program.in_place()

    @cached_property
    def rooms(self) -> tuple[tuple[int, ...], ...]:
        """For each slack capacity in `Program.rooms`, the indices of the outputs that have it.

        A slack capacity is the number of unused rows at the end of a buffer. A program uses these
        rows if it appends rows in place: an output overwrites an input with slack capacity. The
        result is `()`, and no rows can be used, in two cases:

        - An input has slack capacity, but no output overwrites this input.
        - A slack capacity belongs to no output, or to an output that does not overwrite an input.
        """
        program, continued = self.program, self._continued.values()
        with_room = {k for k, port in enumerate(program.inputs) if port.room is not None}
        if with_room != self._continued.keys():
            return ()
        found = []
        for room in program.rooms:
            ports = [
                k for k, port in enumerate(program.outputs) if room in dimensions(*port.stored)
            ]
            if not ports or not set(ports) <= set(continued):
                return ()
            found.append(tuple(ports))
        return tuple(found)

    @cached_property
    def _continued(self) -> Mapping[int, int]:
        """Maps each input with unused rows to the output that may overwrite the input, by index.

        An input has unused rows if its buffer is longer than its array (`Port.room`).
        """
        ports = self.program.inputs
        return {i: o for o, i in self.in_place.items() if ports[i].room is not None}

    def ports_for(
        self, arrays: Sequence[Array], rooms: tuple[int, ...] = ()
    ) -> tuple[tuple[SizedPort, ...], tuple[SizedPort, ...]]:
        """Return all inputs and all outputs of a run, with sizes inferred from the input arrays.

        The sizes are cached, so that the next run with the same sizes need not compute them.

        Args:
            arrays: the inputs, in order.
            rooms: the number of unused rows for each slack capacity in `Program.rooms`; `()` for
                no slack.

        Raises:
            InvalidInputError: if a dimension is outside its range.
            OutOfMemoryError: if a size is too large for any memory.
        """
        context = self._context((*self._sizes.of(arrays), *(rooms or self._no_rooms)))
        ports = context.inputs, context.outputs
        self._idle.append(context)
        return ports

    def takes(self, arrays: Sequence[Array]) -> bool:
        """Whether the program accepts inputs of these shapes; `arrays` has all inputs, in order."""
        try:
            context = self._context((*self._sizes.of(arrays), *self._no_rooms))
        except InvalidInputError:
            return False
        ports = context.inputs
        self._idle.append(context)
        shapes = [getattr(array, "shape", None) for array in arrays]
        return shapes == [port.shape for port in ports]

    def run_into(
        self,
        arrays: Sequence[Array | Placed],
        given: Mapping[int, Placed],
        rooms: tuple[int, ...] = (),
        stop: StopFlag | None = None,
    ) -> list[Array]:
        """Run the program once, in memory that the caller provides.

        Strings, dictionaries and bfloat16 are not converted (`labels=False` in `run`).

        Args:
            arrays: the inputs, in order. A `Placed` input must have the dtype of its port.
            given: maps the index of an output to the array in which the output is stored, of the
                output's shape and dtype. The array must not overlap an input, except for the input
                that the output may overwrite (`in_place`). The caller must keep the memory valid
                during the run.
            rooms: the number of unused rows for each slack capacity in `Program.rooms`; `()` for
                no slack. Inputs and outputs with slack must be `Placed` at the start of buffers
                that have this many additional rows.
            stop: as in `run`.

        Returns:
            The outputs, in order. An output in `given` is returned as that array.

        Raises:
            InvalidInputError: if an input has a wrong shape or dtype, or a dimension is outside its
                range.
            OutOfMemoryError: if memory does not suffice for the intermediate values.
            StoppedError: if `stop` was set before the run ended.
        """
        context = self._context((*self._sizes.of(arrays), *(rooms or self._no_rooms)))
        try:
            converted: list[Array] = []
            continued: list[tuple[int, Array]] = []
            pointers = context.pointers
            for index, (dtype, shape, _, positions, stored) in enumerate(context.inputs):
                array = arrays[index]
                if type(array) is Placed and array.shape == shape and (rooms or stored is shape):
                    address = array.address
                else:
                    if type(array) is np.ndarray and array.dtype == dtype and array.shape == shape:
                        fitting = array
                    else:
                        fitting = self._sizes.checked(unplaced(arrays), index, shape)
                        # it must stay alive as long as its address is in use
                        converted.append(fitting)
                    if stored is not shape and index in self._continued:
                        continued.append((index, fitting))  # it is copied to the output's memory
                        continue
                    if (
                        stored is not shape
                        or not fitting.flags.c_contiguous
                        or (address := _address(fitting)) % ALIGNMENT
                    ):
                        address = context.stage(index, fitting)
                for position in positions:
                    pointers[position] = address
            if not context.ready:
                context.hold()
            outputs, starts = [], []
            for index, (dtype, _, size, positions, stored) in enumerate(context.outputs):
                if index in given:
                    outputs.append(given[index].array)
                    start = given[index].address
                else:
                    raw = np.empty(size + ALIGNMENT, np.uint8)
                    address = addressof(_first_byte(raw))
                    start = address + -address % ALIGNMENT
                    outputs.append(np.ndarray(stored, dtype, raw, start - address))
                starts.append(start)
                for position in positions:
                    pointers[position] = start
            for index, fitting in continued:
                port, output = context.inputs[index], self._continued[index]
                port.rows_in(outputs[output])[...] = fitting
                for position in port.positions:
                    pointers[position] = starts[output]
            if stop is not None:
                context.watch(stop)
            status = self._run(context.program)
            for index, port in enumerate(context.outputs):
                if port.stored is not port.shape and index not in given:
                    outputs[index] = np.ascontiguousarray(port.rows_in(outputs[index]))
            for index, dim in self._counted:
                outputs[index] = _front(outputs[index], dim, int(context.counts[index]))
        except MemoryError as error:
            raise OutOfMemoryError(
                f"there is not enough memory for the outputs of '{self.program.name}': {error}"
            ) from error
        finally:
            if stop is not None:
                context.watch(None)  # also after an interrupt: another run must not see the flag
            self._idle.append(context)
        if status == STOPPED:
            raise StoppedError(f"a run of '{self.program.name}' was stopped")
        if status >= REFUSED:
            raise InvalidInputError(self.program.refusals[status - REFUSED])
        if status:
            raise RuntimeError(f"program '{self.program.name}': bad instruction ({status})")
        return outputs

    def labelled(self, outputs: Sequence[Array]) -> list[Array]:
        """Convert outputs that represent strings, dictionaries or bfloat16 to these types.

        `outputs` has all outputs in order. Other outputs are returned unchanged.
        """
        made = list(outputs)
        for index, kind in self._bfloat16:
            made[index] = made[index].view(kind)
        for index, labels in self._labelled:
            made[index] = labels.applied(made[index])
        return made

    def listed(self, outputs: Sequence[Array]) -> list[Array]:
        """Return the outputs of the model, given all outputs of the program in order.

        Outputs of the program that are elements of one list are combined into a Python list.
        """
        if not self._lists:
            return list(outputs)
        return [cast("Array", result.of(outputs)) for result in self._lists]

    def profile(
        self, inputs: Mapping[str, Array] | Sequence[Array], samples: int
    ) -> NDArray[np.float64]:
        """Time every instruction of the program during complete runs.

        Args:
            inputs: as in `run`.
            samples: number of timed runs, after one untimed run.

        Returns:
            An array of shape (samples, instructions) with the seconds of each instruction of
                `program.walk()`: CPU time with one thread, and wall time with several. The time of
                an instruction in a loop is the sum over all iterations, and the time of a skipped
                instruction is 0. The time of a loop or branch excludes the instructions in it.

        Raises:
            InvalidInputError: if an input is missing or unknown, has a wrong shape or dtype, or a
                dimension is outside its range.
            OutOfMemoryError: if memory does not suffice for the intermediate values.
        """
        seconds = np.zeros((samples, len(self._starts)), np.float64)
        words = np.zeros(max(1, self._form.encoded.code.size), np.float64)
        other = self.with_threads(self.threads)
        other._slicing = None
        other.run(inputs)
        other._run = partial(native().tw_profile_program, words.ctypes.data)
        for row in seconds:
            other.run(inputs)
            row[:] = words[self._starts]
        return seconds

    def _context(self, values: tuple[int, ...]) -> RunContext:
        """Return an unused or new context, with its sizes set to `values` (`RunContext.resize`).

        After use, the caller must append it to `_idle`, the list of unused contexts.
        """
        try:
            context = self._idle.pop()
        except IndexError:
            context = RunContext(self._form, self.threads)
        if context.values != values:
            context.resize(values)
        return context


# A cast: NumPy's annotations support buffers from Python 3.12 on.
_first_byte = cast("Callable[[Array], c_char]", c_char.from_buffer)
"""Returns a ctypes object over the memory of an array. Taking the address of this object takes a
quarter of the time of `array.ctypes.data`."""


def _address(array: Array) -> int:
    """Return the address of the first element of a C-contiguous array."""
    try:
        return addressof(_first_byte(array))
    except (TypeError, ValueError, BufferError):  # read-only or empty
        address: int = array.ctypes.data
        return address


def _front(array: Array, dim: int, count: int) -> Array:
    """Return the used part of an output whose extent along `dim` depends on data.

    `array` has the largest possible shape. The run has determined the extent `count` of dimension
    `dim`. The result is a view of the first elements of `array`, because kernels store such an
    output contiguously at the start of its memory.
    """
    shape = (*array.shape[:dim], count, *array.shape[dim + 1 :])
    return array.reshape(-1)[: prod(shape)].reshape(shape)
