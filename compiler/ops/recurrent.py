"""Recurrent layers: RNN, GRU and LSTM.

The product of all inputs with W is computed before the first step. A step multiplies the state with
R and applies the gates; all steps use the same kernels. A few steps are unrolled; many become a
loop. Once a sequence that is shorter than others has ended, its state does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import unknown_choice
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.enclosed import Enclosure
from tilewright.compiler.ops.loops import looped
from tilewright.compiler.ops.moves import flip, part, transposed
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.products import HALVES
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import equal, is_dynamic, same_extents

SPELLED_STEPS = 64
"""Maximum number of steps that are unrolled. More steps become a loop, which is about 3% slower (a
gather and a copy of rows per step), and compiles in the time of one step. For 16-bit floats, the
maximum is one step: values between unrolled steps would be stored in 16 bits
(`passes.mixed_precision`)."""

_Activation = Callable[[str], str]

MatrixProduct = Callable[[OnnxNode, str, Sequence[str]], str]
"""Emits the product of a matrix of floats and a second matrix, which the given values represent,
and returns its name."""

_PARAMETERS = {
    "Affine": {"alpha": 0.0, "beta": 0.0},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "ScaledTanh": {"alpha": 0.0, "beta": 0.0},
    "ThresholdedRelu": {"alpha": 1.0},
}
_PLAIN = ("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")
_OWN = ("Affine", "ScaledTanh")
"""Activations that are not ONNX operators. ONNX does not define defaults of their parameters; the
defaults of ONNX Runtime are 0."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """One step of one direction of a recurrent layer.

    Attributes:
        node: the imported node, through which nodes are added.
        hidden: the number of elements of the hidden state.
        given: (batch, gates * hidden): this step's input times W, plus biases.
        product: multiplies the state by `recurrence`.
        recurrence: the values that represent R transposed, (hidden, gates * hidden).
        state: the hidden state before the step.
        factor: the hidden state, converted to the type of the weights.
        recurrence_bias: (gates * hidden,); None if `given` includes it.
        peepholes: (3 * hidden,), the weights with which gates i, o and f read an LSTM's cell; None
            if the node has no peepholes.
        activations: the activation functions, in ONNX's order.
        active: (batch, 1): whether the sequence has not ended at this step; None if no sequence
            ends early.
    """

    node: OnnxNode
    hidden: int
    given: str
    product: MatrixProduct
    recurrence: Sequence[str]
    state: str
    factor: str
    recurrence_bias: str | None
    peepholes: str | None
    activations: Sequence[_Activation]
    active: str | None

    def gate(self, value: str, number: int) -> str:
        """Emit the columns of a value (..., gates * hidden) that belong to gate `number`."""
        dim = len(self.node.shape(value)) - 1
        return part(self.node, value, dim, number * self.hidden, self.hidden)

    def recurrent(self, state: str) -> str:
        """Emit the product of a state and the recurrence weights R."""
        return self._times(state, self.recurrence)

    def gate_recurrent(self, state: str, number: int) -> str:
        """Emit the state times the columns of R for gate `number`, plus their bias.

        R must be a single value, not quantised.
        """
        (recurrence,) = self.recurrence
        product = self._times(state, [self.gate(recurrence, number)])
        if self.recurrence_bias is None:
            return product
        return self.node.emit("add", [product, self.gate(self.recurrence_bias, number)])

    def _times(self, state: str, matrix: Sequence[str]) -> str:
        """Emit the product of a state and a matrix, in the type of the state.

        The state is converted to the type of the weights for the multiplication.
        """
        node, factor = self.node, self.factor
        if state != self.state:
            factor = cast_to(node, state, node.type(factor).dtype)
        return cast_to(node, self.product(node, factor, matrix), node.type(state).dtype)

    def clipped(self, value: str) -> str:
        limit = self.node.attrs.get("clip")
        if not isinstance(limit, float | int) or not limit:
            return value
        return self.node.emit("clip", [value], min=-float(limit), max=float(limit))

    def kept(self, new: str, old: str) -> str:
        """Emit the new state for sequences that have not ended, and the old state for others."""
        active = self.active
        return new if active is None else self.node.emit("where", [active, new, old])


_Step = Callable[[_Layer, tuple[str, ...]], tuple[str, ...]]
"""Emits one step of a layer. Maps the states before the step to the states after it; the hidden
state is the first."""


def _rnn_step(layer: _Layer, states: tuple[str, ...]) -> tuple[str, ...]:
    """Emit a step of an RNN; returns the new state f(x W + h R + b).

    h is the state before the step, and f the activation.
    """
    node, (h,) = layer.node, states
    total = node.emit("add", [layer.given, layer.recurrent(h)])
    return (layer.activations[0](layer.clipped(total)),)


def _gru_step(layer: _Layer, states: tuple[str, ...]) -> tuple[str, ...]:
    """Emit a step of a GRU; returns the new state (1 - z) h~ + z h.

    h is the state before the step; z and r are the update and reset gates. The candidate h~ is g(x
    Wh + (r * h) Rh), where g is the second activation. With `linear_before_reset`, it is g(x Wh + r
    * (h Rh)).
    """
    node, (h,) = layer.node, states
    f, g = layer.activations
    given, recurrent = layer.given, layer.gate_recurrent
    gates = [
        f(layer.clipped(node.emit("add", [layer.gate(given, i), recurrent(h, i)]))) for i in (0, 1)
    ]
    update, reset = gates
    if node.integer("linear_before_reset", 0):
        memory = node.emit("mul", [reset, recurrent(h, 2)])
    else:
        memory = recurrent(node.emit("mul", [reset, h]), 2)
    candidate = g(layer.clipped(node.emit("add", [layer.gate(given, 2), memory])))
    change = node.emit("mul", [update, node.emit("sub", [h, candidate])])
    return (node.emit("add", [candidate, change]),)


def _lstm_step(layer: _Layer, states: tuple[str, ...]) -> tuple[str, ...]:
    """Emit a step of an LSTM; returns the new hidden state o * a(C) and the new cell C.

    The new cell is f times the old cell, plus i * c. i, o and f are the input, output and forget
    gates, c is the candidate, and a is the third activation.
    """
    node, (h, cell) = layer.node, states
    peepholes = layer.peepholes
    f, g, last = layer.activations
    total = node.emit("add", [layer.given, layer.recurrent(h)])

    def gate(number: int, state: str, activation: _Activation) -> str:
        value = layer.gate(total, number)
        if peepholes is not None and number < 3:
            look = node.emit("mul", [layer.gate(peepholes, number), state])
            value = node.emit("add", [value, look])
        return activation(layer.clipped(value))

    entry = gate(0, cell, f)
    if node.integer("input_forget", 0):
        forget = node.emit("sub", [node.scalar(1, node.type(cell).dtype), entry])
    else:
        forget = gate(2, cell, f)
    added = node.emit("mul", [entry, gate(3, cell, g)])
    new = node.emit("add", [node.emit("mul", [forget, cell]), added])
    return node.emit("mul", [gate(1, new, f), last(new)]), new


def _activations(
    node: OnnxNode, names: tuple[str, ...], directions: int, direction: int = 0
) -> list[_Activation]:
    """Return the activation functions of one direction, from the node's attributes.

    `names` are the default activations of a direction.

    Raises:
        InvalidModelError: if the number of names does not fit the directions.
        UnsupportedOperatorError: if a name is unknown.
    """
    given = node.attrs.get("activations")
    chosen = names * directions
    if isinstance(given, tuple) and given:
        spelled = {name.lower(): name for name in (*_PLAIN, *_PARAMETERS)}
        chosen = tuple(spelled.get(str(name).lower(), str(name)) for name in given)
    if len(chosen) != len(names) * directions:
        raise node.invalid(
            f"attribute 'activations' has {len(chosen)} names, expected {len(names)} for each of "
            f"{directions} directions"
        )
    numbers = {key: node.numbers(f"activation_{key}") for key in ("alpha", "beta")}
    made = []
    for name in chosen:
        parameters = dict(_PARAMETERS.get(name, {}))
        for key in parameters:
            if numbers[key]:
                parameters[key] = numbers[key].pop(0)
        if name not in _PLAIN and name not in _PARAMETERS:
            raise node.unsupported(
                unknown_choice("an activation", name, sorted((*_PLAIN, *_PARAMETERS)))
            )
        made.append(_activation(node, name, parameters))
    return made[direction * len(names) : (direction + 1) * len(names)]


def _activation(node: OnnxNode, name: str, parameters: dict[str, float]) -> _Activation:
    if name not in _OWN:
        return lambda value: node.call(name, value, **parameters)

    def linear(value: str) -> str:
        """Emit alpha * tanh(beta * x) for ScaledTanh, or alpha * x + beta for Affine."""
        alpha, beta = (
            node.scalar(parameters[key], node.type(value).dtype) for key in ("alpha", "beta")
        )
        if name == "Affine":
            return node.emit("add", [node.emit("mul", [value, alpha]), beta])
        return node.emit("mul", [node.emit("tanh", [node.emit("mul", [value, beta])]), alpha])

    return linear


@dataclass(frozen=True, slots=True)
class Weights:
    """The weight matrices W and R of a recurrent layer, and functions that multiply by them.

    A matrix is one value of the graph, or several if it is quantised (elements, scale, zero point).

    Attributes:
        width: number of elements of an input.
        rows: number of gates times the hidden size.
        of_inputs: emits the product of a matrix of inputs with an element of `inputs`.
        of_states: emits the product of a state with an element of `states`.
        inputs: for each direction, the values of the transposed W, (width, rows).
        states: for each direction, the values of the transposed R, (hidden, rows).
    """

    width: int
    rows: int
    of_inputs: MatrixProduct
    of_states: MatrixProduct
    inputs: Sequence[Sequence[str]]
    states: Sequence[Sequence[str]]


def _plain_product(node: OnnxNode, value: str, matrix: Sequence[str]) -> str:
    return node.emit("matmul", [value, *matrix])


def _plain_weights(node: OnnxNode, gates: int) -> Weights:
    w, r = node.input(1), node.input(2)
    if len(node.shape(w)) != 3 or len(node.shape(r)) != 3:
        raise node.invalid(
            f"W (input 1) is {show(node.shape(w))} and R (input 2) {show(node.shape(r))}, expected "
            "three dimensions each"
        )
    directions, rows, width = node.shape(w)
    if rows % gates or not same_extents(node.shape(r), (directions, rows, rows // gates)):
        raise node.invalid(
            f"R (input 2) is {show(node.shape(r))}, expected (directions, {gates} * hidden, "
            f"hidden) with the directions and rows of W (input 1), {show(node.shape(w))}"
        )
    inputs, states = (
        [[transposed(node, row_of(node, value, k), (1, 0))] for k in range(directions)]
        for value in (w, r)
    )
    return Weights(width, rows, _plain_product, _plain_product, inputs, states)


def _recurrent(
    node: OnnxNode, gates: int, names: tuple[str, ...], step: _Step, weights: Weights | None = None
) -> list[str]:
    """Import a recurrent layer; returns Y, Y_h and, for an LSTM, Y_c.

    Args:
        node: the ONNX node.
        gates: number of gates.
        names: default activations.
        step: emits one step.
        weights: replaces the node's inputs 1 and 2 (W and R).
    """
    x, bias = node.input(0), node.optional(3)
    swapped = node.integer("layout", 0) == 1
    if len(node.shape(x)) != 3:
        raise node.invalid(f"X (input 0) is {show(node.shape(x))}, expected three dimensions")
    if swapped:
        x = transposed(node, x, (1, 0, 2))
    length, batch, width = node.shape(x)
    weights = _plain_weights(node, gates) if weights is None else weights
    directions, rows = len(weights.inputs), weights.rows
    hidden = rows // gates
    direction = node.word("direction", "forward")
    known = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    if direction not in known:
        raise node.unknown("direction", direction, known)
    if len(known[direction]) != directions:
        raise node.invalid(
            f"attribute 'direction' is '{direction}', and the weights have {directions} directions"
        )
    if not equal(weights.width, width):
        raise node.invalid(
            f"X (input 0) is {show(node.shape(x))}, and W (input 1) has weights for "
            f"{weights.width} features"
        )
    _activations(node, names, directions)  # raises before anything is emitted
    ends = _ends(node, length, batch)
    dtype = node.type(x).dtype

    def wide(value: str) -> str:
        """Cast a 16-bit float to float32, in which steps compute.

        Results are rounded once, at the end, because rounding the state would accumulate errors.
        """
        return cast_to(node, value, DType.FLOAT32) if dtype in HALVES else value

    count = 2 if step is _lstm_step else 1
    wholes: list[str] = []
    finals: list[Sequence[str]] = []
    for number, backward in enumerate(known[direction]):
        flat = node.reshape(x, (length * batch, width))
        projected = wide(weights.of_inputs(node, flat, weights.inputs[number]))
        recurrence_bias = None
        if bias is not None:
            both = wide(row_of(node, bias, number))
            given, recurrent = (part(node, both, 0, i * rows, rows) for i in range(2))
            if step is _gru_step:  # a gate multiplies only the recurrent bias
                recurrence_bias = recurrent
            else:
                given = node.emit("add", [given, recurrent])
            projected = node.emit("add", [projected, given])
        peepholes = node.optional(7) if step is _lstm_step else None
        sequence = _Sequence(
            node,
            node.reshape(projected, (length, batch, rows)),
            ends,
            backward,
            weights.of_states,
            weights.states[number],
            dtype,
            (recurrence_bias, peepholes and wide(row_of(node, peepholes, number))),
            partial(_activations, names=names, directions=directions, direction=number),
            step,
        )
        states = [wide(_initial(node, 5 + i, number, batch, hidden, swapped)) for i in range(count)]
        most = 1 if dtype in HALVES else SPELLED_STEPS
        few = not is_dynamic(length) and length <= most
        run = sequence.spelled if few else sequence.looped
        whole, last = run(states)
        wholes.append(whole)
        finals.append(last)
    return [cast_to(node, v, dtype) for v in _results(node, wholes, finals, swapped)]


@dataclass(frozen=True, slots=True)
class _Sequence:
    """All steps of one direction of a recurrent layer.

    Attributes:
        node: the imported node.
        steps: (length, batch, gates * hidden): the input of each step times W, plus biases.
        ends: (batch, 1), the length of each sequence; None if all have full length.
        backward: whether the steps run from the last input to the first.
        product: multiplies the hidden state by `recurrence`.
        recurrence: the values that represent R transposed, (hidden, gates * hidden).
        factors: the element type of the weights, to which the hidden state is converted before it
            is multiplied.
        parameters: the bias of the recurrence, None if `steps` includes it; then the peephole
            weights of an LSTM, None without peepholes.
        activations: returns the activation functions, which add their nodes through the given node.
            In a loop, this is a node of the loop's body.
        step: emits one step.
    """

    node: OnnxNode
    steps: str
    ends: str | None
    backward: bool
    product: MatrixProduct
    recurrence: Sequence[str]
    factors: DType
    parameters: tuple[str | None, str | None]
    activations: Callable[[OnnxNode], Sequence[_Activation]]
    step: _Step

    @property
    def length(self) -> int:
        return self.node.shape(self.steps)[0]

    def spelled(self, states: Sequence[str]) -> tuple[str, Sequence[str]]:
        """Emit all steps, unrolled; return the outputs and the states after the last step.

        The outputs are one value (length, batch, hidden).
        """
        if self.length == 0:
            return _nothing(self.node, self.steps, states[0]), states
        outputs = [""] * self.length
        for t in reversed(range(self.length)) if self.backward else range(self.length):
            row = part(self.node, self.steps, 0, t, 1)
            given = self.node.reshape(row, self.node.shape(row)[1:])
            place = self.node.constant(np.array(t, np.int64))
            factor = cast_to(self.node, states[0], self.factors)
            outputs[t], *states = self._one(self.node, given, place, states, factor, _here)
        return _stacked(self.node, outputs), states

    def looped(self, states: Sequence[str]) -> tuple[str, Sequence[str]]:
        """Emit a run-time loop over the steps; return the outputs and the last states.

        The outputs are one value (length, batch, hidden). With 16-bit weights, the loop also passes
        the hidden state converted to 16 bits from one step to the next.
        """
        apart = self.factors is not self.node.type(states[0]).dtype

        def body(enclosure: Enclosure, number: str, now: Sequence[str]) -> Sequence[str]:
            inner = enclosure.node
            place = number
            if self.backward:
                last = inner.scalar(self.length - 1, DType.INT64)
                place = inner.emit("sub", [last, number])
            given = inner.emit("gather", [enclosure.capture(self.steps), place], axis=0)
            *before, factor = now if apart else (*now, now[0])
            output, *new = self._one(inner, given, place, before, factor, enclosure.capture)
            factors = [cast_to(inner, new[0], self.factors)] if apart else []
            return [inner.constant(np.array(True)), *new, *factors, output]

        begin = self.node.constant(np.array(True))
        first = [*states, cast_to(self.node, states[0], self.factors)] if apart else states
        found = looped(self.node, self.length, begin, first, body)
        (whole,) = found.rows
        last = found.states[: len(states)]
        return flip(self.node, whole, [0]) if self.backward else whole, last

    def _one(
        self,
        node: OnnxNode,
        given: str,
        place: str,
        states: Sequence[str],
        factor: str,
        outside: Callable[[str], str],
    ) -> list[str]:
        """Emit one step; return its output, followed by the new states.

        Args:
            node: the node through which nodes are added, perhaps to the body of a loop.
            given: (batch, gates * hidden): the input of this step times W, plus biases.
            place: the index of the step.
            states: the states before the step.
            factor: the first state, converted to the type of the weights.
            outside: makes a value of the enclosing graph available to `node`.
        """
        active = None
        if self.ends is not None:
            active = node.emit("less", [place, outside(self.ends)])
        recurrence = [outside(v) for v in self.recurrence]
        bias, peepholes = (v if v is None else outside(v) for v in self.parameters)
        hidden = node.shape(states[0])[1]
        activations = self.activations(node)
        layer = _Layer(
            node,
            hidden,
            given,
            self.product,
            recurrence,
            states[0],
            factor,
            bias,
            peepholes,
            activations,
            active,
        )
        new = self.step(layer, tuple(states))
        nothing = node.scalar(0, node.type(given).dtype)
        kept = [layer.kept(n, o) for n, o in zip(new, states, strict=True)]
        return [layer.kept(new[0], nothing), *kept]


def _here(value: str) -> str:
    return value


def row_of(node: OnnxNode, value: str, number: int) -> str:
    """Emit `value[number]`, the parameters of direction `number`."""
    return node.reshape(part(node, value, 0, number, 1), node.shape(value)[1:])


def _initial(
    node: OnnxNode, position: int, number: int, batch: int, hidden: int, swapped: bool
) -> str:
    value = node.optional(position)
    if value is None:
        dtype = node.type(node.input(0)).dtype
        return node.emit("expand", [node.scalar(0, dtype)], shape=(batch, hidden))
    if swapped:
        value = transposed(node, value, (1, 0, 2))
    return row_of(node, value, number)


def _ends(node: OnnxNode, length: int, batch: int) -> str | None:
    """Return the length of each sequence, (batch, 1), or None if all have full length."""
    lengths = node.optional(4)
    if lengths is None:
        return None
    known = node.builder.known(lengths)
    if known is not None and (known == length).all():
        return None
    return node.reshape(cast_to(node, lengths, DType.INT64), (batch, 1))


def _nothing(node: OnnxNode, steps: str, state: str) -> str:
    """Emit the outputs of a sequence of length 0: an empty tensor (0, batch, hidden)."""
    zero = node.scalar(0, node.type(steps).dtype)
    return node.emit("expand", [zero], shape=(0, *node.shape(state)))


def _stacked(node: OnnxNode, values: Sequence[str]) -> str:
    """Emit the values stacked along a new first dimension."""
    rows = [node.reshape(value, (1, *node.shape(value))) for value in values]
    return rows[0] if len(rows) == 1 else node.emit("concat", rows, axis=0)


def _results(
    node: OnnxNode, wholes: Sequence[str], finals: Sequence[Sequence[str]], swapped: bool
) -> list[str]:
    """Combine the outputs and final states of all directions to the node's outputs.

    The first is Y (length, directions, batch, hidden); the others are final states (directions,
    batch, hidden). If `swapped`, the batch is the first dimension instead.
    """
    y = transposed(node, _stacked(node, wholes), (2, 1, 0, 3) if swapped else (1, 0, 2, 3))
    last = [_stacked(node, values) for values in zip(*finals, strict=True)]
    if swapped:
        last = [transposed(node, value, (1, 0, 2)) for value in last]
    return [y, *last]


def _onnx_rnn(node: OnnxNode) -> list[str]:
    return _recurrent(node, 1, ("Tanh",), _rnn_step)


def _onnx_gru(node: OnnxNode) -> list[str]:
    return _recurrent(node, 3, ("Sigmoid", "Tanh"), _gru_step)


def _onnx_lstm(node: OnnxNode) -> list[str]:
    return lstm(node)


def lstm(node: OnnxNode, weights: Weights | None = None) -> list[str]:
    """Import an LSTM; return its outputs Y, Y_h and Y_c.

    `weights` replaces the node's inputs 1 and 2 (W and R).
    """
    return _recurrent(node, 4, ("Sigmoid", "Tanh", "Tanh"), _lstm_step, weights)


RULES = (
    OnnxRule("RNN", _onnx_rnn),
    OnnxRule("GRU", _onnx_gru),
    OnnxRule("LSTM", _onnx_lstm),
)
