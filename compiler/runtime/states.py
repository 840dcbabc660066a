"""The states of sessions and their buffers.

A state is an output of one run of a model that the next run reads as an input.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilewright.compiler.errors import InvalidArgumentError, InvalidInputError, enough_memory_for
from tilewright.compiler.runtime.inputs import Placed
from tilewright.compiler.runtime.memory import check_memory
from tilewright.compiler.runtime.packing import Array, Bytes, aligned_empty, aligned_zeros
from tilewright.compiler.runtime.ports import Dims, dims_text
from tilewright.compiler.sizes import SlackDimension, is_dynamic

if TYPE_CHECKING:
    from tilewright.compiler.runtime.context import SizedPort
    from tilewright.compiler.runtime.executable import Executable
    from tilewright.compiler.runtime.program import Port

GROWTH = 2
"""Factor by which the capacity of a growing state exceeds its rows when memory is allocated, so
that few steps need new memory."""


@dataclass(frozen=True, slots=True)
class StateBuffer:
    """The memory of a state, and the array at the start of this memory.

    If the buffer has unused elements at the end (slack capacity), `room` is the dimension along
    which they lie, and the extent of this dimension in memory. Otherwise, `room` is None.
    """

    memory: Bytes
    placed: Placed
    room: tuple[int, int] | None = None

    def with_rows(self, shape: tuple[int, ...]) -> StateBuffer:
        """Return a buffer for an array of another `shape` in the same memory, without a copy.

        Only the number of rows may change: the extent of the dimension with slack capacity.
        """
        assert self.room is not None
        array, (axis, extent) = self.placed.array, self.room
        whole = np.ndarray((*shape[:axis], extent, *shape[axis + 1 :]), array.dtype, self.memory)
        rows = whole[tuple([slice(size) for size in shape])]
        return StateBuffer(self.memory, Placed(rows, self.placed.address), self.room)


class SessionState:
    """A state of a session: an input, and the output that becomes this input in the next step.

    The current value is in one of three private attributes:

    - `_now`: the buffer of the current value, which a step may overwrite. It is None before the
      first step, and after a step that returned the new value as a separate array.
    - `_held`: this separate array; otherwise None.
    - `_first`: the initial value; None for zeros. It is the current value while `_now` and `_held`
      are None.

    `_next` is the buffer that the present step writes. `_spare` is a second buffer for the next
    value, which a step uses if it cannot overwrite the current value; the two buffers then change
    roles after each step.

    Args:
        name: the name of the input.
        input_, output: the indices of the input and of the output.
        dims: the dimensions of the input.
        dtype: the dtype of the input, if it is known before the first step.
    """

    def __init__(
        self, name: str, input_: int, output: int, dims: Dims, dtype: np.dtype[Any] | None = None
    ) -> None:
        self.name = name
        self.input = input_
        self.output = output
        self._dims = dims
        self._grows = any(isinstance(dim, str) for dim in dims)
        self._dtype = dtype
        self._first: Array | None = None  # the initial value; None for zeros
        # The current value is in `_now` or, if the step returned it as a separate array, in
        # `_held`. Before the first step, it is `_first`.
        self._held: Array | None = None
        self._now: StateBuffer | None = None
        self._next: StateBuffer | None = None  # the buffer that the present step writes
        # A second buffer for the next value, if the step cannot overwrite the current one
        self._spare: StateBuffer | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the state's current value."""
        return self.value().shape

    def begin_with(self, first: Array | None) -> None:
        """Set the initial value to `first`, or to zeros if it is None.

        Raises:
            InvalidArgumentError: if `first` is None and the input has dynamic dimensions.
            InvalidInputError: if `first` is not an array, or its shape does not match the input.
        """
        if first is None:
            if self._grows:
                raise InvalidArgumentError(
                    f"state '{self.name}' has dynamic dimensions {dims_text(self._dims)}: "
                    "give its initial value in `initial`"
                )
            return
        if not isinstance(first, np.ndarray | np.generic):
            raise InvalidInputError(
                f"the initial value of '{self.name}' is of type {type(first).__name__}, "
                "expected an array"
            )
        if not _fits(first.shape, self._dims):
            raise InvalidInputError(
                f"the initial value of '{self.name}' has shape {first.shape}, "
                f"expected {dims_text(self._dims)}"
            )
        with enough_memory_for(f"for the state '{self.name}'"):
            array = _bits(np.asarray(first)).copy()
        self._first, self._dtype = array, array.dtype

    def hold(self, array: Array) -> None:
        """Set the current value to an array that a step returned, without a copy.

        The caller must not modify the array later.
        """
        self._now, self._held, self._dtype = None, _bits(array), _bits(array).dtype

    def reset(self) -> None:
        self._held = self._now = self._next = self._spare = None

    def value(self) -> Array:
        """Return the current value.

        Before the first step, this is the initial value, which is zeros by default. While the dtype
        is not known, these zeros are booleans.
        """
        found = self._known()
        if found is not None:
            return found
        return np.broadcast_to(np.zeros((), self._dtype or np.bool_), _closed(self._dims))

    def _known(self) -> Array | None:
        """Return the current value, or None if it is still the default of zeros."""
        if self._now is not None:
            return self._now.placed.array
        return self._first if self._held is None else self._held

    def copied(self) -> Array:
        if self._dtype is None:
            raise InvalidArgumentError(f"state '{self.name}' has no type before the first step")
        return self.value().copy()

    def check(self, port: Port, output: Port, rooms: Collection[SlackDimension]) -> None:
        """Check that this state's output of a program can become its input in the next run.

        Args:
            port: the input of the program.
            output: the output that becomes this input.
            rooms: the program's slack capacities. Each is a dynamic size: the number of unused rows
                at the end of some buffers.

        Raises:
            InvalidArgumentError: if the dtypes or shapes differ, the output's number of elements
                depends on data, or the output's buffer has unused elements other than slack
                capacity.
            InvalidInputError: if the initial value has a wrong dtype.
        """
        what = f"output '{output.name}' cannot become input '{self.name}'"
        if output.counted is not None:
            raise InvalidArgumentError(f"{what}: its number of elements depends on the data")
        if output.dtype is not port.dtype:
            raise InvalidArgumentError(f"{what}: it is of {output.dtype}, not of {port.dtype}")
        if not _fits(output.shape, self._dims):
            raise InvalidArgumentError(
                f"{what}: it has shape {output.shape}, not {dims_text(self._dims)}"
            )
        if output.stored != output.shape and not any(map(output.is_longer_by, rooms)):
            raise InvalidArgumentError(f"{what}: its buffer is larger than slack explains")
        if self._first is not None and self._first.dtype != port.dtype.numpy:
            raise InvalidInputError(
                f"the initial value of '{self.name}' has dtype {self._first.dtype}, "
                f"expected {port.dtype}"
            )
        self._dtype = port.dtype.numpy

    def of(self, port: SizedPort, *, has_slack: bool) -> Placed:
        """Return the buffer with the state's current value, which the next run may overwrite.

        The value is copied into a new buffer if it is not in a buffer that the run may overwrite.

        Args:
            port: the run's input for this value.
            has_slack: whether the buffer has unused rows at the end. The caller must have added
                these rows by `have_room`.
        """
        if self._now is None or (self._now.room is not None and not has_slack):
            old = self._known()
            self._now = _placed(self._memory(port.bytes, zeros=old is None), port)
            if old is not None:
                self._now.placed.array[...] = old
        return self._now.placed

    def room(self, axis: int) -> int:
        """Return the total number of rows along `axis` for which the buffer has memory.

        The result is 0 if the buffer has no slack capacity along this dimension.
        """
        room = self._now.room if self._now is not None else None
        return room[1] if room is not None and room[0] == axis else 0

    def have_room(self, port: SizedPort, axis: int, extent: int) -> None:
        """Ensure that the current value is in a buffer with memory for `extent` rows along `axis`.

        If it is not, it is copied to a new buffer of this size. `port` is the step's input for the
        value, and has fewer than `extent` rows.
        """
        if self._now is not None and self._now.room == (axis, extent):
            return
        old = self.value()
        stored = (*port.shape[:axis], extent, *port.shape[axis + 1 :])
        memory = self._allocated(prod(stored) * port.dtype.itemsize, zeros=False)
        start = StateBuffer(memory, Placed.at_start(memory, stored, port.dtype), (axis, extent))
        self._now, self._spare = start.with_rows(port.shape), None
        self._now.placed.array[...] = old

    def next(self, port: SizedPort, *, in_place: bool, has_slack: bool) -> Placed:
        """Return the buffer for the state's next value, which a run writes as the output `port`.

        There are three cases:

        - If `has_slack` is true, the run appends rows to the current value. The result is the
          memory of the current value, which has unused rows at its end, with the shape of `port`.
        - Otherwise, if `in_place` is true, the result is the buffer of the current value.
        - Otherwise, the result is the state's second buffer.
        """
        spare = self._spare
        if has_slack:
            assert self._now is not None
            spare = self._now.with_rows(port.shape)
        elif in_place:
            spare = self._now
        elif spare is None or spare.memory.nbytes < port.bytes:
            spare = self._spare = _placed(self._memory(port.bytes), port)
        elif spare.placed.shape != port.shape:
            spare = self._spare = _placed(spare.memory, port)
        assert spare is not None
        self._next = spare
        return spare.placed

    def advance(self) -> None:
        """Replace the current value by the output of the step that has just finished."""
        assert self._now is not None
        assert self._next is not None
        if self._next.memory is not self._now.memory:
            self._spare = self._now
        self._now, self._held = self._next, None

    def _memory(self, size: int, *, zeros: bool = False) -> Bytes:
        return self._allocated(size * GROWTH if self._grows else size, zeros=zeros)

    def _allocated(self, room: int, *, zeros: bool) -> Bytes:
        what = f"for the state '{self.name}'"
        check_memory(room, what)
        with enough_memory_for(what):
            return aligned_zeros(room) if zeros else aligned_empty(room)


