"""Bounds on untrusted input, field by field: the last accepted value, and the first refused one.

Every body is here, and every field of it that has a limit. Settings have theirs, too.
"""

from __future__ import annotations

from math import inf, nan
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from tilewright.service.api.schemas.bodies import RequestBody
from tilewright.service.api.schemas.cost_models import PromotionRequest, RollbackRequest
from tilewright.service.api.schemas.jobs import JobRequest
from tilewright.service.api.schemas.leases import (
    ClaimRequest,
    FailureRequest,
    PlainRequest,
    ReleaseRequest,
    ResultRequest,
)
from tilewright.service.api.schemas.lookups import LookupRequest
from tilewright.service.api.schemas.records import WithdrawRequest
from tilewright.service.api.schemas.tokens import RotationRequest, TokenRequest
from tilewright.service.api.schemas.workers import (
    DrainRequest,
    HeartbeatRequest,
    WorkerCondition,
    WorkerRequest,
    WorkerSpeed,
)
from tilewright.service.settings import Settings

DIGEST, LEASE = "0" * 64, "0" * 32
MONTH = 30 * 86400.0

Taken = tuple[Any, ...]
Refused = tuple[Any, ...]
Limits = dict[str, tuple[Taken, Refused]]


def text(most: int, least: int = 0) -> tuple[Taken, Refused]:
    """As many characters."""
    return ("x" * least, "x" * most), ("x" * (most + 1), 7, *([""] * (least > 0)))


def number(least: float, most: float | None) -> tuple[Taken, Refused]:
    """From `least` to `most`; unbounded without `most`."""
    beyond = () if most is None else (most + 1,)
    taken = (least,) if most is None else (least, most)
    return taken, (least - 1, *beyond, nan, inf, -inf, "many")


def positive(most: float | None = None) -> tuple[Taken, Refused]:
    taken, refused = number(0.5, most)
    return (None, *taken), (0.0, *refused)


def many(item: Any, most: int, *wrong: Any, least: int = 0) -> tuple[Taken, Refused]:
    """As many items."""
    refused = [[item] * (most + 1), *([each] for each in wrong), *([[]] * (least > 0))]
    return ([item] * least, [item] * most), tuple(refused)


def sizes(most: int, *wrong: Any) -> tuple[Taken, Refused]:
    """Dimensions by name: 64 of them, each of as many elements."""
    whole = {f"d{n}": most for n in range(64)}
    refused = (*({"n": each} for each in (0, most + 1, "many", *wrong)), {**whole, "one more": 1})
    return ({}, {"n": 1}, whole), refused


NAME = (("x", "x" * 200, "a b"), ("", "x" * 201, " x", "x\n", "\x1b[2J"))
CHOICE = (("fast", "strict", "loose"), ("", "FAST", None))
TARGET = text(200, 1)
THREADS = number(1, 256)
ID = ((DIGEST,), ("", DIGEST[1:], DIGEST + "0", DIGEST.replace("0", "G")))


def values() -> tuple[Taken, Refused]:
    """Numbers that an integer or float field accepts, by input, at most 64."""
    most = {f"i{n}": 1.5 for n in range(64)}
    wrong = (1 << 64, -(1 << 63) - 1, nan, inf, "many")
    return ({}, {"sr": (1 << 64) - 1}, {"sr": -(1 << 63)}, most), (
        *({"sr": each} for each in wrong),
        {**most, "one more": 1},
    )


