"""Digests of what the compiler emits (`benchmarks.digests`): the file is whole, and a sample of it.

`make digests` compares all of it, `make digests ARGS=--update` writes it anew.
"""

from __future__ import annotations

import pytest

from benchmarks.digests import differences, digest_model, read_file
from tilewright.compiler.targets.target import known_targets

SAMPLE = {
    "small-encoder": "x86-64-v3",  # open sizes
    "small-branches": "neoverse-v1",
    "small-boxes": "cortex-a72",  # native functions
    "control-collatz-100": "riscv64",
    "exported-gpt2-decode": "x86-64-v3",  # caches that grow
    "quantised-int4-blocks-17": "znver4",
    "quantised-dynamic-uint8-18": "neoverse-v1",
    "stages-chosen-rows": "riscv64",
    "mlp": "wasm32",
    "c3d-small": "znver4",
}


@pytest.mark.parametrize("model", SAMPLE)
def test_nothing_has_changed(model: str) -> None:
    target = SAMPLE[model]
    found = digest_model(model, known_targets()[target]).digests()
    assert differences(read_file()[0], {(model, target): found}) == []


def test_a_difference_names_the_parts() -> None:
    digests, _ = read_file()
    pair = "mlp", "wasm32"
    changed = {pair: {**digests[pair], "kernels": "0", "plan": "0"}}
    (line,) = differences(digests, changed)
    assert line.startswith("mlp wasm32 (") and line.endswith("): plan, kernels")
    assert differences({}, changed) == ["mlp wasm32: not in the file"]
