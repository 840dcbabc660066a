"""Digests of everything that the compiler emits (`benchmarks.digests`), for a sample of the models.

`make digests` compares all of it, `make digests ARGS=--update` writes it anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest

from benchmarks import digests
from benchmarks.digest_models import DIGESTED
from benchmarks.digests import (
    canonical,
    differences,
    digest_model,
    read_file,
    targets_of,
)
from benchmarks.plain import mlp
from tilewright.compiler import driver
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.target import known_targets

SAMPLE = {
    "small-encoder": "x86-64-v3",  # open sizes
    "small-branches": "neoverse-v1",
    "small-boxes": "cortex-a72",  # native functions
    "small-perceptron": "znver4",  # another schedule for each piece of a range
    "control-collatz-100": "rv64gc",
    "exported-gpt2-decode": "x86-64-v2",  # caches that grow
    "quantised-int4-blocks-17": "cascadelake",
    "quantised-dynamic-uint8-18": "armv8.2-a",
    "stages-chosen-rows": "riscv64",
    "mlp": "wasm32",
    "c3d-small": "haswell",
}


def test_the_file_is_whole() -> None:
    known, occurred = read_file()
    assert list(known) == [(model, target) for model in DIGESTED for target in targets_of(model)]
    assert digests.required() <= occurred


def test_sixty_models_are_compiled_for_all_targets() -> None:
    targets = list(known_targets())
    assert sum(targets_of(model) == targets for model in DIGESTED) >= 60


@pytest.mark.parametrize("model", SAMPLE)
def test_nothing_has_changed(model: str) -> None:
    found = digest_model(model, known_targets()[SAMPLE[model]]).digests()
    assert differences(read_file()[0], {(model, SAMPLE[model]): found}) == []


def parts_that_differ(model: str, other: object, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts of a model's digests that differ in another build of it."""
    target = known_targets()["x86-64-v3"]
    before = digest_model(model, target).digests()
    monkeypatch.setitem(DIGESTED, model, replace(DIGESTED[model], builds={"": other}))
    digests._read.cache_clear()
    after = digest_model(model, target).digests()
    digests._read.cache_clear()
    return [part for part, digest in before.items() if after[part] != digest]


def test_digests_tell_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parts_that_differ("mlp", mlp, monkeypatch) == []
    weights = partial(mlp, seed=1)
    assert parts_that_differ("mlp", weights, monkeypatch) == ["plan"]
    wider = partial(mlp, seed=1, widths=(784, 512, 640, 10))
    assert {"plan", "kernels", "program"} <= set(parts_that_differ("mlp", wider, monkeypatch))


def renamed(graph: Graph) -> Graph:
    """The graph with other names for its nodes and for the values that are invisible to callers."""

    def name(value: str) -> str:
        return value if value in (*graph.inputs, *graph.outputs) else f"other {value}"

    def named(values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(name, values))

    def of_mapping(values: Mapping[str, object]) -> dict[str, object]:
        return {name(value): each for value, each in values.items()}

    nodes = [
        replace(n, name=f"other {n.name}", inputs=named(n.inputs), outputs=named(n.outputs))
        for n in graph.nodes
    ]
    return graph.replace(
        nodes=nodes, types=of_mapping(graph.types), constants=of_mapping(graph.constants)
    )


def test_names_of_values_do_not_matter() -> None:
    mode = Mode(known_targets()["x86-64-v3"])
    graph = driver.optimise(driver.load_graph(mlp()), mode)
    plans = [driver.make_plan(each, mode) for each in (graph, renamed(graph))]
    assert plans[0].to_json() != plans[1].to_json()
    assert canonical(plans[0])[0].to_json() == canonical(plans[1])[0].to_json()


def test_a_difference_names_the_parts() -> None:
    known, _ = read_file()
    pair = "mlp", "wasm32"
    changed = {pair: {**known[pair], "kernels": "0", "plan": "0"}}
    (line,) = differences(known, changed)
    assert line.startswith("mlp wasm32 (") and line.endswith("): plan, kernels")
    assert differences({}, changed) == ["mlp wasm32: not in the file"]
