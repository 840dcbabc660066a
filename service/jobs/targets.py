"""Which targets a worker's device runs, found from the facts that it tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from compiler.errors import UnknownTargetError
from compiler.target import Target, host_target, known_targets, resolve_target
from db.storage import Storage
from service.worker.facts import registration_facts

# LLVM's names of features that Linux calls otherwise.
_LINUX_NAMES = {
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "sahf": "lahf_lm",
    "lzcnt": "abm",
    "bmi": "bmi1",
    "crc32": "sse4_2",
    "64bit": "lm",
    "prfchw": "3dnowprefetch",
    "rdrnd": "rdrand",
    "pclmul": "pclmulqdq",
    "sha": "sha_ni",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512bitalg": "avx512_bitalg",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avxvnni": "avx_vnni",
    "neon": "asimd",
    "fullfp16": "asimdhp",
    "dotprod": "asimddp",
}
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_SAME_MACHINE = ("architecture", "system", "model", "cpu_flags")
_VECTOR_BITS = (128, 256, 512)


def runnable_targets(
    named: Sequence[str], device: Mapping[str, Any], storage: Storage
) -> tuple[str, ...]:
    """Keys of the targets that a worker may be given measurements for.

    The worker's own list is taken as it is. Without one: every described target, this machine's own
    and those that jobs have named, if the device has their features. A worker on the same kind of
    machine as this service runs what `host` means here.

    Raises:
        UnknownTargetError: if a listed name is not a target.
    """
    if named:
        return tuple(dict.fromkeys(target_key(name) for name in named))
    candidates = [*known_targets().values(), *_stored(storage)]
    keys = [t.key for t in candidates if _runs(t, device)]
    try:
        host = host_target()
    except (UnknownTargetError, ImportError):
        return tuple(dict.fromkeys(keys))
    ours = registration_facts()
    if all(device.get(k) == ours.get(k) for k in _SAME_MACHINE):
        keys += [t.key for t in _widths(host)]
    elif _runs(host, device):
        keys.append(host.key)
    return tuple(dict.fromkeys(keys))


def target_key(name_or_key: str) -> str:
    """A target's key from its name, or the key itself. Raises UnknownTargetError."""
    if len(name_or_key) == 64 and set(name_or_key) <= set("0123456789abcdef"):
        return name_or_key
    return resolve_target(name_or_key).key


def _stored(storage: Storage) -> Iterable[Target]:
    for key in storage.workloads.targets():
        _, description = storage.workloads.target(key)
        yield Target.from_json(description)


def _widths(target: Target) -> Iterable[Target]:
    yield target
    for bits in _VECTOR_BITS:
        if bits < target.vector_bits:
            yield target.narrowed(bits)


def _runs(target: Target, device: Mapping[str, Any]) -> bool:
    """Whether the device has the architecture and every feature of a target."""
    architecture = str(device.get("architecture", "")).lower()
    machine = _MACHINES.get(architecture, architecture)
    if target.arch != machine or str(device.get("system", "")).lower() not in target.triple:
        return False
    flags = set(device.get("cpu_flags", ()))
    wanted = {f[1:] for f in target.features if f.startswith("+")}
    return {_LINUX_NAMES.get(name, name) for name in wanted} <= flags
