"""Writes a tuning record as a signed line of JSON, and reads such a line.

A line is self-contained: it has the text of the workload, the target, the schedule, and the
measurements with their device. The reader computes the keys from these. The signature covers the
canonical JSON of the entry `record`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.limits import MAX_THREADS
from tilewright.compiler.mode import NUMERICS
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.target import Target
from tilewright.db.types import canonical_json
from tilewright.service.signing import SigningKey, is_public_key, is_signed
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, TuningRecord
from tilewright.tuner.random_sizes import points_at

FORMAT = 1

LONGEST_LINE = 4 << 20
"""Largest accepted length of one line of an imported file, in characters."""


class RecordLineError(CompilerError):
    """A line is not a valid record, or has no valid signature; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class RecordLine:
    """A tuning record with the other data that its line in an export contains.

    Attributes:
        record: the record.
        workload: the text of the workload.
        target: the target.
        confirmation: the second measurement; None if there is only one.
        stored_at: the time when the record was stored, in Unix seconds.
        signer: the public key that signed the line; "" before it is signed.
    """

    record: TuningRecord
    workload: str
    target: Target
    confirmation: Measurement | None
    stored_at: float
    signer: str = ""


def write_line(line: RecordLine, key: SigningKey) -> str:
    """Return a record as a signed line of JSON, without the newline."""
    record = line.record
    content = {
        "format": FORMAT,
        "workload": line.workload,
        "target": line.target.to_json(),
        "threads": record.key.threads,
        "numerics": record.key.numerics,
        "schedule": record.schedule.to_json(),
        "measurement": record.measurement.to_json(),
        "confirmation": None if line.confirmation is None else line.confirmation.to_json(),
        "trial_id": record.trial_id,
        "codegen_version": record.codegen_version,
        "compiler_version": record.compiler_version,
        "stored_at": line.stored_at,
    }
    text = canonical_json(content)
    by = canonical_json({"signer": key.public, "signature": key.sign(text.encode())})
    return f'{{"record":{text},{by[1:]}'


def read_line(text: str) -> RecordLine:
    """Read a record from a line and check its signature.

    The caller decides whether the signer is trusted.

    Raises:
        RecordLineError: if the line or its signature is invalid.
    """
    if len(text) > LONGEST_LINE:
        raise RecordLineError(f"a line of {len(text)} characters, {LONGEST_LINE} are the most")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordLineError("it is not JSON") from error
    if not isinstance(data, dict) or not isinstance(data.get("record"), dict):
        raise RecordLineError("it is not a tuning record")
    content, signer, signature = data["record"], data.get("signer"), data.get("signature")
    if not isinstance(signer, str) or not isinstance(signature, str) or not is_public_key(signer):
        raise RecordLineError("it has no signature")
    if not is_signed(canonical_json(content).encode(), signature, signer):
        raise RecordLineError(f"it does not match the signature of '{signer}'")
    if content.get("format") != FORMAT:
        raise RecordLineError(f"format {content.get('format')!r}, this release reads {FORMAT}")
    try:
        return replace(_line(content), signer=signer)
    except CompilerError as error:
        raise RecordLineError(str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise RecordLineError(f"a field is missing or wrong: {error}") from error


def _line(content: Mapping[str, Any]) -> RecordLine:
    workload = Workload.parse(content["workload"])
    if workload.text() != content["workload"]:
        raise ValueError("the workload's text is not canonical")
    target = Target.from_json(content["target"])
    threads, numerics = content["threads"], content["numerics"]
    if type(threads) is not int or not 1 <= threads <= MAX_THREADS or numerics not in NUMERICS:
        raise ValueError("threads or numerics are invalid")
    record = TuningRecord(
        RecordKey(workload.key, target.key, threads, numerics),
        Schedule.from_json(content["schedule"]),
        _certified(Measurement.from_json(content["measurement"]), workload),
        _name(content["trial_id"]),
        _name(content["codegen_version"]),
        _name(content["compiler_version"]),
    )
    second = content["confirmation"]
    return RecordLine(
        record,
        workload.text(),
        target,
        None if second is None else Measurement.from_json(second),
        float(content["stored_at"]),
    )


def _certified(measurement: Measurement, workload: Workload) -> Measurement:
    """Check that a measurement is sufficient for a tuning record, and return it unchanged.

    Args:
        measurement: the measurement from a line of an imported file.
        workload: the workload that was measured.

    Raises:
        ValueError: if the measurement has no certificate of correct results, if a time is not
            positive, or if the measured sizes do not fit the workload's dynamic dimensions.
    """
    if not measurement.certified:
        raise ValueError(f"the measurement has no certificate: {measurement.status}")
    samples = measurement.samples_seconds
    if not samples or not all(math.isfinite(s) and s > 0 for s in samples):
        raise ValueError("the measurement's times are not positive numbers")
    at_sizes = points_at(workload, measurement.distribution)
    if bool(workload.dimensions) != bool(at_sizes) or len(at_sizes) != len(measurement.at_sizes):
        raise ValueError("the measurement is not at sizes of the workload")
    return measurement


def _name(value: object) -> str:
    if not isinstance(value, str) or len(value) > 200:
        raise ValueError("a name is not text, or is too long")
    return value