def _placed(memory: Bytes, port: SizedPort) -> StateBuffer:
    return StateBuffer(memory, Placed.at_start(memory, port.shape, port.dtype))


class StateMove(NamedTuple):
    """The update of a state by one run of a session.

    Attributes:
        state: the state.
        before, after: the input and the output of the run.
        in_place: whether the output is written to the input's buffer.
        has_slack: whether this buffer has unused rows at the end.
    """

    state: SessionState
    before: SizedPort
    after: SizedPort
    in_place: bool
    has_slack: bool = False

    def among(self, extended: Collection[SessionState]) -> StateMove:
        """Return this update for a run in which only the states `extended` have unused rows.

        Some states can be written in place only if their buffers have unused rows. If this state is
        one of them and is not in `extended`, the returned update is not in place.
        """
        has_room = self.state in extended
        needs_room = self.after.stored is not self.after.shape
        in_place = self.in_place and (has_room or not needs_room)
        return StateMove(self.state, self.before, self.after, in_place, has_room)


class StateRoom(NamedTuple):
    """Growing states whose buffers have equally many unused rows, such as caches of all layers.

    Attributes:
        members: for each state: the state, its input, and the dimension along which it grows.
        rows: the number of rows of each state after the run.
    """

    members: Sequence[tuple[SessionState, SizedPort, int]]
    rows: int

    def made(self) -> int:
        """Ensure that the buffers of all states have memory for their rows after the step.

        If one of them has memory for fewer than `rows` rows, all states are copied to buffers for
        `GROWTH * rows` rows. Returns the number of unused rows after the step.
        """
        extent = min([state.room(axis) for state, _, axis in self.members])
        if extent < self.rows:
            extent = GROWTH * self.rows
        for state, port, axis in self.members:
            state.have_room(port, axis, extent)
        return extent - self.rows

    def left(self, room: int) -> int:
        """Return the number of unused rows after the next step, if it adds as many as this step.

        `room` is the number of unused rows before the next step. The result is 0 if there are fewer
        unused rows than the next step adds.
        """
        _, port, axis = self.members[0]
        return max(room - (self.rows - port.shape[axis]), 0)


