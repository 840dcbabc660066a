"""Tensor expressions: formulas for one element of a result over elements of the operands.

An expression is a tree with loads, constants and indices as leaves. Trees are immutable and may
share subtrees; lowering computes equal subtrees once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.index import Affine, AffineLike, Axis, affine
from tilewright.compiler.loops.layout import ROW_MAJOR, Layout, physical_extents, strides
from tilewright.compiler.sizes import at, is_dynamic, replaced


class Space(StrEnum):
    """The kind of memory that holds a tensor.

    MEMORY is a buffer or scratch memory, REGISTER the registers of a kernel, and CONSTANT a table
    of values in the machine code.
    """

    MEMORY = "memory"
    REGISTER = "register"
    CONSTANT = "constant"


class Role(StrEnum):
    """The role of a tensor in the kernel: which argument it is, and whether it may be written."""

    INPUT = "input"
    WEIGHT = "weight"
    OUTPUT = "output"
    SCRATCH = "scratch"
    SHARED = "shared"
    """A scratch buffer that all threads of a kernel share, such as packed operands. It is an
    additional argument of the kernel."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a kernel: logical shape, element type, and placement in memory (layout and halo).

    `halo` has the number of border elements before and after each dimension, which hold zeros.
    `values` holds the elements of a CONSTANT tensor, row-major.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType = DType.FLOAT32
    layout: Layout = ROW_MAJOR
    halo: tuple[tuple[int, int], ...] = ()
    space: Space = Space.MEMORY
    role: Role = Role.INPUT
    values: tuple[float, ...] = ()

    def __getitem__(self, index: AffineLike | tuple[AffineLike, ...]) -> Load:
        indices = index if isinstance(index, tuple) else (index,)
        return Load(self, tuple(affine(i) for i in indices))

    @property
    def bytes(self) -> int:
        """Size in bytes in memory.

        This includes the halo (border elements), padding and the unused part of partial blocks.
        """
        return strides(self.shape, self.layout, self.halo)[1] * self.dtype.bytes

    @property
    def byte_strides(self) -> tuple[int, ...]:
        """Stride of each physical axis of the layout (`Factor`) in bytes, outermost first."""
        return tuple(s * self.dtype.bytes for s in strides(self.shape, self.layout, self.halo)[0])

    @property
    def physical_shape(self) -> tuple[int, ...]:
        return physical_extents(self.shape, self.layout, self.halo)

    def at(self, values: Mapping[str, int]) -> Tensor:
        """Return the tensor with its dynamic sizes replaced by numbers.

        `values` has the size of each dynamic dimension by name.
        """
        return replaced(self, lambda size: at(size, values))

    def halo_of(self, dim: int) -> tuple[int, int]:
        return self.halo[dim] if self.halo else (0, 0)


class Operation(StrEnum):
    """Elementwise operations that code generation emits directly, for scalars and for vectors."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    """IEEE division for floats; division that truncates toward zero for integers, as in C."""
    REM = "rem"
    """fmod for floats; the remainder with the sign of the dividend for integers, as in C."""
    MAX = "max"
    MIN = "min"
    FMA = "fma"
    DOT = "dot"
    """Dot product of 8-bit integers, packed four to an int32. The first operand holds uint8, the
    second int8. The sum of the four products is added to the third operand."""
    NEG = "neg"
    ABS = "abs"
    SQRT = "sqrt"
    FLOOR = "floor"
    CEIL = "ceil"
    RINT = "rint"
    """Rounding to the nearest integer; ties to even."""
    SCALE = "scale"
    """`x * 2**n` for a float n with an integral value; used as the last step of exp."""
    EXPONENT = "exponent"
    """The unbiased exponent of a positive normal float, as a float."""
    MANTISSA = "mantissa"
    """The significand of a positive normal float, in [1, 2)."""
    LT = "lt"
    LE = "le"
    EQ = "eq"
    NE = "ne"
    AND = "and"
    OR = "or"
    XOR = "xor"
    NOT = "not"
    SELECT = "select"

    __hash__ = str.__hash__  # like DType's


class Combiner(StrEnum):
    """The operation by which a reduction combines two values."""

    SUM = "sum"
    PRODUCT = "product"
    MAX = "max"
    MIN = "min"


class Expr:
    """Base class of expression nodes.

    Python's arithmetic operators on expressions build `Op` nodes; Python numbers become `Const`
    nodes.
    """

    __slots__ = ()

    @property
    def dtype(self) -> DType:
        raise NotImplementedError

    def __add__(self, other: Expr | float) -> Expr:
        return op(Operation.ADD, self, other)

    def __sub__(self, other: Expr | float) -> Expr:
        return op(Operation.SUB, self, other)

    def __rsub__(self, other: Expr | float) -> Expr:
        return op(Operation.SUB, constant(other, self.dtype), self)

    def __mul__(self, other: Expr | float) -> Expr:
        return op(Operation.MUL, self, other)

    def __truediv__(self, other: Expr | float) -> Expr:
        return op(Operation.DIV, self, other)

    def __rtruediv__(self, other: Expr | float) -> Expr:
        return op(Operation.DIV, other, self)

    def __neg__(self) -> Expr:
        return op(Operation.NEG, self)


@dataclass(frozen=True, slots=True, eq=False)
class Composite(Expr):
    """Base class of nodes with operands, which caches their hashes.

    Nodes may share operands: in `y = x * x; z = y * y`, there are four paths from z to x, and each
    further square doubles them. The equality that `dataclass` generates would follow every path.
    Equality of this class compares each pair of nodes once.
    """

    _hash: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self._own(), _operands(self))))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Composite):
            return NotImplemented
        if self._hash != other._hash:
            return False
        return _equal(self, other)

    def _own(self) -> Hashable:
        """The fields of a node that are not operands.

        Two nodes of one class are equal if these fields and their operands are equal.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class Load(Composite):
    """The value of one element of a tensor.

    Each pair in `indirect` is a dimension and an integer expression, whose value at run time is
    added to the index along this dimension (gather). The sum must be in bounds: the operator that
    creates the load clamps it.
    """

    tensor: Tensor
    index: tuple[Affine, ...]
    indirect: tuple[tuple[int, Expr], ...] = ()

    def __post_init__(self) -> None:
        # The layout distinguishes panels of several widths without a comparison of expressions; a
        # constant tensor's values are too many to hash.
        key = (self.tensor.name, self.tensor.layout, self.index, self.indirect)
        object.__setattr__(self, "_hash", hash(key))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Load) and not self.indirect and not other.indirect:
            # A fast path for the most frequent comparison.
            return (self.tensor, self.index) == (other.tensor, other.index)
        return Composite.__eq__(self, other)

    def _own(self) -> Hashable:
        return self.tensor, self.index, tuple(dim for dim, _ in self.indirect)

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype


