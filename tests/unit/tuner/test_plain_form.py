"""Requests expanded for devices without NumPy: their plan states where every element goes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.layout import strides
from tilewright.compiler.runtime.kernel import BufferRole, BufferSpec
from tilewright.compiler.runtime.packing import make_weight, pack
from tilewright.tuner.measure.plain_form import PlainForms
from tilewright.tuner.protocol.batches import Candidate, Case, InputSpec, MeasureRequest
from tilewright.tuner.protocol.blobs import digest_bytes
from tilewright.tuner.protocol.measurement import RecordKey

SHAPE = (4, 5, 6)
LAYOUTS = ["row", "2 0 1", "1 0/3 2/4 0%3 2%4", "0+7 1 2", "0/2 1 2 0%2+3"]
HALO = ((1, 2), (0, 0), (3, 1))


def request_for(*specs: BufferSpec, case: Case | None = None) -> MeasureRequest:
    """A batch of one candidate with these buffers and an output."""
    output = BufferSpec("y", BufferRole.OUTPUT, specs[0].dtype, (3,), "row", (), 12)
    kernel = {
        "abi": 1,
        "name": "k",
        "stages": [["k", "n"]],
        "buffers": [each.to_json() for each in (*specs, output)],
        "scratch_bytes": 64,
        "sizes": {"n": "1..8"},
    }
    inputs = (InputSpec(SHAPE, "float32", 3),)
    case = case or Case(inputs, "e" * 64, (("n", 7),))
    candidate = Candidate("t", {}, "s", kernel)
    return MeasureRequest("r", RecordKey("w", "t"), (candidate,), "f" * 64, (case,), 1e-4)


def buffer(
    layout: str, halo: Any = (), role: BufferRole = BufferRole.INPUT, **more: Any
) -> BufferSpec:
    spec = BufferSpec(
        "x", role, more.pop("dtype"), more.pop("shape", SHAPE), layout, halo, 0, 0, **more
    )
    size = strides(spec.shape, spec.parsed_layout(), halo)[1] * spec.dtype.bytes
    return replace(spec, bytes=size)


def put(said: dict[str, Any], blobs: dict[str, bytes], dtype: Any) -> np.ndarray:
    """The array that a device builds from a plan: one sum of table entries for each element."""
    values = np.frombuffer(blobs[said["array"]], dtype)
    made = np.zeros(said["elements"], dtype)
    for value, place in zip(values, np.ndindex(*said["shape"]), strict=True):
        position = 0
        for dim, divisor, modulus, step in said["factors"]:
            low = said["halo"][dim][0] if said["halo"] else 0
            digit = (place[dim] + low) // divisor
            position += step * (digit % modulus if modulus else digit)
        made[position] = value
    return made


@pytest.mark.parametrize("halo", [(), HALO], ids=["", "halo"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_elements_go_where_numpy_packs_them(layout: str, halo: Any) -> None:
    spec = buffer(layout, halo, dtype=DType.FLOAT32)
    request, blobs = PlainForms().batch(request_for(spec))
    ((kernel,),) = json.loads(blobs[request.plain[0]])["cases"]
    (drawn,) = (each.draw() for each in request.cases[0].inputs)
    expected = pack(drawn, SHAPE, spec.parsed_layout(), halo)
    assert np.array_equal(put(kernel["buffers"][0], blobs, np.float32), expected)
    assert kernel["stages"] == [["k", 7]] and kernel["sizes"] == [7]
    assert kernel["buffers"][1]["array"] == ""
    assert {digest_bytes(data) for data in blobs.values()} == set(request.plain) == blobs.keys()
    assert set(request.plain) <= set(request.digests)
    assert MeasureRequest.from_json(request.to_json()) == request


def test_a_weight_that_is_transformed_arrives_transformed() -> None:
    """Candidates that lay one transform differently share its array."""
    matrix = ((1.0, 0.5, 0.0, 2.0), (0.0, 1.0, -1.0, 0.0))
    specs = [
        buffer(
            layout,
            role=BufferRole.WEIGHT,
            dtype=DType.FLOAT32,
            shape=(2, 5, 6),
            einsum="pa,abc->pbc",
            matrices=(matrix,),
        )
        for layout in ("row", "2/4 1 0 2%4")
    ]
    request, blobs = PlainForms().batch(request_for(*specs))
    ((kernel,),) = json.loads(blobs[request.plain[0]])["cases"]
    drawn = request.cases[0].inputs[0].draw()
    for spec, said in zip(specs, kernel["buffers"], strict=False):
        assert np.array_equal(put(said, blobs, np.float32), make_weight(spec, drawn))
    assert len(request.plain) == 2, "the plan, and one array"


def test_batches_of_a_workload_share_what_was_drawn() -> None:
    forms = PlainForms()
    request = request_for(buffer("row", dtype=DType.FLOAT32))
    first, blobs = forms.batch(request)
    again, more = forms.batch(replace(request, request_id="other"))
    assert first.plain == again.plain
    assert blobs[first.plain[1]] is more[again.plain[1]]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({}, "name: is missing"),
        ({"sizes": {"n": "1..6"}}, r"expected 1\.\.6"),
        ({"sizes": {"n": "1..8", "m": "1..8"}}, "dimension 'm'"),
        ({"buffers": [buffer("row", dtype=DType.FLOAT32).to_json() | {"source": 1}]}, "no input 1"),
    ],
)
def test_a_candidate_that_is_no_kernel_fails_alone(spec: dict[str, Any], why: str) -> None:
    request = request_for(buffer("row", dtype=DType.FLOAT32))
    (good,) = request.candidates
    bad = replace(good, trial_id="bad", spec={**good.spec, **spec} if spec else {"abi": 1})
    plain, blobs = PlainForms().batch(replace(request, candidates=(bad, good)))
    ((first, second),) = json.loads(blobs[plain.plain[0]])["cases"]
    assert re.search(why, first["error"]) and "buffers" not in first
    assert "error" not in second and len(second["buffers"]) == 2


def test_the_limit_of_random_arrays_is_that_of_each_case() -> None:
    request = request_for(buffer("row", dtype=DType.FLOAT32))
    request = replace(request, cases=request.cases * 2)
    forms = PlainForms()
    assert forms.expanded(request, lambda _: b"", 120)[0].plain
    with pytest.raises(ValueError, match="120 elements are more than the 119"):
        forms.expanded(request, lambda _: b"", 119)
