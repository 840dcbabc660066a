"""Which targets a worker's device runs, found from the facts that it tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from compiler.detection import best_target, can_run, this_device
from compiler.device import DeviceFacts
from compiler.errors import UnknownTargetError
from compiler.target import Target, host_target, known_targets, resolve_target
from db.storage import Storage

_VECTOR_BITS = (128, 256, 512)


def runnable_targets(
    named: Sequence[str], device: Mapping[str, Any], storage: Storage
) -> tuple[str, ...]:
    """Keys of the targets that a worker may be given measurements for.

    The worker's own list is taken as it is. Without a list, the best target of its device comes
    first. Then come all that the device can run of these: the other described targets, this
    machine's own, and those that jobs have named. The best target and this machine's come with
    narrower vectors too. For a device like this machine the best is what `host` means here: that
    has more detail than a description.

    Args:
        named: names or keys.
        device: the JSON form of the worker's facts; not read if targets are named. A worker that
            states no facts runs nothing.

    Raises:
        UnknownTargetError: if a listed name is not a target, or the device runs none.
        InvalidFactsError: if the facts cannot be those of a device.
    """
    if named:
        return tuple(dict.fromkeys(target_key(name) for name in named))
    if not device:
        return ()
    facts = DeviceFacts.from_json(device)
    best, _ = best_target(facts)
    first, others = _widths(best), _own()
    here = this_device()
    if (facts.processor, facts.features) == (here.processor, here.features):
        first, others = others, first
    candidates = [*first, *others, *known_targets().values(), *_stored(storage)]
    return tuple(dict.fromkeys(t.key for t in candidates if can_run(t, facts)))


def target_key(name_or_key: str) -> str:
    """A target's key from its name, or the key itself. Raises UnknownTargetError."""
    if len(name_or_key) == 64 and set(name_or_key) <= set("0123456789abcdef"):
        return name_or_key
    return resolve_target(name_or_key).key


def _stored(storage: Storage) -> Iterable[Target]:
    for key in storage.workloads.targets():
        _, description = storage.workloads.target(key)
        yield Target.from_json(description)


def _own() -> Iterable[Target]:
    """The target that `host` means here, for jobs that name it; none if no family describes it."""
    try:
        return tuple(_widths(host_target()))
    except UnknownTargetError:
        return ()


def _widths(target: Target) -> Iterable[Target]:
    yield target
    for bits in _VECTOR_BITS:
        if bits < target.vector_bits:
            yield target.narrowed(bits)
