"""DynamicQuantizeLSTM of com.microsoft: an LSTM with 8-bit integer matrix products.

ONNX Runtime's quantiser emits this operator. The inputs of all steps are quantised with one common
scale. The state is quantised at each step, with a scale for each row of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.contrib.microsoft.products import (
    MOST_BYTE,
    dynamically_quantised,
    integer_product,
)
from tilewright.compiler.ops.contrib.microsoft.quantised import DOMAIN, require_int8
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.recurrent import Weights, lstm, row_of
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show

GATES = 4


def _product(node: OnnxNode, value: str, matrix: Sequence[str]) -> str:
    """Emit the product of a float32 value, quantised at run time, and an 8-bit matrix.

    `matrix` names the 8-bit elements, their scale and their zero point. The value's scale follows
    from its smallest and largest element. The result is float32.
    """
    bytes_, scale, zero = matrix
    quantised, own, centre = dynamically_quantised(node, value)
    factor = node.call("Mul", own, scale)
    return integer_product(node, quantised, bytes_, (centre, zero), factor)


def _state_product(node: OnnxNode, value: str, matrix: Sequence[str]) -> str:
    """Emit the product of a float32 value, quantised at run time, and an 8-bit matrix.

    Each row of `value` has its own scale and zero point. `matrix` names the 8-bit elements, their
    scale and their zero point. The result is float32.
    """
    bytes_, scale, zero = matrix
    none = node.scalar(0.0, DType.FLOAT32)
    low = node.emit("min", [node.emit("reduce_min", [value], axes=(1,), keepdims=1), none])
    high = node.emit("max", [node.emit("reduce_max", [value], axes=(1,), keepdims=1), none])
    width = node.emit("sub", [high, low])
    step = node.emit("div", [width, node.scalar(MOST_BYTE, DType.FLOAT32)])
    same = node.emit("equal", [width, none])
    own = node.emit("where", [same, node.scalar(1.0, DType.FLOAT32), step])
    centre = node.emit("round", [node.emit("div", [node.emit("neg", [low]), own])])
    places = node.emit("round", [node.emit("div", [value, own])])
    whole = node.emit("add", [places, centre])
    clipped = node.emit("clip", [whole], min=0.0, max=MOST_BYTE)
    product = node.call("MatMulInteger", cast_to(node, clipped, DType.UINT8), bytes_, None, zero)
    # the correction of each row: its zero point times the sums of the columns
    numbers = cast_to(node, bytes_, DType.INT32)
    numbers = node.emit("sub", [numbers, cast_to(node, zero, DType.INT32)])
    sums = node.emit("reduce_sum", [numbers], axes=(0,), keepdims=1)
    much = node.emit("mul", [cast_to(node, centre, DType.INT32), sums])
    exact = cast_to(node, node.emit("sub", [product, much]), DType.FLOAT32)
    return node.emit("mul", [exact, node.emit("mul", [own, scale])])


def _held(node: OnnxNode, position: int, parameters: tuple[int, int]) -> list[list[str]]:
    """Return the elements, scale and zero point of an 8-bit weight, for each direction of the LSTM.

    The weight (directions, rows, columns) is the input at `position`. `parameters` are the
    positions of its scale and zero point, each with one number per direction or per column.
    """
    bytes_ = require_int8(node, position)
    shape = node.shape(bytes_)
    if len(shape) != 3:
        raise node.invalid(
            f"weights (input {position}) are {show(shape)}, expected three dimensions"
        )
    directions, _, rows = shape
    made = [[row_of(node, bytes_, number)] for number in range(directions)]
    for each in parameters:
        value = node.input(each)
        if node.shape(value) not in ((directions,), (directions, 1), (directions, rows)):
            raise node.invalid(
                f"input {each} is {show(node.shape(value))}, expected one number per direction or "
                f"per column of the weights {show(shape)} (input {position})"
            )
        for number, found in enumerate(made):
            row = row_of(node, value, number)
            found.append(node.reshape(row, ()) if node.type(row).elements == 1 else row)
    return made


def _onnx_lstm(node: OnnxNode) -> list[str]:
    """Import DynamicQuantizeLSTM; the outputs are those of ONNX's LSTM.

    W (directions, width, gates * hidden) and R (directions, hidden, gates * hidden) are 8-bit. The
    inputs after those of LSTM are the scale and zero point of W, then of R.
    """
    inputs, states = _held(node, 1, (8, 9)), _held(node, 2, (10, 11))
    width, rows = node.shape(inputs[0][0])
    recurrent = node.shape(node.input(2))
    if recurrent != (len(inputs), rows // GATES, rows) or rows % GATES:
        raise node.invalid(
            f"R (input 2) is {show(recurrent)}, expected (directions, hidden, {GATES} * hidden) "
            f"with the directions and columns of W (input 1), {show(node.shape(node.input(1)))}"
        )
    return lstm(node, Weights(width, rows, _product, _state_product, inputs, states))


RULES = (OnnxRule("DynamicQuantizeLSTM", _onnx_lstm, DOMAIN, types=(DType.FLOAT32,)),)
