"""Evaluation of tensor expressions at the points of a register tile.

A tile point is one index per unrolled axis. The expression tree is the same at every tile point.
The generator therefore converts the tree to a list of steps once, and executes these steps at each
tile point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tilewright.compiler.codegen.cpu import memory
from tilewright.compiler.codegen.cpu.access import Kind, Linear, bind, evaluate
from tilewright.compiler.codegen.cpu.arithmetic import cast
from tilewright.compiler.codegen.cpu.combining import Partial
from tilewright.compiler.codegen.cpu.context import Context, RegisterBudget
from tilewright.compiler.codegen.cpu.operations import apply
from tilewright.compiler.codegen.cpu.points import Point, Points
from tilewright.compiler.codegen.cpu.resolve import Accesses, RegisterAccess, resolve_target
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value, element
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import (
    Accumulator,
    Cast,
    Const,
    Expr,
    IndexValue,
    Load,
    Op,
    Reduce,
    Tee,
    walk,
)
from tilewright.compiler.loops.semantics import items_of
from tilewright.compiler.sizes import is_dynamic

Evaluator = Callable[[Point, Partial], Value]
"""Emits an expression and returns its value. The arguments are a point of the register tile (one
index per unrolled axis) and the values of the accumulator there."""

_Step = Callable[[Point, Partial, list[Value]], Value]
"""Emits one node of an expression and returns its value. The arguments are a tile point (one index
per unrolled axis), the values of the accumulator there, and the values of the nodes emitted
before."""


def evaluator(
    context: Context, budget: RegisterBudget, expr: Expr, accesses: Accesses, points: Points
) -> Evaluator:
    """Return a function that emits an expression at one point of a register tile.

    The function takes the tile point (one index per unrolled axis) and the values of the
    accumulator there, and returns the value of the expression. `points` are all points of the tile.
    """
    numbers: dict[Expr, int] = {}
    steps: list[_Step] = []
    for node in walk(expr):
        steps.append(_step(context, budget, node, numbers, accesses, points))
        numbers[node] = len(numbers)
    if len(steps) == 1 and isinstance(steps[0], memory.Loader):
        return steps[0]

    def run(point: Point, accumulator: Partial) -> Value:
        values: list[Value] = []
        for step in steps:
            values.append(step(point, accumulator, values))
        return values[-1]

    return run


def items_evaluator(
    context: Context, budget: RegisterBudget, expr: Expr, accesses: Accesses, points: Points
) -> Callable[[Point], Partial]:
    """Return a function that emits all items of a tuple expression at one point of a register tile.

    The function takes the tile point (one index per unrolled axis), and returns the values of the
    items. An expression that is not a tuple counts as a tuple of one item.
    """
    items = [evaluator(context, budget, item, accesses, points) for item in items_of(expr)]
    return lambda point: tuple([item(point, ()) for item in items])


def _step(
    context: Context,
    budget: RegisterBudget,
    node: Expr,
    numbers: Mapping[Expr, int],
    accesses: Accesses,
    points: Points,
) -> _Step:
    emitter = context.emitter
    match node:
        case Load(tensor=tensor, indirect=indirect):
            access = accesses[node]
            if isinstance(access, RegisterAccess):
                return partial(_register, context.registers, access, tensor.name)
            load = memory.Loader(context, budget, access, points)
            moved = [numbers[e] for _, e in indirect]
            if moved:
                return lambda point, _, values: load.indirect(point, [values[n] for n in moved])
            return load
        case Const(value=value, type=dtype):
            constant = emitter.const(value, dtype)
            return lambda point, accumulator, values: constant
        case Accumulator(number=number):
            return lambda point, accumulator, values: accumulator[number]
        case IndexValue(index=index, type=dtype):
            form = bind(emitter, context.environment, index)
            return lambda point, accumulator, values: _index_value(
                emitter, form, points, point, dtype
            )
        case Op(operation=operation, args=args):
            operands = [numbers[a] for a in args]
            return lambda point, accumulator, values: apply(
                emitter, operation, *[values[n] for n in operands]
            )
        case Cast(value=inner, type=dtype):
            number = numbers[inner]
            return lambda point, accumulator, values: cast(emitter, values[number], dtype)
        case Tee(value=inner, target=target):
            number = numbers[inner]

            def keep(point: Point, accumulator: Partial, values: list[Value]) -> Value:
                access = resolve_target(context, target, points)
                splat = emitter.splat(values[number], points.lanes)
                memory.store(context, access, splat, point, points.active(point))
                return values[number]

            return keep
        case Reduce():
            raise ScheduleError("a reduction was left inside an expression")
        case _:
            raise TypeError(f"unknown expression {type(node).__name__}")


def _register(
    registers: Mapping[tuple[object, ...], Value],
    access: RegisterAccess,
    name: str,
    point: Point,
    accumulator: Partial,
    values: list[Value],
) -> Value:
    stored = registers.get(access.key(point))
    if stored is None:
        raise ScheduleError(f"register tensor '{name}' is read before it is written")
    return stored


def _index_value(
    emitter: Emitter, form: Linear, points: Points, point: Point, dtype: DType
) -> Value:
    if form.of(Kind.REPEATED):
        raise ScheduleError("the number of a row that is repeated")
    static = points.static(form, point)
    whole = DType.INT64 if dtype.is_float or dtype is DType.BOOL else dtype
    base = cast(emitter, evaluate(emitter, Linear(form.of(Kind.RUNTIME), static)), whole)
    lanes = form.of(Kind.LANE)
    if lanes and points.lanes > 1:
        if any(map(is_dynamic, lanes.values())):
            raise ScheduleError("the lanes of an index differ by a dynamic size")
        name = element(whole)
        steps = ", ".join(
            f"{name} {sum(c * (lane // v.divisor) for v, c in lanes.items())}"
            for lane in range(points.lanes)
        )
        base = emitter.splat(base, points.lanes)
        base = emitter.emit(whole, points.lanes, f"add {base.type} %s, <{steps}>", base)
    return cast(emitter, base, dtype)