@dataclass(frozen=True, slots=True)
class Const(Expr):
    """A constant of the given type."""

    value: float
    type: DType = DType.FLOAT32

    @property
    def dtype(self) -> DType:
        return self.type


@dataclass(frozen=True, slots=True)
class IndexValue(Expr):
    """The value of an index, converted to the given type.

    For example, element i of the sequence 0, 1, 2, ... is the index i itself.
    """

    index: Affine
    type: DType = DType.INT64

    @property
    def dtype(self) -> DType:
        return self.type


@dataclass(frozen=True, slots=True)
class Accumulator(Expr):
    """The result of a reduction, as an operand of the operations that follow the reduction.

    The result may be a tuple, for example the value and the index of an argmax (`Fold`). Then
    `Accumulator` is the item of the tuple with the index `number`. `Fold.joined` has expressions
    that combine two tuples; there, `Accumulator` is an item of the first tuple.
    """

    type: DType = DType.FLOAT32
    number: int = 0

    @property
    def dtype(self) -> DType:
        return self.type


@dataclass(frozen=True, slots=True)
class Incoming(Expr):
    """Item `number` of the second tuple, in the expressions by which a `Fold` combines two tuples.

    A `Fold` is a reduction of tuples. `Accumulator` is an item of the first tuple.
    """

    type: DType = DType.FLOAT32
    number: int = 0

    @property
    def dtype(self) -> DType:
        return self.type


@dataclass(frozen=True, slots=True, eq=False)
class Items(Composite):
    """A tuple of values: the body or the initial value of a reduction of tuples (a `Fold`)."""

    values: tuple[Expr, ...]

    def _own(self) -> Hashable:
        return ()

    @property
    def dtype(self) -> DType:
        """The type of the first item, which counts as the type of the whole tuple."""
        return self.values[0].dtype


@dataclass(frozen=True, slots=True)
class Fold:
    """A reduction of tuples: argmax (value, index), online softmax (maximum, sum), variances.

    `joined` combines two tuples, with one expression per item of the result. In these expressions,
    `Accumulator(type, i)` is item i of the first tuple, and `Incoming(type, i)` is item i of the
    second. The combination must be associative and commutative, with `neutral` as its neutral
    element, because lanes and partial accumulators are combined in any order.
    """

    neutral: tuple[Const, ...]
    joined: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Op(Composite):
    """An operation on operands of one type; SELECT has a bool and two operands of one type."""

    operation: Operation
    args: tuple[Expr, ...]

    def _own(self) -> Hashable:
        return self.operation

    @property
    def dtype(self) -> DType:
        if self.operation in _COMPARISONS:
            return DType.BOOL
        return self.args[-1].dtype


@dataclass(frozen=True, slots=True, eq=False)
class Cast(Composite):
    """A conversion to another type, as in C: floats to integers truncate.

    A conversion to bool tests whether the value is not zero.
    """

    value: Expr
    type: DType

    def _own(self) -> Hashable:
        return self.type

    @property
    def dtype(self) -> DType:
        return self.type


