"""Finds the inputs whose random values make a model fail, and names them in the error message.

A random value may select a branch that cannot run, or a loop that does not end. The user must then
give values for these inputs. `check_draws` finds such branches before tuning, if their conditions
can be computed quickly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from tilewright.compiler.errors import InvalidInputError
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.control import NOT_ENDED
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.passes.dead_code import dead_code
from tilewright.service.jobs.evidence.verification import input_ports
from tilewright.service.jobs.plan.planning import Planned
from tilewright.tuner.measure.model_runs import draw_inputs

FEW = 1 << 20
"""Limit of the number of elements that are computed to evaluate a condition before the tuning."""


@contextmanager
def named_inputs(plans: Sequence[Planned]) -> Iterator[None]:
    """A context for running a model on random inputs, which adds the inputs' names to an error.

    Args:
        plans: the plans of the model.

    Raises:
        InvalidInputError: if the block raises it; the message then names the inputs that the user
            must give.
    """
    try:
        yield
    except InvalidInputError as error:
        raise with_inputs(error, plans) from error


def check_draws(plans: Sequence[Planned]) -> None:
    """Check that the model's random inputs do not select a branch that cannot run.

    A job first verifies the model on these random inputs. A branch is checked only if its condition
    can be computed with few operations.

    Args:
        plans: the plans of the model, one per size or per program of the model.

    Raises:
        InvalidInputError: if the inputs select a branch that cannot run; the message names the
            inputs that the user must give.
    """
    for planned in plans:
        message = "" if planned.stages is not None else _refusal(planned)
        if message:
            raise with_inputs(InvalidInputError(message), plans)


def with_inputs(error: InvalidInputError, plans: Sequence[Planned]) -> InvalidInputError:
    """Return an error whose message adds which random inputs caused it, and how to give real ones.

    An error that does not depend on a random input is returned unchanged.

    Args:
        error: the error of a run on random inputs.
        plans: the plans of the model.
    """
    for planned in plans:
        random = _random_inputs(planned)
        names = [name for name in deciding_inputs(planned.graph, str(error)) if name in random]
        if names:
            values = " ".join(f"--value '{name}=NUMBER'" for name in names)
            listed = ", ".join(f"'{name}'" for name in names)
            return InvalidInputError(
                f"{error}; this depends on the random values of {listed}: "
                f"give {values}, or real inputs with --samples"
            )
    return error


def deciding_inputs(graph: Graph, message: str) -> tuple[str, ...]:
    """Return the inputs whose values determine whether a run fails with a certain message.

    Args:
        graph: the model's graph.
        message: the error message of the run.
    """
    pending = [value for node in graph.nodes for value in _deciding(node, message)]
    seen = set(pending)
    while pending:
        node = graph.producer(pending.pop())
        if node is not None:
            pending += [value for value in node.inputs if value not in seen]
            seen.update(node.inputs)
    return tuple(value for value in graph.inputs if value in seen)


def _deciding(node: Node, message: str) -> Collection[str]:
    """Return the operands whose values determine whether a loop or branch fails with a message.

    The result is empty if the node cannot fail with this message.
    """
    if node.op == "loop" and NOT_ENDED in message:
        return node.inputs
    for body in node.bodies:
        if any(text in message for text in _refusals(body)):
            return node.inputs[:1]
        if any(text in message for inner in body.walk() for text in _refusals(inner)):
            return node.inputs
    return ()


def _refusals(body: Graph) -> list[str]:
    """Return the messages of the nodes in a body that always end the run with an error.

    Such a node represents a branch that cannot run, or a failed check of a size.
    """
    return [str(node.attr("message")) for node in body.nodes if node.op == "refuse"]


def _random_inputs(planned: Planned) -> frozenset[str]:
    """Return the names of a plan's inputs that the user did not give.

    The result is empty for a model that runs as several programs one after the other. The inputs of
    such a program are values that earlier programs computed.
    """
    if planned.stages is not None:
        return frozenset()
    provided = planned.request.given.provided(input_ports(planned))
    return frozenset(planned.graph.inputs) - provided.keys()


def _refusal(planned: Planned) -> str:
    """Return the error message if the random inputs select a branch that cannot run, or else "".

    A branch is checked only if its condition can be computed with few operations.
    """
    graph, ports = planned.graph, input_ports(planned)
    given = planned.request.given.provided(ports)
    for node in graph.nodes:
        if node.op != "branch" or not any(map(_refusals, node.bodies)):
            continue
        condition = dead_code(graph.replace(outputs=node.inputs[:1]))
        read = {*node.inputs[:1], *(value for each in condition.nodes for value in each.inputs)}
        inputs = [port for port in ports if port.name in read]
        made = [value for each in condition.nodes for value in each.outputs]
        elements = sum(
            condition.types[value].elements for value in (*made, *(p.name for p in inputs))
        )
        if elements > FEW or any(each.bodies for each in condition.nodes):
            continue
        condition = condition.replace(inputs=[port.name for port in inputs])
        arrays = {p.name: given[p.name] for p in inputs if p.name in given}
        (chosen,) = run_graph(condition, {**draw_inputs(inputs), **arrays})
        refused = _refusals(_chosen(node, bool(chosen)))
        if refused:
            return refused[0]
    return ""


def _chosen(node: Node, condition: bool) -> Graph:
    body = node.attr("then" if condition else "otherwise")
    assert isinstance(body, Graph)
    return body
