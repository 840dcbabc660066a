"""The target of this machine, lookup of targets by name, and whether a target's code runs here.

Only this module compares targets with the host. A job of the service uses
`service.jobs.device.device` instead, because its device may be another machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache

from tilewright.compiler.errors import CompilerError, UnknownTargetError, did_you_mean
from tilewright.compiler.targets.detection import best_target, this_device
from tilewright.compiler.targets.families import family_of
from tilewright.compiler.targets.target import Target, known_targets

MOST_NEAR = 4
"""The largest number of targets that an error message suggests."""


@cache
def host_target() -> Target:
    """Return the target of this machine, with the features that its CPU and operating system allow.

    LLVM detects it if llvmlite is installed and LLVM supports this CPU. Otherwise, it is the best
    described target (`detection.best_target`).

    Raises:
        UnknownTargetError: if no family describes this machine.
    """
    try:  # llvmlite is an optional dependency
        import llvmlite.binding as llvm
    except ImportError:
        return best_target(this_device())[0]
    triple = llvm.get_process_triple()
    family = family_of(triple.partition("-")[0])
    if family is None or family.detect is None:
        return best_target(this_device())[0]
    features = dict(llvm.get_host_cpu_features())
    present = [name for name, has in features.items() if has]
    features |= dict.fromkeys(family.refused(present), False)
    return family.detect(triple, llvm.get_host_cpu_name(), features)


def resolve_target(name: str) -> Target:
    """Return a target by name: `host`, a described target, or either with narrower vectors.

    Args:
        name: `host`, `x86-64-v4`, `host:256`, `znver4:256`...

    Raises:
        UnknownTargetError: if no described target has the name, the target has no vectors of this
            width, or the name is `host` on a machine that no family describes.
    """
    base, colon, bits = name.partition(":")
    if base == "host":
        target = host_target()
    elif base in (known := known_targets()):
        target = known[base]
    else:
        raise UnknownTargetError(
            f"unknown target '{base}': 'host' is this machine, and `tilewright show targets` lists "
            f"all {len(known)}{did_you_mean(_near(base, known))}"
        )
    if not colon:
        return target
    if not (bits.isascii() and bits.isdecimal() and len(bits) <= 9):
        raise UnknownTargetError(f"target '{name}': '{bits}' is not a number of bits")
    return target.with_vector_bits(int(bits))


def _near(name: str, known: Mapping[str, Target]) -> Sequence[str]:
    """Return names of targets that the user may have meant with an unknown name.

    For a CPU feature, such as `avx2`, they are the targets with the fewest features that have it,
    one per architecture. Otherwise, they are the names that resemble `name`, contain it, or
    resemble it apart from the digits: `apple-m1` for `m1`, `znver4` for `zen9`.
    """
    name = name.lower()

    def masked(text: str) -> str:
        return re.sub(r"\d+", "0", text)

    present = {each: {f for f in known[each].features if f.startswith("+")} for each in known}
    smallest: dict[str, Target] = {}
    for each in sorted(known, key=lambda each: len(present[each])):
        if f"+{name}" in present[each]:
            smallest.setdefault(known[each].arch, known[each])
    if smallest:
        return [target.name for target in smallest.values()]
    near = get_close_matches(name, ["host", *known])
    containing = [each for each in known if name and name in each]
    alike = get_close_matches(masked(name), {masked(each) for each in known})
    return near or (containing or [each for each in known if masked(each) in alike])[:MOST_NEAR]


def runs_here(target: Target) -> bool:
    """Whether code for the target can run in this process.

    The result is False if no family describes the host or LLVM is not installed.
    """
    try:
        return target.runs_on(host_target())
    except (UnknownTargetError, ImportError):
        return False


def check_runs_here(target: Target) -> Target:
    """Check that the target's code runs in this process, and return the target.

    Raises:
        CompilerError: if its code does not run in this process.
    """
    if not runs_here(target):
        raise CompilerError(f"target '{target.name}' does not run on this machine")
    return target
