"""Import of nodes from ONNX graphs, branches and functions into the graph under construction."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from tilewright.compiler import ops
from tilewright.compiler.errors import CompilerError, InvalidModelError, UnsupportedOperatorError
from tilewright.compiler.frontend.known_operators import not_implemented
from tilewright.compiler.frontend.old_opsets import aligned_operands, domain_of
from tilewright.compiler.frontend.order import DEPTH_LIMIT, needed_nodes, sort_nodes, unique_names
from tilewright.compiler.frontend.schema_functions import schema_function
from tilewright.compiler.frontend.segments import DeferredNodes, inlined_branch
from tilewright.compiler.frontend.sequences import on_sequences
from tilewright.compiler.frontend.tensors import read_tensor
from tilewright.compiler.frontend.texts import labelled, with_one_table
from tilewright.compiler.frontend.trimmed_operands import import_untrimmed
from tilewright.compiler.frontend.unroll import LoopBody, imported_loop, imported_scan
from tilewright.compiler.ops.builder import GraphBuilder
from tilewright.compiler.ops.enclosed import CapturingScope, Enclosure
from tilewright.compiler.ops.loops import branched, truth
from tilewright.compiler.ops.onnx_node import OnnxAttr, OnnxNode
from tilewright.compiler.sizes import DynamicSizeError, SizeErrorContext, is_dynamic


@dataclass(frozen=True, slots=True)
class NameScope:
    """The scope of ONNX names in a graph, a branch or a function body that is imported.

    Attributes:
        values: maps an ONNX name to a value of the graph under construction, or to None for an
            input that a function call omits. The mapping grows as nodes are imported.
        opsets: the opset version of each domain.
        attributes: the attributes of the call, for a function's body.
        prefix: the prefix of node names.
        depth: the number of enclosing bodies.
        spelled: whether If, Loop and Scan nodes must be expanded into the surrounding graph, with
            loops unrolled. This is the case inside a body that could not be imported as a graph of
            its own.
    """

    values: MutableMapping[str, str | None]
    opsets: Mapping[str, int]
    attributes: Mapping[str, AttributeProto] = field(default_factory=dict)
    prefix: str = ""
    depth: int = 0
    spelled: bool = False


NODE_LIMIT = 200_000
"""Maximum number of nodes that an import creates from subgraphs of If, Loop and Scan, and from
functions. A node counts once per import of its subgraph or function."""


_NARROW = ("DequantizeLinear",)
"""Operators that accept operands with 4-bit elements."""


@dataclass(slots=True)
class _Budget:
    """A limit on the number of nodes that an import creates from subgraphs and functions.

    The limit (NODE_LIMIT) stops models in which a few nested loops unroll to millions of nodes.
    `left` is the number of nodes that may still be created.
    """

    left: int = field(default_factory=lambda: NODE_LIMIT)

    def spend(self, name: str) -> None:
        """Count one more imported node.

        Args:
            name: the node's name for the error message.

        Raises:
            InvalidModelError: if the limit is exceeded.
        """
        self.left -= 1
        if self.left < 0:
            raise InvalidModelError(
                f"node '{name}': unrolled, the model's bodies have more than {NODE_LIMIT} nodes"
            )


class NodeImporter:
    """Imports ONNX nodes: by a rule, by the function body of the schema, or as control flow.

    Attributes:
        final_names: maps values of the graph under construction to their names in the file.
        node_names: maps values of the graph under construction to the names of the ONNX nodes that
            compute them.

    Args:
        builder: the graph under construction.
        folder: the folder of external data; None if the model has no folder.
        budget: the number of nodes that may still be imported.
        waiting: collects the nodes of the main graph that can be imported only after a run has
            computed some values. With None, such a node is an error.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        folder: Path | None,
        budget: _Budget | None = None,
        waiting: DeferredNodes | None = None,
    ) -> None:
        self.final_names: dict[str, str] = {}
        self.node_names: dict[str, str] = {}
        self._builder = builder
        self._folder = folder
        self._budget = budget or _Budget()
        self._waiting = waiting

    def run(
        self, graph: GraphProto | FunctionProto, wanted: Sequence[str], body: NameScope
    ) -> None:
        """Import the nodes that the values `wanted` depend on, in topological order.

        `body` is the scope of the graph's names; the results are added to `body.values`.

        Raises:
            InvalidModelError: if a node is malformed, or contradicts its operands.
            UnsupportedOperatorError: if a node cannot be imported.
        """
        self._run(sort_nodes(graph, body.values), set(wanted), body)

    def _run(self, nodes: Sequence[NodeProto], used: set[str], body: NameScope) -> None:
        """Import those of the `nodes` that the names in `used` depend on.

        `nodes` is in topological order. The names of all values that the imported nodes read are
        added to `used`.
        """
        needed = needed_nodes(nodes, used)
        names = unique_names(nodes)
        waiting = None if body.depth else self._waiting
        for position, node in enumerate(nodes):
            if position not in needed or (waiting is not None and waiting.follows(node)):
                continue
            name = f"{body.prefix}{names[position]}"
            try:
                self._node(node, name, body, used)
            except UnsupportedOperatorError as error:
                if waiting is None or not error.waits_for:
                    raise
                branch = self._known_branch(node, name, body)
                if branch is None:
                    waiting.takes(node, error)
                    continue
                # nodes inside a known branch are deferred one by one
                values = self._initializers(branch)
                body.values.update({f"{name}/{key}": value for key, value in values.items()})
                self._run(sort_nodes(inlined_branch(branch, node, name), body.values), used, body)

    def _known_branch(self, proto: NodeProto, name: str, body: NameScope) -> GraphProto | None:
        """The branch that an If node always takes, because its condition is known at import.

        Returns None if the condition is computed at run time, or for other nodes than an If.
        """
        if (domain_of(proto.domain), proto.op_type) != ("", "If"):
            return None
        known = self._builder.known(str(body.values[proto.input[0]]))
        if known is None:
            return None
        return subgraph(proto, "then_branch" if known.reshape(-1)[0] else "else_branch", name)

    def _node(self, proto: NodeProto, name: str, body: NameScope, used: set[str]) -> None:
        if body.depth:
            self._budget.spend(name)
        outputs = tuple(v if v in used else "" for v in proto.output)
        results = self._emit(proto, name, body, outputs)
        if any(outputs[len(results) :]):
            raise InvalidModelError(
                f"{proto.op_type} '{name}': {len(proto.output)} outputs instead of {len(results)}"
            )
        first = next((v for v in outputs if v), "")
        for output, value in zip(outputs, results, strict=False):
            if not output:
                continue
            body.values[output] = value
            if body.depth or value in self.final_names or not self._builder.is_made(value):
                continue
            self.final_names[value] = output
            if output == first:
                self.node_names[value] = name

    def _emit(
        self, proto: NodeProto, name: str, body: NameScope, outputs: tuple[str, ...]
    ) -> Sequence[str]:
        """Import one node, and return the names of its results in the graph under construction.

        Args:
            proto: the ONNX node.
            name: the unique name of the node, for messages and new nodes.
            body: the scope of the node's names.
            outputs: the ONNX names of the outputs.
        """
        domain = domain_of(proto.domain)
        opset = body.opsets.get(domain, 0)
        inputs = tuple(body.values[v] if v else None for v in proto.input)
        if self._builder.narrow.intersection(inputs) and proto.op_type not in _NARROW:
            reason = "an operand of 4 bits"
            raise UnsupportedOperatorError(name, proto.op_type, domain, opset, reason)
        match domain, proto.op_type:
            case "", "If":
                return self._branch(proto, name, body)
            case "", "Scan" | "Loop":
                attrs = self._attributes(proto, name, body, graphs=False)
                node = OnnxNode(
                    name, proto.op_type, domain, opset, inputs, outputs, attrs, self._builder
                )
                node.refuse_trimmed(inputs)
                graph = subgraph(proto, "body", name)
                made = self._loop_body(graph, name, body)
                return (imported_scan if proto.op_type == "Scan" else imported_loop)(node, made)
        attrs = self._attributes(proto, name, body)
        node = OnnxNode(name, proto.op_type, domain, opset, inputs, outputs, attrs, self._builder)
        if (follow := on_sequences(node)) is not None:
            with SizeErrorContext(node.label):
                return [follow(node)]
        rule = ops.onnx_rules().get((domain, proto.op_type))
        if rule is None:
            found = self._expand(proto, name, body, inputs, outputs, None)
            if found is None:
                reason = not_implemented(proto.op_type, domain)
                raise UnsupportedOperatorError(name, proto.op_type, domain, opset, reason)
            return found
        try:
            with SizeErrorContext(node.label):
                node, labels = with_one_table(node)
                if any(v is not None and self._builder.trim(v) for v in node.inputs):
                    results = import_untrimmed(node, rule)
                else:
                    emitted = rule.emit(replace(node, inputs=tuple(aligned_operands(node))))
                    results = [emitted] if isinstance(emitted, str) else list(emitted)
                labelled(node, results, labels)
        except UnsupportedOperatorError as error:
            found = self._expand(proto, name, body, inputs, outputs, error)
            if found is None:
                raise
            return found
        except CompilerError:
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            # The node violates ONNX's rules in a way that no import rule checks.
            raise node.invalid(f"malformed: {error}") from error
        return results

    def _expand(
        self,
        proto: NodeProto,
        name: str,
        body: NameScope,
        inputs: tuple[str | None, ...],
        outputs: tuple[str, ...],
        refused: UnsupportedOperatorError | None,
    ) -> Sequence[str] | None:
        """Import a node by the function body of its schema, and return its outputs.

        Returns None if the schema has no function body.

        Args:
            proto: the ONNX node.
            name: the unique name of the node.
            body: the scope of the node's names.
            inputs: the values of its operands; None for an omitted operand.
            outputs: the ONNX names of its outputs.
            refused: the error with which the operator's import rule rejected the node; None if the
                operator has no rule.

        Raises:
            UnsupportedOperatorError: if a node of the function body is not supported. The error is
                `refused` if it is not None. Otherwise it is a new error that names the unsupported
                node.
        """
        domain = domain_of(proto.domain)
        if domain:
            return None
        resolved = self._resolved(proto, body)
        types = [None if v is None else self._builder.types[v] for v in inputs]
        function = schema_function(resolved, body.opsets[""], types)
        if function is None:
            return None
        values: dict[str, str | None] = dict.fromkeys(function.body.input)
        values.update(zip(function.body.input, inputs, strict=False))
        opsets = {domain_of(o.domain): o.version for o in function.body.opset_import}
        inner = NameScope(
            values,
            opsets or body.opsets,
            function.attributes,
            f"{name}/",
            _deeper(body, name),
            body.spelled,
        )
        # A body may lack optional outputs that the node does not use.
        made = list(zip(function.body.output, outputs, strict=False))
        try:
            self.run(function.body, [inside for inside, outside in made if outside], inner)
        except UnsupportedOperatorError as error:
            if refused is not None:
                raise refused from error
            raise UnsupportedOperatorError(
                name,
                proto.op_type,
                domain,
                body.opsets[""],
                f"its function body needs {error.operator}: {error.reason}",
                error.depends_on,
                error.waits_for,
            ) from error
        return [_defined(inner, inside, name) if outside else "" for inside, outside in made]

    def _loop_body(self, graph: GraphProto, name: str, body: NameScope) -> LoopBody:
        """The body of a Loop or Scan, with two functions that import it.

        The first one imports a single step into the current graph, to unroll the loop. The second
        one imports the body as a graph of its own. The import rule of the operator selects one of
        them.
        """

        def step(number: int, operands: Sequence[str], tried: bool) -> list[str]:
            return self.inline(graph, operands, f"{name}/{number}/", replace(body, spelled=tried))

        def enclosed(enclosure: Enclosure, operands: Sequence[str]) -> list[str]:
            return self._enclosed(enclosure, graph, operands, f"{name}/", body)

        sizes = len(graph.input), len(graph.output)
        return LoopBody(*sizes, _weight(graph), step, enclosed, body.spelled)

    def _enclosed(
        self,
        enclosure: Enclosure,
        graph: GraphProto,
        operands: Sequence[str],
        prefix: str,
        body: NameScope,
    ) -> list[str]:
        """Import a subgraph as the body of a control-flow node; return the values of its outputs.

        Args:
            enclosure: the body's graph under construction. If the subgraph reads a value of the
                surrounding graph, this value becomes an additional input of the body's graph.
            graph: the subgraph.
            operands: the values of the subgraph's inputs.
            prefix: the prefix of the names of the subgraph's nodes.
            body: the scope that surrounds the subgraph.
        """
        inner = NodeImporter(enclosure.builder, self._folder, self._budget)
        outside = replace(body, values=CapturingScope(body.values, enclosure))
        return inner.inline(graph, operands, prefix, outside)

    def _branch(self, proto: NodeProto, name: str, body: NameScope) -> Sequence[str]:
        """Import an If: its selected branch if the condition is constant, else both branches.

        Returns the values of the outputs.

        Raises:
            InvalidModelError: if the condition is missing or not a scalar.
            DynamicSizeError: if the condition depends on dynamic sizes, is true for some sizes in
                their ranges and false for others, and the If cannot be compiled with both branches.
        """
        condition = body.values[proto.input[0]] if proto.input and proto.input[0] else None
        if condition is None:
            raise InvalidModelError(f"If '{name}': input 0 is missing")
        if self._builder.types[condition].elements != 1:
            raise InvalidModelError(
                f"If '{name}': the condition (input 0) is {self._builder.types[condition]}, "
                "expected a scalar"
            )
        if (branch := self._known_branch(proto, name, body)) is not None:
            return self.inline(branch, (), f"{name}/", body)
        try:
            return self._chosen(proto, name, body, condition)
        except (DynamicSizeError, UnsupportedOperatorError) as error:
            asked = self._builder.undecided(condition)
            if asked is None or not (is_dynamic(asked.undecided) or is_dynamic(asked.unequal)):
                raise
            asked.may_differ = True
            raise asked.by(f"If '{name}'") from error

    def _chosen(
        self, proto: NodeProto, name: str, body: NameScope, condition: str
    ) -> Sequence[str]:
        """Import an If as a node that runs one of two branch graphs; returns its outputs.

        If a branch cannot be imported as a separate graph, both are imported into the current graph
        instead, and each output is selected at run time.
        """
        if not body.spelled:
            opset = body.opsets.get("", 0)
            node = OnnxNode(
                name, "If", "", opset, (condition,), tuple(proto.output), {}, self._builder
            )

            def branch(key: str, enclosure: Enclosure) -> list[str]:
                graph = subgraph(proto, key, name)
                return self._enclosed(enclosure, graph, (), f"{name}/{key}/", body)

            then, otherwise = (partial(branch, key) for key in ("then_branch", "else_branch"))
            try:
                return branched(node, truth(node, condition), then, otherwise)
            except UnsupportedOperatorError:
                pass  # inlined below if possible; if not, that code reports the error
        return self._either(proto, name, replace(body, spelled=True), condition)

    def _either(
        self, proto: NodeProto, name: str, body: NameScope, condition: str
    ) -> Sequence[str]:
        """Import both branches of an If, and select each output at run time by a `where`.

        Raises:
            UnsupportedOperatorError: if a branch cannot be imported, or the types of the branches'
                outputs differ.
        """

        def refused(reason: str) -> UnsupportedOperatorError:
            depends_on = self._builder.inputs_of(condition)
            opset = body.opsets.get("", 0)
            return UnsupportedOperatorError(name, "If", "", opset, reason, depends_on, (condition,))

        why = "the condition (input 0) depends on a run-time value, and"
        found: list[list[str]] = []
        for key in ("then_branch", "else_branch"):
            try:
                graph = subgraph(proto, key, name)
                found.append(self.inline(graph, (), f"{name}/{key}/", body))
            except CompilerError as error:
                raise refused(f"{why} '{key}' does not compile: {error}") from error
        if len(found[0]) != len(found[1]):
            raise InvalidModelError(
                f"If '{name}': its branches have {len(found[0])} and {len(found[1])} outputs, "
                "expected as many"
            )
        opset = body.opsets.get("", 0)
        node = OnnxNode(name, "If", "", opset, (condition,), tuple(proto.output), {}, self._builder)
        chooses = node.reshape(condition, ())
        results = []
        for first, second in zip(*found, strict=True):
            if self._builder.types[first] != self._builder.types[second]:
                types = f"{self._builder.types[first]} and {self._builder.types[second]}"
                raise refused(f"{why} its branches give outputs of the types {types}")
            if {first, second} & self._builder.labels.keys():
                raise refused(f"{why} its branches give texts")
            same = first == second
            results.append(first if same else node.emit("where", [chooses, first, second]))
        return results

    def inline(
        self, graph: GraphProto, operands: Sequence[str], prefix: str, body: NameScope
    ) -> list[str]:
        """Import a subgraph into the graph under construction; returns the values of its outputs.

        Args:
            graph: the subgraph.
            operands: the values of its inputs.
            prefix: the prefix of its nodes' names.
            body: the enclosing scope.
        """
        values: dict[str, str | None] = {}
        for info, operand in zip(graph.input, operands, strict=True):
            values[info.name] = operand
        values.update(self._initializers(graph))
        inner = NameScope(
            ChainMap(values, body.values),
            body.opsets,
            body.attributes,
            prefix,
            _deeper(body, prefix),
            body.spelled,
        )
        wanted = [info.name for info in graph.output]
        self.run(graph, wanted, inner)
        return [_defined(inner, value, prefix) for value in wanted]

    def _initializers(self, graph: GraphProto) -> dict[str, str]:
        """Add the initializers of a subgraph as constants; returns their values by ONNX name."""
        values = {}
        for tensor in graph.initializer:
            found = read_tensor(tensor, self._folder, f"initializer '{tensor.name}'")
            values[tensor.name] = self._builder.constant(
                found.array,
                tensor.name,
                found.dtype,
                narrow=found.narrow,
                labels=found.labels,
            )
        return values

    def _resolved(self, proto: NodeProto, body: NameScope) -> NodeProto:
        """A node of a function body, with references to the call's attributes replaced by values.

        A reference to an attribute that the call does not have is removed.
        """
        if not any(attribute.ref_attr_name for attribute in proto.attribute):
            return proto
        resolved = NodeProto()
        resolved.CopyFrom(proto)
        del resolved.attribute[:]
        for attribute in proto.attribute:
            if not attribute.ref_attr_name:
                resolved.attribute.append(attribute)
            elif attribute.ref_attr_name in body.attributes:
                copy = resolved.attribute.add()
                copy.CopyFrom(body.attributes[attribute.ref_attr_name])
                copy.name = attribute.name
        return resolved

    def _attributes(
        self, proto: NodeProto, name: str, body: NameScope, *, graphs: bool = True
    ) -> dict[str, OnnxAttr]:
        """The attributes of a node as Python values, by name.

        References to a function call's attributes are resolved. If `graphs` is false, attributes
        that are subgraphs are skipped.
        """
        return {
            attribute.name: self._attribute(attribute, proto, name, body)
            for attribute in self._resolved(proto, body).attribute
            if graphs or not attribute.HasField("g")
        }

    def _attribute(
        self, attribute: AttributeProto, node: NodeProto, name: str, body: NameScope
    ) -> OnnxAttr:
        what = f"{node.op_type} '{name}': attribute '{attribute.name}'"
        match attribute.type:
            case AttributeProto.FLOAT:
                return float(attribute.f)
            case AttributeProto.INT:
                return int(attribute.i)
            case AttributeProto.STRING:
                return str(attribute.s.decode(errors="replace"))
            case AttributeProto.TENSOR:
                return read_tensor(attribute.t, self._folder, what)
            case AttributeProto.FLOATS:
                return tuple(float(item) for item in attribute.floats)
            case AttributeProto.INTS:
                return tuple(int(item) for item in attribute.ints)
            case AttributeProto.STRINGS:
                return tuple(str(item.decode(errors="replace")) for item in attribute.strings)
            case _:
                raise UnsupportedOperatorError(
                    name,
                    node.op_type,
                    node.domain,
                    body.opsets.get(domain_of(node.domain), 0),
                    f"attribute '{attribute.name}' is a graph, a type or a sparse tensor",
                )


