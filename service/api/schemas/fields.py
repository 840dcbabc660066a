"""Types of fields that several request and response bodies have."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from tilewright.compiler.limits import LARGEST_SIZE, MAX_THREADS
from tilewright.compiler.targets.target import known_targets

# Examples for the description of the interface.
SHOWN_KEY = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
SHOWN_ID = "0f8fad5bd9cb469fa16570867728950e"
_TARGET = next(iter(known_targets().values()))
SHOWN_TARGET = _TARGET.name
SHOWN_DESCRIPTION = _TARGET.to_json()
SHOWN_TIME = 1_795_348_800.0
SHOWN_SCHEDULE = {"algorithm": "direct", "choices": {"tile_m": 4, "tile_n": 16, "parallel": 1}}
SHOWN_MEASUREMENT = {
    "status": "ok",
    "error": "",
    "samples_seconds": [0.000121, 0.000124],
    "max_error": 1.2e-07,
    "tolerance": 0.0001,
    "seeds": [1, 2, 3],
    "reference_digest": SHOWN_KEY,
    "object_digest": SHOWN_KEY,
    "build_seconds": 0.04,
    "measure_seconds": 0.2,
    "worker": SHOWN_ID,
    "device": {"model": "AMD EPYC", "cores": 8},
    "measured_at": SHOWN_TIME,
    "checks": 3,
    "comparison": None,
    "speed": None,
    "at_sizes": [],
}
SHOWN_DEVICE = {
    "model": "AMD EPYC",
    "architecture": _TARGET.family.name,
    "system": "Linux",
    "cores": 8,
}

Digest = Annotated[
    str,
    Field(pattern="^[0-9a-f]{64}$", description="SHA-256 in hexadecimal", examples=[SHOWN_KEY]),
]

Size = Annotated[int, Field(ge=1, le=LARGEST_SIZE)]


Threads = Annotated[int, Field(ge=1, le=MAX_THREADS)]


SizeRange = Annotated[str, Field(max_length=400, examples=["1..512@32:0.5,128:0.3"])]
"""Size range of a dimension as text: `1..512`, `32..640:32` (multiples of 32), `1..` (no upper
bound), `1..512@8,128` (with size hints) or `@128` (size hints alone). `size_choices` parses the
text; its errors name the dimension."""


def _name(text: str) -> str:
    """Return a name unchanged if it has only printable characters and no surrounding spaces.

    Raises:
        ValueError: if it has control characters, or white space at its start or end.
    """
    if not text.isprintable() or text != text.strip():
        raise ValueError("a name holds no control characters, and no space around it")
    return text


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_name)]


LeaseId = Annotated[str, Field(pattern="^[0-9a-f]{32}$", description="The name of a lease")]

Key = Annotated[str, Field(description="SHA-256 in hexadecimal", examples=[SHOWN_KEY])]
Base64 = Annotated[str, Field(examples=["11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="])]
Id = Annotated[str, Field(examples=[SHOWN_ID])]
Time = Annotated[float, Field(description="In Unix seconds", examples=[SHOWN_TIME])]
Seconds = Annotated[float, Field(examples=[0.000121])]
NumericsName = Annotated[str, Field(examples=["fast"])]
Version = Annotated[str, Field(examples=["1.4.0"])]
ScheduleJson = Annotated[dict[str, Any], Field(examples=[SHOWN_SCHEDULE])]
MeasurementJson = Annotated[dict[str, Any], Field(examples=[SHOWN_MEASUREMENT])]
DeviceJson = Annotated[dict[str, Any], Field(examples=[SHOWN_DEVICE])]
