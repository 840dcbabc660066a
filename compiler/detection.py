"""Which code a device runs, found from its facts alone, without LLVM or trial runs of code."""

from __future__ import annotations

from functools import cache

from compiler.device import DeviceFacts, find_device
from compiler.errors import UnknownTargetError
from compiler.target import Target
from compiler.targets import family_of


@cache
def this_device() -> DeviceFacts:
    """The facts of this machine, read once."""
    return find_device()


def missing_features(target: Target, facts: DeviceFacts) -> tuple[str, ...]:
    """LLVM's names of the features that a device lacks for code of its own architecture."""
    return target.family.missing(target.cpu, target.features, facts.processor, facts.features)


def can_run(target: Target, facts: DeviceFacts) -> bool:
    """Whether a device has the architecture, the operating system and every feature of a target.

    A device that states no features runs only targets that need none.
    """
    same = family_of(facts.architecture) is target.family
    if not (same and facts.system and facts.system.lower() in target.triple):
        return False
    return bool(facts.features) and not missing_features(target, facts)


def best_target(facts: DeviceFacts) -> tuple[Target, str]:
    """The best described target for a device, and a sentence that says why it is that one.

    This is the target that describes its CPU. If none does, or the CPU hides features that its kind
    has, it is the strongest baseline that the CPU runs.

    Raises:
        UnknownTargetError: if the device runs none.
    """
    family = family_of(facts.architecture)
    who = f"'{facts.model or facts.processor}'"
    if family is None:
        raise UnknownTargetError(f"no target family describes {who} ({facts.architecture})")
    able = {target.name: target for target in family.targets if can_run(target, facts)}
    name = family.named(facts.processor)
    if name in able:
        return able[name], f"{who} is described as {name}"
    best = next((able[n] for n in reversed(family.baselines) if n in able), None)
    if best is None:
        raise UnknownTargetError(
            f"{who} ({facts.architecture}, {facts.system or 'unknown system'}) runs none of the "
            f"described targets: {', '.join(target.name for target in family.targets)}"
        )
    reason = "is described by no target"
    if name:
        described = next(target for target in family.targets if target.name == name)
        lacking = ", ".join(missing_features(described, facts))
        reason = f"is described as {name}, but lacks {lacking}"
    return best, f"{who} {reason}: {best.name} is the best baseline that it runs"