def subgraph(proto: NodeProto, key: str, name: str) -> GraphProto:
    """Return the graph in the attribute `key` of a node.

    `name` is the node's name in the error.

    Raises:
        InvalidModelError: if the attribute is missing or is not a graph.
    """
    for attribute in proto.attribute:
        if attribute.name == key and attribute.HasField("g"):
            return attribute.g
    raise InvalidModelError(f"{proto.op_type} '{name}': attribute '{key}' is missing")


def _defined(body: NameScope, value: str, name: str) -> str:
    """The graph value of a body's output; `value` is the output's ONNX name.

    `name` is the name of the node that has the body, for the error.

    Raises:
        InvalidModelError: if nothing in the body defines the output.
    """
    found = body.values.get(value)
    if found is None:
        raise InvalidModelError(f"node '{name}': output '{value}' of its body is not defined")
    return found


def _deeper(body: NameScope, name: str) -> int:
    if body.depth >= DEPTH_LIMIT:
        raise InvalidModelError(f"node '{name}' lies within more than {DEPTH_LIMIT} others")
    return body.depth + 1


NESTED_STEPS = 16
"""Assumed number of steps of a loop inside another loop, if the actual number is not known yet."""


def _weight(graph: GraphProto) -> int:
    """The number of nodes that one import of a body creates, at least 1.

    The nodes of a Loop or Scan inside the body count NESTED_STEPS times, because the number of
    steps is not known yet.
    """
    total = 0
    for node in graph.node:
        inner = sum(_weight(a.g) for a in node.attribute if a.HasField("g"))
        total += 1 + inner * (NESTED_STEPS if node.op_type in ("Loop", "Scan") else 1)
    return max(total, 1)
