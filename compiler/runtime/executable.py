"""Executables: programs bound to code and weights, ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ctypes import addressof, c_char, c_void_p
from functools import cached_property, partial
from math import prod
from typing import cast

import numpy as np
from numpy.typing import NDArray

from compiler.errors import OutOfMemoryError, enough_memory_for
from compiler.runtime.bench import scratch_stride
from compiler.runtime.inputs import arrays_in_order, checked
from compiler.runtime.kernel import ALIGNMENT
from compiler.runtime.memory import check_memory
from compiler.runtime.native import ProgramStruct, check_threads, native, native_address
from compiler.runtime.packing import Array, Bytes, aligned_empty, aligned_zeros
from compiler.runtime.program import BufferSpace, Port, Program
from compiler.runtime.program_encoding import encode
from compiler.runtime.session import Session


class Executable:
    """A compiled model.

    `run` may be called from several threads at once: every call has an arena and scratch blocks of
    its own, taken from a list of idle ones, which grows to the largest number of calls that ran
    at the same time. All executables of a process share one thread pool.

    Args:
        program: what to run; it is checked.
        weights: the packed constants, aligned to 64 bytes; they are not copied.
        address_of: gives the address of a function by symbol.
        threads: threads that a run uses, the calling one included.
        code: whatever must stay alive as long as the functions.

    Raises:
        ValueError: if the program would reach outside its memory, or the weights do not fit it.
    """

    def __init__(
        self,
        program: Program,
        weights: Bytes,
        address_of: Callable[[str], int],
        threads: int = 1,
        code: object = None,
    ) -> None:
        program.check()
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
        self._functions = np.array(functions, np.uintp)
        self._words = encoded.code
        self._starts = list(encoded.starts)
        self._refs = encoded.refs
        self._input_names = tuple(port.name for port in program.inputs)
        self._input_checks = tuple(
            (port.dtype.numpy, port.shape, positions)
            for port, positions in zip(
                program.inputs, self._positions(BufferSpace.INPUT, len(program.inputs)), strict=True
            )
        )
        self._output_parts = tuple(
            (port.bytes + ALIGNMENT, port.shape, port.dtype.numpy, positions)
            for port, positions in zip(
                program.outputs,
                self._positions(BufferSpace.OUTPUT, len(program.outputs)),
                strict=True,
            )
        )
        self._counted = tuple(
            (index, port.counted)
            for index, port in enumerate(program.outputs)
            if port.counted is not None
        )
        self._idle: list[_Context] = []
        self._run: Callable[[int], int] = native().tw_run_program

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Name, dtype and shape of each input."""
        return self.program.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Name, dtype and shape of each output, in the order in which `run` returns them.

        Of a counted output the shape is the largest that it can have.
        """
        return self.program.outputs

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of what `run` returns, in order."""
        return tuple(port.name for port in self.program.outputs)

    @property
    def weights(self) -> Bytes:
        """The packed constants."""
        return self._weights

    def with_threads(self, threads: int) -> Executable:
        """The same model for another number of threads; code and weights are shared."""
        return Executable(self.program, self._weights, self._address_of, threads, self._code_owner)

    def with_program(self, program: Program) -> Executable:
        """Another program over the same code and weights, such as one that also copies values out.

        Raises:
            ValueError: as the constructor does.
        """
        return Executable(program, self._weights, self._address_of, self.threads, self._code_owner)

    def run(self, inputs: Mapping[str, Array] | Sequence[Array]) -> list[Array]:
        """Run the model once.

        An input that is C-contiguous and aligned to 64 bytes is read where it lies, any other is
        copied. The outputs are new arrays, each as large as the run found it to be.

        Args:
            inputs: arrays by input name, or in the order of `inputs`.

        Returns:
            The outputs, in the order of `outputs`.

        Raises:
            InvalidInputError: if an input is missing, unknown, or of another shape or dtype.
            OutOfMemoryError: if there is no room for the values between inputs and outputs.
        """
        return self.run_into(arrays_in_order(inputs, self._input_names), {})

    def bind(
        self, states: Mapping[str, str], initial: Mapping[str, Array] | None = None
    ) -> Session:
        """A session of runs, each of which takes outputs of the one before it as inputs: a cache of
        keys and values, the state of a recurrent network.

        Args:
            states: for each output that is kept the input that it becomes.
            initial: the first values of states, by input; zeros where none is given.

        Raises:
            InvalidArgumentError: if there is no such output or input, two outputs become one input,
                or the two of a state differ in shape or dtype.
            InvalidInputError: if a first value does not fit its input.
            OutOfMemoryError: if there is no room for the states.
        """
        ports = {port.name: port.shape for port in self.inputs}
        session = Session(ports, self.output_names, lambda arrays: self, states, initial or {})
        session.check(self)
        return session

    @cached_property
    def in_place(self) -> Mapping[int, int]:
        """The outputs that `run_into` may write where an input lies (`Program.in_place`)."""
        return self.program.in_place()

    def run_into(self, arrays: Sequence[Array], given: Mapping[int, Array]) -> list[Array]:
        """As `run`, with memory for some outputs.

        Args:
            arrays: the inputs, in order.
            given: for the number of an output the array that it is written to: C-contiguous,
                aligned to 64 bytes, of the output's shape and dtype. Only an output of `in_place`
                may share memory, with its input; the caller answers for that.

        Raises:
            InvalidInputError, OutOfMemoryError: as `run` does.
            ValueError: if an output does not fit its array.
        """
        try:
            context = self._idle.pop()
        except IndexError:
            what = f"to run '{self.program.name}'"
            made = sum(port.bytes for port in self.program.outputs)
            check_memory(self.program.arena_bytes + made, what)
            with enough_memory_for(what):
                context = _Context(self)
        try:
            converted: list[Array] = []
            pointers = context.pointers
            for index, (dtype, shape, positions) in enumerate(self._input_checks):
                array = arrays[index]
                if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                    array = checked(array, self.program.inputs[index])
                    converted.append(array)  # it must live as long as its address is in use
                if not array.flags.c_contiguous or (address := _address(array)) % ALIGNMENT:
                    address = context.stage(index, array)
                for position in positions:
                    pointers[position] = address
            outputs = []
            for index, (size, shape, dtype, positions) in enumerate(self._output_parts):
                if index in given:
                    outputs.append(given[index])
                    start = self._address_for(index, given[index])
                else:
                    raw = np.empty(size, np.uint8)
                    address = addressof(_first_byte(raw))
                    start = address + -address % ALIGNMENT
                    outputs.append(np.ndarray(shape, dtype, raw, start - address))
                for position in positions:
                    pointers[position] = start
            status = self._run(context.program)
            for index, dim in self._counted:
                outputs[index] = _front(outputs[index], dim, int(context.counts[index]))
        except MemoryError as error:
            raise OutOfMemoryError(
                f"there is not enough memory for the outputs of '{self.program.name}': {error}"
            ) from error
        finally:
            self._idle.append(context)
        if status:
            raise RuntimeError(f"program '{self.program.name}': bad instruction ({status})")
        return outputs

    def profile(
        self, inputs: Mapping[str, Array] | Sequence[Array], samples: int
    ) -> NDArray[np.float64]:
        """Time every instruction of the program, each in its place in the model.

        Args:
            inputs: as in `run`.
            samples: how often the model is run, after one run that is not counted.

        Returns:
            (samples, instructions): seconds of each instruction of `program.walk()`, CPU time with
                one thread and wall time with several. An instruction in a loop counts each time
                that it runs; one that a branch passes over is 0. Loops and branches themselves
                have what they cost besides the instructions in them.

        Raises:
            InvalidInputError, OutOfMemoryError: as `run` does.
        """
        seconds = np.zeros((samples, len(self._starts)), np.float64)
        words = np.zeros(max(1, self._words.size), np.float64)
        other = self.with_threads(self.threads)
        other.run(inputs)
        other._run = partial(native().tw_profile_program, words.ctypes.data)
        for row in seconds:
            other.run(inputs)
            row[:] = words[self._starts]
        return seconds

    def _address_for(self, index: int, array: Array) -> int:
        """Where an output goes that is written to an array of the caller's."""
        port = self.program.outputs[index]
        fits = array.shape == port.shape and array.dtype == port.dtype.numpy
        address = _address(array) if fits and array.flags.c_contiguous else 1
        if address % ALIGNMENT or not array.flags.writeable or port.counted is not None:
            raise ValueError(f"output '{port.name}' cannot be written to the array given for it")
        return address

    def _positions(self, space: BufferSpace, count: int) -> list[tuple[int, ...]]:
        """For each port, which arguments of the code point to it."""
        found: list[list[int]] = [[] for _ in range(count)]
        for i, ref in enumerate(self._refs):
            if ref.space is space:
                found[ref.offset].append(i)
        return [tuple(positions) for positions in found]


