"""Parser for the text form of a loop nest; `compiler.loops.text` writes it."""

from __future__ import annotations

from tests.nests.tokens import Line, NestSyntaxError, Tokens
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import (
    Accumulator,
    Cast,
    Combiner,
    Const,
    Expr,
    Fold,
    Incoming,
    IndexValue,
    Item,
    Items,
    Load,
    Op,
    Operation,
    Reduce,
    Role,
    Space,
    Tee,
    Tensor,
)
from tilewright.compiler.loops.index import Affine, Axis, FloorDiv, Term
from tilewright.compiler.loops.layout import Layout
from tilewright.compiler.loops.nest import (
    Binding,
    Compute,
    For,
    Let,
    LoopNest,
    Node,
    Order,
    Stage,
    Store,
    Tile,
)
from tilewright.compiler.sizes import Dimension


def parse_nest(text: str) -> LoopNest:
    """Read the output of `print_nest`.

    Raises:
        NestSyntaxError: naming the line that violates the grammar, or that uses an undeclared name.
    """
    lines = [
        Line(number, len(raw) - len(raw.lstrip(" ")), raw.strip())
        for number, raw in enumerate(text.splitlines(), 1)
        if raw.strip()
    ]
    return _Parser(lines).kernel()


class _Parser:
    """Recursive descent over lines and their indentation."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines
        self.at = 0
        self.sizes: dict[str, Dimension] = {}
        self.axes: dict[str, Axis] = {}
        self.tensors: dict[str, Tensor] = {}
        self.lets: dict[str, Expr] = {}

    def kernel(self) -> LoopNest:
        tokens = self._next("kernel")
        name = tokens.name()
        tokens.end()
        if self._word() == "sizes":
            tokens = self._next("sizes")
            tokens.listed(lambda t=tokens: self._declare_size(t), "")  # type: ignore[misc]
        declared: dict[str, list[Tensor]] = {"buffer": [], "scratch": [], "tensor": []}
        while (word := self._word()) in ("axes", "buffer", "scratch", "tensor"):
            tokens = self._next(word)
            if word == "axes":
                tokens.listed(lambda t=tokens: self._declare_axis(t), "")  # type: ignore[misc]
            else:
                declared[word].append(self._declare_tensor(tokens))
        stages: list[Stage] = []
        while self.at < len(self.lines):
            indent = self.lines[self.at].indent
            tokens = self._next("stage")
            stage_name = tokens.name()
            tokens.end()
            stages.append(Stage(stage_name, self._nodes(indent)))
        buffers, scratch = tuple(declared["buffer"]), tuple(declared["scratch"])
        return LoopNest(name, buffers, scratch, tuple(stages))

    # ---- lines

    def _word(self) -> str:
        return self.lines[self.at].text.split(" ")[0] if self.at < len(self.lines) else ""

    def _next(self, word: str) -> Tokens:
        if self.at >= len(self.lines):
            raise NestSyntaxError(f"the text ends where '{word}' is expected")
        tokens = Tokens(self.lines[self.at])
        self.at += 1
        tokens.expect(word)
        return tokens

    def _nodes(self, indent: int) -> tuple[Node, ...]:
        """The nodes of the lines that are indented deeper."""
        nodes: list[Node] = []
        while self.at < len(self.lines) and self.lines[self.at].indent > indent:
            match self._word():
                case "for":
                    nodes.append(self._for())
                case _:
                    nodes.append(self._compute())
        return tuple(nodes)

    def _declare_size(self, tokens: Tokens) -> None:
        name, low = tokens.name(), tokens.integer()
        tokens.expect("..")
        high = tokens.integer() if tokens.kind() == "number" else None
        multiple = tokens.integer() if tokens.accept(":") else 1
        if multiple < 1 or low % multiple or (high or 0) % multiple:
            raise tokens.error(f"the range of '{name}' is not one of multiples of {multiple}")
        last = None if high is None else high // multiple
        try:
            self.sizes[name] = Dimension(name, low // multiple, last, multiple)
        except ValueError as error:
            raise tokens.error(str(error)) from error

    def _declare_axis(self, tokens: Tokens) -> None:
        handle = tokens.name()
        tokens.expect("=")
        self.axes[handle] = Axis(_plain(handle), tokens.size(self.sizes))

    def _declare_tensor(self, tokens: Tokens) -> Tensor:
        handle = tokens.name()
        tokens.expect(":")
        role, dtype = tokens.word(Role), tokens.word(DType)
        tokens.expect("[")
        shape = tokens.listed(lambda: tokens.size(self.sizes), "]")
        tokens.expect("layout")
        tokens.expect("(")
        layout = self._layout(tokens)
        halo: tuple[tuple[int, int], ...] = ()
        space, values = Space.MEMORY, tuple[float, ...]()
        if tokens.accept("halo"):
            tokens.expect("(")
            halo = tokens.listed(lambda: (tokens.integer(), tokens.integer()), ")")
        if tokens.kind() == "name" and tokens.peek() != "values":
            space = tokens.word(Space)
        if tokens.accept("values"):
            tokens.expect("(")
            values = tokens.listed(tokens.number, ")")
        tokens.end()
        name = _plain(handle)
        tensor = Tensor(name, shape, dtype, layout, halo, space, role, values)
        self.tensors[handle] = tensor
        return tensor

    def _layout(self, tokens: Tokens) -> Layout:
        parts: list[str] = []
        while not tokens.accept(")"):
            separate = tokens.kind() in ("number", "name") and parts and parts[-1][-1].isdigit()
            parts.append((" " if separate else "") + tokens.take())
        try:
            return Layout.parse("".join(parts))
        except ValueError as error:
            raise tokens.error(f"'{''.join(parts)}' is not a layout") from error

    def _for(self) -> For:
        indent = self.lines[self.at].indent
        tokens = self._next("for")
        axis = self._axis(tokens)
        tokens.expect("in")
        if tokens.size(self.sizes) != axis.extent:
            raise tokens.error(f"the extent of '{axis.name}' is declared as {axis.extent}")
        tokens.expect("by")
        step = tokens.integer()
        binding = Binding.SERIAL
        if tokens.peek() in ("parallel", "block", "lane"):
            binding = tokens.word(Binding)
        peel, unroll = tokens.accept("peel"), tokens.accept("unroll")
        lets: list[Let] = []
        while tokens.accept("let"):
            derived = self._axis(tokens)
            for mark in ("=", "min", "("):
                tokens.expect(mark)
            source = self._index(tokens)
            tokens.expect(",")
            lets.append(Let(derived, source, tokens.size(self.sizes)))
            tokens.expect(")")
        tokens.end()
        return For(axis, step, self._nodes(indent), binding, peel, unroll, tuple(lets))

    def _compute(self) -> Compute:
        self.lets = {}
        while self._word() == "let":
            tokens = self._next("let")
            name = tokens.take("let")
            tokens.expect("=")
            self.lets[name] = self._expression(tokens)
            tokens.end()
        indent = self.lines[self.at].indent if self.at < len(self.lines) else 0
        tokens = self._next("compute")
        combiner = None if tokens.accept("map") else self._combiner(tokens)
        body = self._expression(tokens)
        init = self._expression(tokens) if tokens.accept("from") else None
        tokens.end()
        compute = _ComputeFields()
        while self.at < len(self.lines) and self.lines[self.at].indent > indent:
            tokens = Tokens(self.lines[self.at])
            self.at += 1
            self._clause(tokens, compute)
            tokens.end()
        return Compute(
            stores=tuple(compute.stores),
            body=body,
            combiner=combiner,
            init=init,
            reduce=compute.reduce,
            unroll=compute.unroll,
            vector=compute.vector,
            partial=compute.partial,
            order=compute.order,
            skip_padding=compute.skip_padding,
            store_vector=compute.store_vector,
            prefetch=compute.prefetch,
            passes=compute.passes,
            dot=compute.dot,
            rows=compute.rows,
        )

    def _clause(self, tokens: Tokens, fields: _ComputeFields) -> None:
        match tokens.take("name"):
            case "reduce":
                fields.reduce = tokens.listed(lambda: self._tile(tokens), "")
            case "unroll":
                fields.unroll = tokens.listed(lambda: self._tile(tokens), "")
            case "vector":
                fields.vector = self._axis(tokens)
            case "partial":
                fields.partial = tokens.listed(lambda: self._axis(tokens), "")
            case "order":
                fields.order = tokens.word(Order)
            case "skip-padding":
                fields.skip_padding = True
            case "store-vector":
                fields.store_vector = self._axis(tokens)
            case "dot":
                fields.dot = self._axis(tokens)
            case "rows":
                fields.rows = self._axis(tokens)
            case "prefetch":
                fields.prefetch = tokens.integer()
                if tokens.accept("over"):
                    fields.passes = tokens.listed(lambda: self._tile(tokens), "")
            case "store":
                target = self._expression(tokens)
                tokens.expect("=")
                if not isinstance(target, Load):
                    raise tokens.error("a store writes to an element of a tensor")
                fields.stores.append(Store(target, self._expression(tokens)))
            case word:
                raise tokens.error(f"'{word}' is no clause of a compute")

    def _tile(self, tokens: Tokens) -> Tile:
        axis = self._axis(tokens)
        tokens.expect("by")
        return Tile(axis, tokens.integer(), tokens.accept("unrolled"))

    # ---- expressions

    def _axis(self, tokens: Tokens) -> Axis:
        name = tokens.name()
        if name not in self.axes:
            raise tokens.error(f"no axis '{name}'")
        return self.axes[name]

    def _index(self, tokens: Tokens) -> Affine:
        terms: list[tuple[Term, int]] = []
        constant, first = 0, True
        while first or tokens.peek() in ("+", "-"):
            sign = -1 if tokens.accept("-") else 1
            if sign == 1 and not first:
                tokens.expect("+")
            first = False
            if tokens.kind() == "number" or tokens.peek() == "{":
                size = self._number(tokens)
                if not tokens.accept("*"):
                    constant += sign * size
                    continue
                sign *= size
            terms.append((self._term(tokens), sign))
        return Affine(tuple(terms), constant)

    def _term(self, tokens: Tokens) -> Term:
        if not tokens.accept("("):
            return self._axis(tokens)
        axis = self._axis(tokens)
        tokens.expect("//")
        divisor = self._number(tokens)
        tokens.expect(")")
        return FloorDiv(axis, divisor)

    def _number(self, tokens: Tokens) -> int:
        """A number in an index; sizes are in braces."""
        if not tokens.accept("{"):
            return tokens.integer()
        size = tokens.size(self.sizes)
        tokens.expect("}")
        return size

    def _expression(self, tokens: Tokens) -> Expr:
        if tokens.kind() == "let":
            name = tokens.take()
            if name not in self.lets:
                raise tokens.error(f"no let '{name}'")
            return self.lets[name]
        if tokens.kind() in ("number", "mark"):
            return self._constant(tokens)
        if tokens.kind() == "name" and tokens.peek() in ("inf", "nan"):
            return self._constant(tokens)
        if tokens.accept("acc"):
            number = tokens.bracketed(tokens.integer) if tokens.peek() == "(" else 0
            return Accumulator(self._suffix(tokens), number)
        name = tokens.name()
        if tokens.accept("["):
            return self._load(name, tokens)
        tokens.expect("(")
        return self._call(name, tokens)

    def _call(self, name: str, tokens: Tokens) -> Expr:
        expr: Expr
        match name:
            case "cast":
                value = self._expression(tokens)
                tokens.expect(",")
                expr = Cast(value, tokens.word(DType))
            case "index":
                index = self._index(tokens)
                tokens.expect(",")
                expr = IndexValue(index, tokens.word(DType))
            case "tee":
                value = self._expression(tokens)
                tokens.expect(",")
                target = self._expression(tokens)
                if not isinstance(target, Load):
                    raise tokens.error("a tee writes to an element of a tensor")
                expr = Tee(value, target)
            case "reduce":
                combiner = self._combiner(tokens)
                tokens.expect(",")
                tokens.expect("[")
                axes: list[Axis] = []
                while not tokens.accept("]"):
                    axes.append(self._axis(tokens))
                tokens.expect(",")
                expr = Reduce(combiner, tuple(axes), self._expression(tokens))
            case "item":
                reduction = self._expression(tokens)
                if not isinstance(reduction, Reduce):
                    raise tokens.error("an item is one of a reduction")
                tokens.expect(",")
                expr = Item(reduction, tokens.integer())
            case "items":
                return Items(tokens.listed(lambda: self._expression(tokens), ")"))
            case "new":
                number = tokens.integer()
                tokens.expect(")")
                return Incoming(self._suffix(tokens), number)
            case _:
                try:
                    operation = Operation(name)
                except ValueError as error:
                    raise tokens.error(f"no operation '{name}'") from error
                return Op(operation, tokens.listed(lambda: self._expression(tokens), ")"))
        tokens.expect(")")
        return expr

    def _combiner(self, tokens: Tokens) -> Combiner | Fold:
        if not tokens.accept("fold"):
            return tokens.word(Combiner)
        for mark in ("(", "["):
            tokens.expect(mark)
        neutral = tokens.listed(lambda: self._constant(tokens), "]")
        for mark in (",", "["):
            tokens.expect(mark)
        joined = tokens.listed(lambda: self._expression(tokens), "]")
        tokens.expect(")")
        return Fold(neutral, joined)

    def _constant(self, tokens: Tokens) -> Const:
        return Const(tokens.number(), self._suffix(tokens))

    def _load(self, name: str, tokens: Tokens) -> Load:
        if name not in self.tensors:
            raise tokens.error(f"no tensor '{name}'")
        index: list[Affine] = []
        while tokens.peek() not in ("]", ";"):
            if index:
                tokens.expect(",")
            index.append(self._index(tokens))
        indirect: list[tuple[int, Expr]] = []
        while tokens.accept(";"):
            dim = tokens.integer()
            tokens.expect(":")
            indirect.append((dim, self._expression(tokens)))
        tokens.expect("]")
        return Load(self.tensors[name], tuple(index), tuple(indirect))

    def _suffix(self, tokens: Tokens) -> DType:
        return tokens.word(DType) if tokens.accept(":") else DType.FLOAT32


class _ComputeFields:
    """The clauses of a Compute parsed so far."""

    def __init__(self) -> None:
        self.stores: list[Store] = []
        self.reduce: tuple[Tile, ...] = ()
        self.unroll: tuple[Tile, ...] = ()
        self.vector: Axis | None = None
        self.partial: tuple[Axis, ...] = ()
        self.order = Order.GREEDY
        self.skip_padding = False
        self.store_vector: Axis | None = None
        self.prefetch = 0
        self.passes: tuple[Tile, ...] = ()
        self.dot: Axis | None = None
        self.rows: Axis | None = None


def _plain(handle: str) -> str:
    """The name of a handle: `x~2` is the second axis or tensor with the name `x`."""
    name, mark, number = handle.rpartition("~")
    return name if mark and number.isdecimal() else handle
