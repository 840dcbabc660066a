"""Recordings of tuning runs for `tuner.replay`, and conversion of their parts to and from JSON."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.device import DeviceFacts
from tilewright.tuner.events import TaskInputs
from tilewright.tuner.measure.points import ITSELF, SizePoint
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.protocol.batches import MeasureRequest
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Trial, TuningRecord

_STORED = {"estimates": "draft"}
"""Names of options in recordings, if they differ from the present names, so that recordings of
earlier releases can be read."""


class ReplayError(CompilerError):
    """Raised if a run cannot be replayed.

    Either the run did not end, or the code that makes a run's decisions has changed since then.
    """


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """All inputs that determined the decisions of a tuning run.

    If the process of a run was killed and another one continued, the recording is of the last
    process. The trials of the earlier processes are then in `known`.

    Attributes:
        options: the settings of the run.
        inputs: the data about each task at the start.
        journal: the order in which batches were sent and their results processed
            (`tuner.pipeline`).
        known: the trials in the store at the start, oldest first, by record key.
        trials: the trials of the run.
        adopted: requests of an earlier process whose results the run awaited.
    """

    options: TuneOptions
    inputs: tuple[TaskInputs, ...]
    journal: tuple[int, ...]
    known: Mapping[RecordKey, Sequence[Trial]] = field(default_factory=dict)
    trials: Sequence[Trial] = ()
    adopted: Sequence[MeasureRequest] = ()


def options_to_json(options: TuneOptions) -> dict[str, Any]:
    """Convert the settings of a run to a JSON object.

    The saved cost model from which the run starts (`base_model`) is compressed and base64-encoded.
    """
    packed = base64.b64encode(zlib.compress(options.base_model)).decode()
    device = options.device and options.device.to_json()
    plain = {**asdict(options), "base_model": packed, "device": device}
    return {_STORED.get(name, name): value for name, value in plain.items()}


def options_from_json(data: Mapping[str, Any]) -> TuneOptions:
    """Convert a JSON object created by `options_to_json` back to the settings of a run.

    Raises:
        ReplayError: if it has an option that does not exist in this release.
        InvalidFactsError: if the description of the device is not valid.
    """
    names = {_STORED.get(f.name, f.name): f.name for f in fields(TuneOptions)}
    unknown = set(data) - set(names)
    if unknown:
        raise ReplayError(f"options of another release: {', '.join(sorted(unknown))}")
    base_model = zlib.decompress(base64.b64decode(data["base_model"]))
    known = data.get("device")
    device = None if known is None else DeviceFacts.from_json(known)
    found = {names[stored]: value for stored, value in data.items()}
    return TuneOptions(**{**found, "base_model": base_model, "device": device})


def inputs_to_json(inputs: TaskInputs) -> dict[str, Any]:
    """Convert the data about a task to a JSON object."""
    return {
        "key": inputs.key.to_json(),
        "name": inputs.name,
        "count": inputs.count,
        "scale": inputs.scale,
        "known_trials": inputs.known_trials,
        "bound_seconds": inputs.bound_seconds,
        "points": [asdict(point) | {"sizes": dict(point.sizes)} for point in inputs.points],
        "incumbent": _record_to_json(inputs.incumbent),
        "relative": _record_to_json(inputs.relative),
    }


def inputs_from_json(data: Mapping[str, Any]) -> TaskInputs:
    """Convert a JSON object created by `inputs_to_json` back to the data about a task."""
    key = RecordKey.from_json(data["key"])
    return TaskInputs(
        key,
        str(data["name"]),
        int(data["count"]),
        int(data["known_trials"]),
        _record_from_json(data["incumbent"], key),
        float(data["bound_seconds"]),
        tuple(
            SizePoint(**{**point, "sizes": tuple(point["sizes"].items())})
            for point in data.get("points", ())
        )
        or ITSELF,
        _record_from_json(data.get("relative"), key),
        float(data.get("scale", 1.0)),
    )


def _record_to_json(record: TuningRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "key": record.key.to_json(),
        "schedule": record.schedule.to_json(),
        "measurement": record.measurement.to_json(),
        "trial_id": record.trial_id,
        "codegen_version": record.codegen_version,
        "compiler_version": record.compiler_version,
    }


def _record_from_json(kept: Mapping[str, Any] | None, key: RecordKey) -> TuningRecord | None:
    """Decode a record from its JSON object; return None for None.

    `key` is the record key to use if the object has none, as in recordings of earlier releases.
    """
    if kept is None:
        return None
    return TuningRecord(
        RecordKey.from_json(kept["key"]) if "key" in kept else key,
        Schedule.from_json(kept["schedule"]),
        Measurement.from_json(kept["measurement"]),
        kept["trial_id"],
        kept["codegen_version"],
        kept["compiler_version"],
    )