class _Context:
    """What one run at a time uses: arena, scratch, and the table of pointers."""

    def __init__(self, executable: Executable) -> None:
        program, threads = executable.program, executable.threads
        self._ports = program.inputs
        # Zeros, so that bytes that nothing writes are not signalling NaNs.
        self._arena = aligned_zeros(program.arena_bytes)
        stride = scratch_stride(program.scratch_bytes)
        self._scratch = aligned_empty(stride * threads)
        self.counts = np.zeros(len(program.outputs), np.int64)
        self._staged: dict[int, tuple[Array, int]] = {}
        bases = {
            BufferSpace.ARENA: self._arena.ctypes.data,
            BufferSpace.WEIGHTS: executable._weights.ctypes.data,
        }
        self.pointers = (c_void_p * max(1, len(executable._refs)))()
        for position, ref in enumerate(executable._refs):
            if ref.space in bases:
                self.pointers[position] = bases[ref.space] + ref.offset
            elif ref.space is BufferSpace.COUNT:
                size = self.counts.itemsize
                self.pointers[position] = self.counts.ctypes.data + ref.offset * size
        self._struct = ProgramStruct(
            code=executable._words.ctypes.data,
            words=executable._words.size,
            functions=executable._functions.ctypes.data,
            threads=threads,
        )
        self._struct.arguments.buffers = addressof(self.pointers)
        self._struct.arguments.scratch = self._scratch.ctypes.data
        self._struct.arguments.scratch_stride = stride
        self.program = addressof(self._struct)

    def stage(self, index: int, array: Array) -> int:
        """Copy an input into an aligned buffer of this context; returns its address."""
        staged = self._staged.get(index)
        if staged is None:
            port = self._ports[index]
            copy = np.ndarray(port.shape, port.dtype.numpy, aligned_empty(port.bytes))
            staged = self._staged[index] = copy, copy.ctypes.data
        staged[0][...] = array
        return staged[1]


# A cast: NumPy's annotations know buffers from Python 3.12 on.
_first_byte = cast("Callable[[Array], c_char]", c_char.from_buffer)
"""A ctypes object over an array's memory: its address costs a quarter of `array.ctypes.data`."""


def _address(array: Array) -> int:
    """Where a C-contiguous array lies."""
    try:
        return addressof(_first_byte(array))
    except (TypeError, ValueError, BufferError):  # read-only or empty
        address: int = array.ctypes.data
        return address


def _front(array: Array, dim: int, count: int) -> Array:
    """The array with `count` elements along a dimension, which lie at its start."""
    shape = (*array.shape[:dim], count, *array.shape[dim + 1 :])
    return array.reshape(-1)[: prod(shape)].reshape(shape)
