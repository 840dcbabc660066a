from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from tests.examples import examples
from tests.nests.parse import parse_nest
from tests.nests.tokens import NestSyntaxError
from tests.unit.loops import nests
from tilewright.compiler.loops import maths
from tilewright.compiler.loops.expr import Role, Tensor, walk
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import Compute, For, LoopNest, Stage, Store, Tile
from tilewright.compiler.loops.text import print_nest
from tilewright.compiler.sizes import Dimension, dynamic_size

MATMUL = """\
kernel matmul
  axes m = 10, n = 20, k = 5
  buffer A: input float32[10, 5] layout(row)
  buffer B: weight float32[5, 20] layout(1/16 0 1%16)
  buffer bias: weight float32[20] layout(row)
  buffer C: output float32[10, 20] layout(row)
  stage main
    for m in 10 by 4 parallel
      for n in 20 by 16
        compute sum mul(A[m, k], B[k, n]) from bias[n]
          reduce k by 1
          unroll k by 1, m by 1, n by 8
          vector n
          store C[m, n] = max(acc, 0.0)
"""


def test_text_of_a_matrix_product() -> None:
    nest = nests.matmul(10, 20, 5)
    assert print_nest(nest) == MATMUL
    assert parse_nest(MATMUL) == nest


OPEN = """\
kernel matmul
  sizes n 1..512, rows 32..640:32
  axes m = 32*(rows//32)+1, n = 4*n, k = ((n+7)//8)
  buffer A: input float32[32*(rows//32)+1, ((n+7)//8)] layout(row)
  buffer B: weight float32[((n+7)//8), 4*n] layout(1/16 0 1%16)
  buffer bias: weight float32[4*n] layout(row)
  buffer C: output float32[32*(rows//32)+1, 4*n] layout(row)
  stage main
    for m in 32*(rows//32)+1 by 4 parallel
      for n in 4*n by 16
        compute sum mul(A[m, k], B[k, n]) from bias[n]
          reduce k by 1
          unroll k by 1, m by 1, n by 8
          vector n
          store C[m, n] = max(acc, 0.0)
"""


def test_text_with_sizes() -> None:
    rows, n = dynamic_size(Dimension("rows", 1, 20, 32)), dynamic_size(Dimension("n", 1, 512))
    nest = nests.matmul(rows + 1, 4 * n, (n + 7) // 8)
    assert [d.name for d in nest.sizes] == ["n", "rows"]
    assert print_nest(nest) == OPEN
    assert parse_nest(OPEN) == nest


@given(nests.NESTS)
@settings(
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_parsing_reads_back_what_printing_wrote(nest: LoopNest) -> None:
    text = print_nest(nest)
    assert parse_nest(text) == nest
    assert print_nest(parse_nest(text)) == text


@pytest.mark.parametrize("name", maths.__all__)
def test_shared_operands_stay_shared(name: str) -> None:
    function = getattr(maths, name)
    axis = Axis("i", 64)
    x, y = Tensor("x", (64,)), Tensor("y", (64,), role=Role.OUTPUT)
    operands = {"polynomial": (x[axis], (1.0, 2.0)), "select": (maths.less(x[axis], 0.0),) * 3}
    count = {"pow": 2, "maximum": 2, "minimum": 2, "fma": 3}.get(name, 1)
    args = operands.get(name, (x[axis],) * count)
    body = function(*args)
    compute = Compute((Store(y[axis], body),), body, unroll=(Tile(axis, 16),), vector=axis)
    nest = LoopNest(name, (x, y), (), (Stage("main", (For(axis, 16, (compute,)),)),))
    text = print_nest(nest)
    # as a tree, pow has some 10**5 nodes
    assert len(text) < 5000
    read = parse_nest(text)
    assert print_nest(read) == text
    (loop,) = read.stages[0].body
    assert isinstance(loop, For) and isinstance(loop.body[0], Compute)
    assert len(list(walk(loop.body[0].body))) == len(list(walk(body)))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("  axes", "  sizes n 1..30:4\n  axes", "line 2: the range of 'n' is not one of multiples"),
        ("  axes", "  sizes n 9..3\n  axes", "line 2: dimension 'n': no size lies in its range"),
        ("  axes m = 10", "  sizes n 1..9\n  axes m = h", "line 3: 'h' is not a size"),
        ("  axes m = 10", "  sizes n 1..9\n  axes m = (n", "line 3: the line ends too early"),
        ("kernel matmul", "kernal matmul", "line 1: expected 'kernel'"),
        ("B[k, n]", "D[k, n]", "line 10: no tensor 'D'"),
        ("A[m, k]", "A[q, k]", "line 10: no axis 'q'"),
        ("mul(", "multiply(", "line 10: no operation 'multiply'"),
        ("compute sum", "compute average", "'average' is not one of Combiner"),
        ("in 20 by", "in 21 by", "line 9: the extent of 'n' is declared as 20"),
        ("float32[10, 5]", "float23[10, 5]", "line 3: 'float23' is not one of DType"),
        ("vector n", "vectors n", "line 13: 'vectors' is no clause"),
        ("acc, 0.0)", "acc, 0.0", "line 14: expected ','"),
        ("acc, 0.0)", "acc, %7)", "line 14: no let '%7'"),
        ("layout(1/16", "layout(x/16", "line 4: 'x/16 0 1%16' is not a layout"),
        ("by 4 parallel", "by 4 sideways", "line 8: unexpected 'sideways'"),
        ("store C[m, n]", "store 1.0", "line 14: a store writes to an element"),
        ("reduce k by 1", "reduce k by 1.5", "line 11: '1.5' is not an integer"),
        ("compute sum", "compute", "line 10"),
        ("= max(acc", "= $max(acc", "line 14: unexpected '$max"),
    ],
)
def test_errors_name_the_line(old: str, new: str, complaint: str) -> None:
    assert MATMUL.count(old) == 1
    with pytest.raises(NestSyntaxError) as caught:
        parse_nest(MATMUL.replace(old, new))
    assert complaint in str(caught.value)


def test_empty_text() -> None:
    with pytest.raises(NestSyntaxError, match="ends where 'kernel' is expected"):
        parse_nest("\n\n")