class SessionStep(NamedTuple):
    """The plan of one run of a session.

    Attributes:
        executable: the executable that performs the run.
        moves: the update of each state.
        rooms: the groups of states whose buffers have the same number of unused rows.
    """

    executable: Executable
    moves: Sequence[StateMove]
    rooms: Sequence[StateRoom]


def with_rooms(executable: Executable, moves: Sequence[StateMove]) -> SessionStep:
    """Plan a step of a session, and reserve memory for the growth of states if possible.

    A session is a series of runs, and a step is one of these runs. A state, such as a cache, is an
    output that the next run reads as an input. A program may append rows to a state in place, if
    the state's buffer has unused rows at its end (slack capacity). The plan uses such buffers only
    if every output with slack capacity is a state that the step updates in place. Otherwise, all
    states are in buffers without unused rows.

    Args:
        executable: the executable that runs the step.
        moves: the update of each state.
    """
    by_output = {move.state.output: move for move in moves if move.in_place}
    rooms: list[StateRoom] = []
    if by_output.keys() >= {output for room in executable.rooms for output in room}:
        rooms = [_room(executable, room, by_output) for room in executable.rooms]
    extended = {state for room in rooms for state, _, _ in room.members}
    return SessionStep(executable, [move.among(extended) for move in moves], rooms)


def _room(
    executable: Executable, outputs: Sequence[int], moves: Mapping[int, StateMove]
) -> StateRoom:
    members = []
    for output in outputs:
        room, move = executable.program.outputs[output].room, moves[output]
        assert room is not None
        members.append((move.state, move.before, room[0]))
    return StateRoom(members, moves[outputs[0]].after.shape[members[0][2]])


def _fits(shape: tuple[int, ...], dims: Dims) -> bool:
    return len(shape) == len(dims) and all(
        isinstance(dim, str) or is_dynamic(extent) or extent == dim
        for extent, dim in zip(shape, dims, strict=True)
    )


def _bits(array: Array) -> Array:
    """Convert a bfloat16 array to raw bits (uint16); other arrays are returned unchanged."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def _closed(dims: Dims) -> tuple[int, ...]:
    return tuple(dim for dim in dims if isinstance(dim, int))
