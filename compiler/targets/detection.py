"""Selection of the best target for a device from its `DeviceFacts`, without LLVM or trial runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache
from pathlib import Path

from tilewright.compiler.errors import UnknownTargetError
from tilewright.compiler.targets.core_kinds import CoreKind, find_kinds, read_processors
from tilewright.compiler.targets.device import DeviceFacts, available_cores, find_device
from tilewright.compiler.targets.families import families, family_of
from tilewright.compiler.targets.target import Target


@cache
def this_device() -> DeviceFacts:
    """Return the properties of this machine, such as its CPU and caches; read once and cached."""
    return named_device()


def named_device(root: Path = Path("/"), cores: Collection[int] | None = None) -> DeviceFacts:
    """Return the properties of this machine, or of some of its cores.

    The attribute `DeviceFacts.core` names the fastest kind of core; it is empty if unknown.

    Args:
        root: the folder that contains `proc` and `sys`.
        cores: numbers of the cores that code will run on; None for all that this process may use.
    """
    kinds = core_kinds(root, cores)
    return replace(find_device(root, cores), core=core_label(kinds[0]) if kinds else "")


def core_kinds(
    root: Path = Path("/"), cores: Collection[int] | None = None
) -> tuple[CoreKind, ...]:
    """Return the kinds of the cores with the numbers `cores`, fastest first.

    By default, all cores that this process may use are included. `root` is the folder that contains
    `proc` and `sys`.
    """
    usable = available_cores() if cores is None else cores
    return find_kinds(root, read_processors(root), usable)


def core_name(processor: str) -> str:
    """Return a readable name of a core (`cortex-a78`) for its identifier (`DeviceFacts.processor`).

    The name is from the table of core names, or from the target that describes the core. A core
    without either keeps its identifier.
    """
    for family in families():
        name = family.core_names.get(processor) or family.named(processor)
        if name:
            return name
    return processor


def core_label(kind: CoreKind) -> str:
    """Return the name of a kind of cores with their clock in GHz, if known: `cortex-a76@2.4`."""
    name = core_name(kind.processor)
    return f"{name}@{kind.hertz / 1e9:.1f}" if name and kind.hertz else name


def missing_features(target: Target, facts: DeviceFacts) -> tuple[str, ...]:
    """Return the features that code for a target needs and a device lacks, by LLVM's names.

    Target and device must have the same architecture. If the device's vector registers are too
    short, the result ends with a phrase such as `vectors of 256 bits`.
    """
    family = target.family
    missing = family.missing(target.cpu, target.features, facts.processor, facts.features)
    reported = family.reported_features(facts.processor, facts.features)
    known = max((family.scalable.get(name, 0) for name in reported), default=0)
    if target.register_bits > (facts.vector_bits or known):
        return (*missing, f"vectors of {target.register_bits} bits")
    return missing


def can_run(target: Target, facts: DeviceFacts) -> bool:
    """Whether a device has the architecture, the operating system and every feature of a target.

    False for a device that reports no features.
    """
    same = family_of(facts.architecture) is target.family
    if not (same and facts.system and facts.system.lower() in target.triple):
        return False
    return bool(facts.features) and not missing_features(target, facts)


def best_target(facts: DeviceFacts) -> tuple[Target, str]:
    """Return the target that suits a device best, of all described targets, and a sentence with the
    reason.

    This is the target that describes the device's CPU. A device may lack features of that target,
    for example in a virtual machine. The result is then a target of the same CPU with fewer
    features. If no such target is described, it is the strongest baseline that the device runs: a
    target that does not describe a single CPU, such as `x86-64-v3`.

    Raises:
        UnknownTargetError: if the device runs no described target.
    """
    family = family_of(facts.architecture)
    who = f"'{facts.model or facts.processor}'"
    if family is None:
        raise UnknownTargetError(f"no target family describes {who} ({facts.architecture})")
    able = {target.name: target for target in family.targets if can_run(target, facts)}
    name = family.named(facts.processor)
    if name in able:
        return able[name], f"{who} is described as {name}"
    described = next((target for target in family.targets if target.name == name), None)
    if described is not None:
        lacking = ", ".join(missing_features(described, facts))
        reason = f"is described as {name}, but lacks {lacking}"
        alike = [target for target in able.values() if target.cpu == described.cpu]
        if alike:
            fewer = max(alike, key=lambda target: len(target.features))
            return fewer, f"{who} {reason}: {fewer.name} is the same CPU without them"
    else:
        reason = "is described by no target"
    best = next((able[n] for n in reversed(family.baselines) if n in able), None)
    if best is None:
        raise UnknownTargetError(
            f"{who} ({facts.architecture}, {facts.system or 'unknown system'}) runs none of the "
            f"described targets: {', '.join(target.name for target in family.targets)}"
        )
    return best, f"{who} {reason}: {best.name} is the best baseline that it runs"
