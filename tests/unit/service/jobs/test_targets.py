"""A worker's target, from the facts that it reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.compiler.errors import InvalidFactsError, UnknownTargetError
from tilewright.compiler.targets.device import DeviceFacts
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.storage import Storage
from tilewright.service.jobs.device.targets import runnable_targets

BOARD = DeviceFacts(
    model="Raspberry Pi 5",
    architecture="aarch64",
    system="Linux",
    cores=4,
    physical_cores=4,
    memory_bytes=8 << 30,
    governor="ondemand",
    caches=(),
    processor="0x41-0xd0b",
    features=("asimd", "asimddp", "asimdhp", "fp"),
)


def test_the_best_target_of_a_device_comes_first(storage: Storage) -> None:
    keys = runnable_targets((), BOARD.to_json(), storage)
    assert keys[0] == resolve_target("cortex-a76").key
    assert {resolve_target(name).key for name in ("neoverse-n1", "aarch64")} <= set(keys)
    assert not {resolve_target(n).key for n in ("neoverse-v1", "x86-64-v2", "wasm32")} & set(keys)


def test_narrower_vectors_of_the_best_target(storage: Storage) -> None:
    features = [
        "lahf_lm",
        "abm",
        "bmi1",
        "bmi2",
        "cx16",
        "movbe",
        "pni",
        "popcnt",
        "sse4_1",
        "sse4_2",
        "ssse3",
        "avx",
        "avx2",
        "f16c",
        "fma",
    ]
    haswell = replace(
        BOARD, architecture="x86_64", processor="GenuineIntel-6-60-3", features=tuple(features)
    )
    keys = runnable_targets((), haswell.to_json(), storage)
    best = resolve_target("haswell")
    assert keys[:2] == (best.key, best.with_vector_bits(128).key)
    assert resolve_target("znver4").key not in keys


def test_targets_that_jobs_have_named(storage: Storage) -> None:
    narrow = resolve_target("neoverse-n1:64")
    wide = resolve_target("znver4:256")
    for target in (narrow, wide):
        storage.workloads.put_target(target.key, target.name, target.to_json())
    keys = runnable_targets((), BOARD.to_json(), storage)
    assert narrow.key in keys and wide.key not in keys


def test_a_worker_that_names_its_targets_is_believed(storage: Storage) -> None:
    named = ("znver4", "aarch64", "znver4", "f" * 64)
    keys = runnable_targets(named, {"nonsense": 1}, storage)
    assert keys == (resolve_target("znver4").key, resolve_target("aarch64").key, "f" * 64)


def test_facts_that_say_nothing_or_nonsense(storage: Storage) -> None:
    assert runnable_targets((), {}, storage) == ()
    with pytest.raises(InvalidFactsError, match="cores: expected an integer"):
        runnable_targets((), {**BOARD.to_json(), "cores": "many"}, storage)
    with pytest.raises(UnknownTargetError, match=r"describes 'Raspberry Pi 5' \(z80\)"):
        runnable_targets((), {**BOARD.to_json(), "architecture": "z80"}, storage)
    with pytest.raises(UnknownTargetError, match="runs none of the described targets"):
        runnable_targets((), replace(BOARD, features=("half", "thumb")).to_json(), storage)
