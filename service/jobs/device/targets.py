"""Finds the targets that a worker's device can run, from the worker's report of its CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tilewright.compiler.errors import UnknownTargetError
from tilewright.compiler.targets.detection import best_target, can_run, this_device
from tilewright.compiler.targets.device import DeviceFacts
from tilewright.compiler.targets.host import host_target, resolve_target
from tilewright.compiler.targets.target import Target, known_targets
from tilewright.db.storage import Storage

_VECTOR_BITS = (128, 256, 512)


def runnable_targets(
    named: Sequence[str], device: Mapping[str, Any], storage: Storage
) -> tuple[str, ...]:
    """Return the keys of the targets for which a worker measures, best first.

    If the worker names targets, these are returned in the same order. Otherwise the targets that
    its device can run are returned:

    - the best target for the device, which comes first;
    - this machine's own target `host`, which comes first instead if the device has the same CPU,
      because the `host` target describes the CPU in more detail;
    - all targets that the compiler describes, and those that jobs have used.

    The best target and the `host` target also occur with narrower vectors, such as 128 instead of
    256 bits. Targets that the compiler does not describe are stored, so that a job can refer to
    them by key.

    Args:
        named: the names or keys of targets that the worker lists; empty to detect them.
        device: the worker's description of its device, such as CPU and features, as JSON
            (`DeviceFacts`). It is not read if targets are named. A worker without a description has
            no targets.
        storage: the database with the targets of jobs.

    Raises:
        UnknownTargetError: if a listed name is not a target, or the device runs no target.
        InvalidFactsError: if the description is impossible for a device.
    """
    if named:
        return tuple(_stored_key(name, storage) for name in dict.fromkeys(named))
    if not device:
        return ()
    facts = DeviceFacts.from_json(device)
    here, own = this_device(), tuple(_own())
    alike = facts.brief() == here.brief() and facts.features == here.features
    if alike and own and not facts.features:
        # the operating system reports no features, but LLVM detects them on this machine
        return _keys(own, storage)
    best, _ = best_target(facts)
    first, others = tuple(_widths(best)), own
    if alike or (facts.processor, facts.features) == (here.processor, here.features):
        first, others = others, first
    candidates = [*first, *others, *known_targets().values(), *_stored(storage)]
    return _keys([target for target in candidates if can_run(target, facts)], storage)


def recognised_as(device: Mapping[str, Any]) -> str:
    """Return a sentence for the user that names the best target for a worker's device.

    `device` is the worker's description of its CPU, as JSON. Return "" if the description is empty,
    or if the compiler has no target that this CPU can run.
    """
    try:
        return best_target(DeviceFacts.from_json(device))[1] if device else ""
    except UnknownTargetError:
        return ""


def _keys(targets: Iterable[Target], storage: Storage) -> tuple[str, ...]:
    """Return the keys of targets without duplicates.

    Targets that the compiler does not describe are added to the database.
    """
    described = {target.key for target in known_targets().values()}
    found = {target.key: target for target in targets}
    for key, target in found.items():
        if key not in described:
            storage.workloads.put_target(key, target.name, target.to_json())
    return tuple(found)


def _stored_key(name_or_key: str, storage: Storage) -> str:
    key = target_key(name_or_key)
    if key != name_or_key:
        _keys([resolve_target(name_or_key)], storage)
    return key


def target_key(name_or_key: str) -> str:
    """Return the key of the target with this name; a key is returned unchanged.

    Raises:
        UnknownTargetError: if no target has this name.
    """
    return name_or_key if is_target_key(name_or_key) else resolve_target(name_or_key).key


def is_target_key(text: str) -> bool:
    """Whether a text has the form of a target's key: 64 hexadecimal digits."""
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def _stored(storage: Storage) -> Iterable[Target]:
    for key in storage.workloads.targets():
        _, description = storage.workloads.target(key)
        yield Target.from_json(description)


def _own() -> Iterable[Target]:
    """Return this machine's `host` target and its variants with narrower vectors.

    The result is empty if no target family of the compiler supports this machine.
    """
    try:
        return tuple(_widths(host_target()))
    except UnknownTargetError:
        return ()


def _widths(target: Target) -> Iterable[Target]:
    yield target
    for bits in _VECTOR_BITS:
        if bits < target.vector_bits:
            yield target.with_vector_bits(bits)