@dataclass(frozen=True, slots=True, eq=False)
class Reduce(Composite):
    """A reduction of `body` over `axes`, inside a tensor expression.

    Templates lower this node to loops before code generation. A load whose index is outside its
    tensor counts as the combiner's neutral element: convolution and pooling express their padding
    in this way.
    """

    combiner: Combiner | Fold
    axes: tuple[Axis, ...]
    body: Expr

    def _own(self) -> Hashable:
        return (self.combiner, self.axes)

    @property
    def dtype(self) -> DType:
        return self.body.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Item(Composite):
    """Item `number` of the tuple that a reduction computes.

    Only tensor expressions contain this node; templates replace it before code generation.
    """

    reduction: Reduce
    number: int

    def _own(self) -> Hashable:
        return self.number

    @property
    def dtype(self) -> DType:
        match self.reduction.combiner:
            case Fold(neutral=neutral):
                return neutral[self.number].type
            case _:
                return self.reduction.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Tee(Composite):
    """An expression whose value is also stored to `target` when it is computed."""

    value: Expr
    target: Load

    def _own(self) -> Hashable:
        return ()

    @property
    def dtype(self) -> DType:
        return self.value.dtype


_COMPARISONS = frozenset({Operation.LT, Operation.LE, Operation.EQ, Operation.NE})


def constant(value: Expr | float, dtype: DType) -> Expr:
    """Return a value as an expression.

    A number becomes a constant of type `dtype`. A dynamic size becomes an expression for its value
    at run time. An expression is returned unchanged.
    """
    if is_dynamic(value):
        whole = dtype if dtype in (DType.INT32, DType.INT64) else DType.INT64
        number = IndexValue(Affine((), value), whole)
        return number if whole is dtype else Cast(number, dtype)
    return value if isinstance(value, Expr) else Const(value, dtype)


def widened(factor: Expr, dtype: DType) -> Expr:
    """Return a factor of a product in the type of the product.

    The factor is cast to `dtype` if it has another type.
    """
    return factor if factor.dtype is dtype else Cast(factor, dtype)


def op(operation: Operation, *args: Expr | float) -> Op:
    """Build an operation; plain numbers take the type of the last operand that is an expression.

    Raises:
        TypeError: if the operands' types differ.
    """
    dtype = next(a.dtype for a in reversed(args) if isinstance(a, Expr))
    built = tuple(constant(a, dtype) for a in args)
    typed = built[1:] if operation is Operation.SELECT else built
    if len({a.dtype for a in typed}) > 1:
        raise TypeError(f"{operation}: operand types differ: {[str(a.dtype) for a in typed]}")
    return Op(operation, built)


def finished(reduction: Reduce) -> Expr:
    """Return the expression by which operations after a reduction read the reduction's result.

    This is an accumulator, or a tuple of accumulators if the reduction computes tuples.
    """
    match reduction.combiner:
        case Fold(neutral=neutral):
            return Items(tuple(Accumulator(c.type, i) for i, c in enumerate(neutral)))
        case _:
            return Accumulator(reduction.dtype)


def _equal(first: Composite, second: Composite) -> bool:
    """Whether two expressions are equal.

    Each pair of nodes is compared once, even if the expressions share subexpressions.
    """
    seen: set[tuple[int, int]] = set()
    left: list[tuple[Expr, Expr]] = [(first, second)]
    while left:
        one, other = left.pop()
        if one is other or (id(one), id(other)) in seen:
            continue
        if not (isinstance(one, Composite) and isinstance(other, Composite)):
            if one != other:
                return False
            continue
        if one._hash != other._hash or type(one) is not type(other) or one._own() != other._own():
            return False
        operands, others = _operands(one), _operands(other)
        if len(operands) != len(others):
            return False
        if operands:
            seen.add((id(one), id(other)))
            left += zip(operands, others, strict=True)
    return True


def _operands(expr: Expr) -> tuple[Expr, ...]:
    """All operands of a node, including the target of a Tee (a node that also stores its value)."""
    return (*children(expr), expr.target) if isinstance(expr, Tee) else children(expr)


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the direct operands of a node.

    The target of a Tee (a node that also stores its value) is excluded.
    """
    match expr:
        case Op(args=args):
            return args
        case Items(values=values):
            return values
        case Cast(value=value) | Tee(value=value):
            return (value,)
        case Item(reduction=reduction):
            return (reduction,)
        case Reduce(body=body):
            return (body,)
        case Load(indirect=indirect):
            return tuple(e for _, e in indirect)
        case _:
            return ()


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield every distinct node of a tree, operands first."""
    begun: set[Expr] = set()
    done: set[Expr] = set()
    pending = [expr]
    while pending:
        node = pending.pop()
        if node not in begun:
            begun.add(node)
            if operands := children(node):
                pending.append(node)
                pending += reversed(operands)
                continue
        elif node in done:
            continue
        done.add(node)
        yield node


def loads(expr: Expr) -> tuple[Load, ...]:
    """Return every distinct load of a tree."""
    return tuple(node for node in walk(expr) if isinstance(node, Load))
