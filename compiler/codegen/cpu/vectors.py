"""Loads of scalars and vectors, and the masks of vectors that have fewer lanes in use."""

from __future__ import annotations

from math import gcd

from tilewright.compiler.codegen.cpu.arithmetic import cast
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value, element, suffix, type_text
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.sizes import is_open


def lane_mask(emitter: Emitter, lanes: int, active: int) -> Value:
    """A mask with the first `active` lanes set; a constant unless they are a size."""
    if is_open(active):
        numbers = ", ".join(f"i32 {lane}" for lane in range(lanes))
        count = emitter.splat(cast(emitter, emitter.size(active), DType.INT32), lanes)
        text = f"icmp sgt {count.type} %s, <{numbers}>"
        return emitter.emit(DType.BOOL, lanes, text, count)
    bits = ", ".join(f"i1 {'true' if i < active else 'false'}" for i in range(lanes))
    return Value(f"<{bits}>", DType.BOOL, lanes)


def scalar_load(
    emitter: Emitter, where: Value, dtype: DType, depth: int, tag: str, align: int
) -> Value:
    text = f"load {element(dtype)}, ptr %s, align {align}{tag}"
    return emitter.emit(dtype, 1, text, where, depth=depth)


def vector_load(
    emitter: Emitter,
    where: Value,
    dtype: DType,
    lanes: int,
    active: int,
    align: int,
    depth: int,
    tag: str,
) -> Value:
    vector = type_text(dtype, lanes)
    align = gcd(align, lanes * dtype.bytes)
    if active == lanes:
        text = f"load {vector}, ptr %s, align {align}{tag}"
        return emitter.emit(dtype, lanes, text, where, depth=depth)
    check_mask(emitter, dtype, active)
    name = f"llvm.masked.load.{suffix(dtype, lanes)}.p0"
    emitter.declarations.add(f"declare {vector} @{name}(ptr, i32, <{lanes} x i1>, {vector})")
    text = (
        f"call {vector} @{name}(ptr %s, i32 {min(align, dtype.bytes)}, <{lanes} x i1> %s,"
        f" {vector} zeroinitializer){tag}"
    )
    mask = lane_mask(emitter, lanes, active)
    return emitter.emit(dtype, lanes, text, where, mask, depth=depth)


def check_mask(emitter: Emitter, dtype: DType, active: int) -> None:
    if is_open(active) and not emitter.target.masks(dtype):
        raise ScheduleError(f"target '{emitter.target.name}' does not mask {dtype} at run time")