BODIES: dict[type[RequestBody], tuple[dict[str, Any], Limits]] = {
    JobRequest: (
        {"model": DIGEST},
        {
            "model": ID,
            "target": TARGET,
            "threads": THREADS,
            "numerics": CHOICE,
            "trials": number(0, 10_000_000),
            "seconds": positive(MONTH),
            "dims": sizes(1 << 40, [], [0], [1] * 65),
            "samples": many(DIGEST, 64, *ID[1]),
            "values": values(),
            "weight_limit": number(1, 1 << 62),
            "seed": number(0, (1 << 63) - 1),
            "stop_gain": ((0, 0.99), (-0.01, 1, nan)),
            "target_ms": positive(),
            "strategy": text(100),
            "priority": number(-100, 100),
            "wait_seconds": number(0, 365 * 86400),
        },
    ),
    LookupRequest: (
        {},
        {
            "workloads": many(DIGEST, 10_000, DIGEST[1:]),
            "model": ID,
            "dims": sizes(1 << 40),
            "target": TARGET,
            "threads": THREADS,
            "numerics": CHOICE,
        },
    ),
    ClaimRequest: (
        {"worker_id": "w"},
        {
            "worker_id": text(64),
            "claim_id": ((LEASE, None), ("", LEASE[1:], LEASE + "0")),
            "limit": number(1, 64),
            "wait_seconds": number(0, 120),
        },
    ),
    ResultRequest: (
        {"worker_id": "w", "result_key": "k", "result": {}},
        {"worker_id": text(64), "result_key": text(200, 1), "result": (({},), ([], None))},
    ),
    FailureRequest: (
        {"worker_id": "w", "cause": "killed", "error": ""},
        {
            "worker_id": text(64),
            "cause": (("killed", "worker", "service"), ("", "candidate")),
            "error": text(10_000),
        },
    ),
    PlainRequest: ({"worker_id": "w"}, {"worker_id": text(64)}),
    ReleaseRequest: (
        {"worker_id": "w", "leases": []},
        {"worker_id": text(64), "leases": many(LEASE, 256, LEASE[1:])},
    ),
    WorkerRequest: (
        {"name": "board", "protocol": 1},
        {
            "name": NAME,
            "device": (({},), ({"model": "x" * (64 << 10)}, {"cores": -1}, [])),
            "targets": many("t", 64, "", "x" * 201),
            "protocol": number(1, (1 << 31) - 1),
            "worker_id": ((LEASE, None), ("", LEASE[1:], LEASE + "0")),
        },
    ),
    WorkerSpeed: (
        {
            **{f"{what}_{unit}": 1.0 for what in ("arithmetic", "memory") for unit in
               ("seconds", "ratio")},
            "disturbed": False,
            "throttled": False,
        },
        {
            "arithmetic_seconds": number(0, None),
            "memory_seconds": number(0, None),
            "arithmetic_ratio": number(0, None),
            "memory_ratio": number(0, None),
        },
    ),
    WorkerCondition: (
        {},
        {
            "temperature_celsius": number(-300, 300),
            "load": number(0, 1_000_000),
            "clock_ratio": number(0, 10),
            "governor": text(100),
        },
    ),
    HeartbeatRequest: ({}, {"leases": many(LEASE, 256, LEASE[1:])}),
    DrainRequest: ({}, {}),
    TokenRequest: (
        {"name": "ci", "scopes": ["read"]},
        {
            "name": NAME,
            "scopes": many("read", 4, "root", least=1),
            "lifetime_seconds": positive(),
            "max_open_jobs": number(0, 1_000_000),
            "max_running_jobs": number(0, 1_000_000),
        },
    ),
    RotationRequest: ({}, {"grace_seconds": number(0, MONTH), "lifetime_seconds": positive()}),
    WithdrawRequest: (
        {"reason": "it lies"},
        {
            "reason": text(500, 1),
            "records": many("r", 10_000),
            "workers": many("w", 1000),
        },
    ),
    PromotionRequest: (
        {"version": 1},
        {"target": TARGET, "version": number(1, (1 << 31) - 1)},
    ),
    RollbackRequest: ({}, {"target": TARGET}),
}  # fmt: skip


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_a_body_is_taken_up_to_its_limits(kind: type[RequestBody]) -> None:
    least, limits = BODIES[kind]
    kind.model_validate(least)
    bounded = {name for name, field in kind.model_fields.items() if field.metadata}
    assert bounded <= set(limits)
    for name, (taken, refused) in limits.items():
        for value in taken:
            kind.model_validate({**least, name: value})
        for value in refused:
            with pytest.raises(ValidationError) as caught:
                kind.model_validate({**least, name: value})
            assert {error["loc"][0] for error in caught.value.errors()} == {name}, value
    with pytest.raises(ValidationError, match="colour"):
        kind.model_validate({**least, "colour": "red"})
    for torn in ("\0", "\ud800"):
        with pytest.raises(ValidationError, match="null character or half of a surrogate pair"):
            kind.model_validate({**least, torn: 1})


def leaves(kind: type[RequestBody]) -> set[type[RequestBody]]:
    """The bodies of the service that are of this kind, but not those that others extend."""
    below = [k for k in kind.__subclasses__() if k.__module__.startswith("tilewright.service.")]
    return set().union(*map(leaves, below)) if below else {kind}


def test_every_body_is_here() -> None:
    assert leaves(RequestBody) == set(BODIES)


def test_no_setting_is_less_than_nothing_or_endless() -> None:
    numbers = [
        name
        for name, field in Settings.model_fields.items()
        if {int, float} & {field.annotation, *get_args(field.annotation)}
    ]
    assert len(numbers) > 30
    for name in numbers:
        for value in (-1, nan, inf):
            with pytest.raises(ValidationError) as caught:
                Settings.model_validate({name: value})
            assert [error["loc"] for error in caught.value.errors()] == [(name,)], value
