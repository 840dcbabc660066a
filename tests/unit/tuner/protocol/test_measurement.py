"""JSON forms of stored and sent values: they read back equal, and refuse unknown fields."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.compiler.schedule.schedule import Schedule
from tilewright.tuner.measure.speed import Speed
from tilewright.tuner.measure.statistics import Comparison
from tilewright.tuner.protocol.batches import (
    Candidate,
    Case,
    Distribution,
    InputSpec,
    MeasureRequest,
    MeasureResult,
    RepeatSettings,
)
from tilewright.tuner.protocol.blobs import array_to_bytes
from tilewright.tuner.protocol.measurement import (
    Measurement,
    Phase,
    RecordKey,
    Status,
    TuningRecord,
    trial_id,
)
from tilewright.tuner.protocol.version import PROTOCOL, ProtocolError

finite = st.floats(0, 1e6, allow_nan=False)
text = st.text(max_size=12)

keys = st.builds(RecordKey, text, text, st.integers(1, 64), st.sampled_from(["fast", "strict"]))
measurements = st.builds(
    Measurement,
    status=st.sampled_from(Status),
    error=text,
    samples_seconds=st.lists(finite, max_size=4).map(tuple),
    max_error=st.none() | finite,
    tolerance=finite,
    seeds=st.lists(st.integers(0, 2**31), max_size=3).map(tuple),
    reference_digest=text,
    object_digest=text,
    build_seconds=finite,
    measure_seconds=finite,
    worker=text,
    device=st.dictionaries(text, text | st.integers(), max_size=3),
    measured_at=finite,
    checks=st.integers(0, 9),
    comparison=st.none()
    | st.builds(Comparison, text, st.lists(finite, min_size=1, max_size=4).map(tuple)),
    speed=st.none() | st.builds(Speed, finite, finite, finite, finite),
)
inputs = st.builds(
    InputSpec,
    st.lists(st.integers(1, 4), max_size=3).map(tuple),
    st.sampled_from(["float32", "int64", "bool", "bfloat16", "float16", "uint8"]),
    st.integers(0, 2**31),
    st.sampled_from(Distribution),
    st.floats(0, 8, width=32),
    st.integers(0, 3),
    st.integers(4, 9),
)
candidates = st.builds(
    Candidate,
    text,
    st.dictionaries(text, text, max_size=2),
    text,
    st.dictionaries(text, text, max_size=2),
    text,
    finite,
)
requests = st.builds(
    MeasureRequest,
    request_id=text,
    key=keys,
    candidates=st.lists(candidates, max_size=3).map(tuple),
    library_digest=text,
    cases=st.lists(
        st.builds(Case, st.lists(inputs, max_size=3).map(tuple), text), min_size=1, max_size=3
    ).map(tuple),
    tolerance=finite,
    incumbent=text,
    repeat=st.builds(
        RepeatSettings,
        st.integers(1, 20),
        finite,
        finite,
        finite,
        finite,
        st.none() | finite,
        finite,
        st.integers(0, 99),
    ),
    phase=st.sampled_from(Phase),
    job_id=text,
    codegen_version=text,
)


@given(requests)
def test_requests_read_back_equal(request: MeasureRequest) -> None:
    assert MeasureRequest.from_json(json.loads(json.dumps(request.to_json()))) == request


@given(st.lists(st.tuples(text, measurements), max_size=3), text)
def test_results_read_back_equal(measured: list[tuple[str, Measurement]], worker: str) -> None:
    result = MeasureResult("r", tuple(measured), worker)
    assert MeasureResult.from_json(json.loads(json.dumps(result.to_json()))) == result


@given(keys)
def test_keys_read_back_equal(key: RecordKey) -> None:
    assert RecordKey.from_json(json.loads(json.dumps(key.to_json()))) == key


@given(inputs)
def test_inputs_are_drawn_alike_every_time(spec: InputSpec) -> None:
    first = spec.draw()
    assert first.shape == spec.shape
    assert first.dtype == (np.uint16 if spec.dtype == "bfloat16" else np.dtype(spec.dtype))
    assert np.array_equal(first, InputSpec.from_json(spec.to_json()).draw(), equal_nan=False)


@pytest.mark.parametrize("version", [0, 1, PROTOCOL - 1, PROTOCOL + 1, None, str(PROTOCOL)])
def test_another_protocol_version_is_refused(version: object) -> None:
    for reader in (MeasureRequest, MeasureResult):
        with pytest.raises(ProtocolError, match="protocol version"):
            reader.from_json({"protocol": version})


@pytest.mark.parametrize(
    "data", [{"protocol": PROTOCOL}, {"protocol": PROTOCOL, "key": 3}, [], "x"]
)
def test_malformed_messages_are_refused(data: object) -> None:
    for reader in (MeasureRequest, MeasureResult):
        with pytest.raises(ProtocolError):
            reader.from_json(data)  # type: ignore[arg-type]


def test_arrays_travel_without_pickles() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    stored = io.BytesIO(array_to_bytes(array))
    assert np.array_equal(np.load(stored, allow_pickle=False), array)


def test_only_a_success_has_a_time() -> None:
    samples = (3e-6, 1e-6, 2e-6)
    assert Measurement(Status.OK, samples_seconds=samples).run_seconds == 1e-6
    assert Measurement(Status.WRONG_ANSWER, samples_seconds=samples).run_seconds is None
    record = TuningRecord(RecordKey("w", "t"), Schedule("a"), Measurement(Status.CRASH))
    with pytest.raises(ValueError, match="crash"):
        _ = record.run_seconds


def test_trial_ids_tell_apart_what_differs_and_nothing_else() -> None:
    key = RecordKey("w", "t")
    base = trial_id(key, "s", Phase.SCREEN, "job")
    assert base == trial_id(RecordKey("w", "t", 1, "fast"), "s", Phase.SCREEN, "job", 0)
    others = [
        trial_id(RecordKey("w", "t", 2), "s", Phase.SCREEN, "job"),
        trial_id(key, "z", Phase.SCREEN, "job"),
        trial_id(key, "s", Phase.FINAL, "job"),
        trial_id(key, "s", Phase.SCREEN, "job2"),
        trial_id(key, "s", Phase.SCREEN, "job", 1),
    ]
    assert len({base, *others}) == 6


def test_what_says_nothing_of_the_candidate() -> None:
    silent = {s for s in Status if not s.says_something_of_the_candidate}
    assert silent == {Status.NO_REFERENCE, Status.WORKER_LOST, Status.CANCELLED}
