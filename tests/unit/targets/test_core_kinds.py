"""Cores that are alike, from Linux's reports; these may be empty or nonsense."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.compiler.targets.core_kinds import (
    CoreKind,
    find_kinds,
    ranges_text,
    read_processors,
)
from tilewright.compiler.targets.detection import core_kinds, core_label, core_name, named_device

Lie = tuple[str, str, str, str]
"""Part in /proc/cpuinfo, MIDR_EL1, capacity and highest clock in kHz of a core; "" is untold."""

A76, A55 = "0x41-0xd0b", "0x41-0xd05"
ORION: list[Lie] = [("0xd05", "", "530", "1800000")] * 4 + [("0xd0b", "", "1024", "2400000")] * 4
MIDR_A76, MIDR_A55 = "0x00000000414fd0b1", "0x00000000412fd050"


def board(root: Path, cores: list[Lie]) -> Path:
    """Write Linux's report of a board with such cores."""
    paragraphs = []
    for number, (part, midr, capacity, clock) in enumerate(cores):
        given = f"CPU implementer\t: 0x41\nCPU part\t: {part}\n" if part else ""
        paragraphs.append(f"processor\t: {number}\nFeatures\t: fp asimd asimddp\n{given}")
        files = {
            "regs/identification/midr_el1": midr,
            "cpu_capacity": capacity,
            "cpufreq/cpuinfo_max_freq": clock,
        }
        for name, text in files.items():
            path = root / f"sys/devices/system/cpu/cpu{number}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text("\n".join(paragraphs))
    return root


FAST, SLOW = CoreKind(A76, 2_400_000_000, (4, 5, 6, 7)), CoreKind(A55, 1_800_000_000, (0, 1, 2, 3))


@pytest.mark.parametrize(
    "cores",
    [
        ORION,
        [(p, m, "", c) for p, m, _, c in ORION],  # clocks distinguish them, too
        [("0xd05", MIDR_A55 if n < 4 else MIDR_A76, *ORION[n][2:]) for n in range(8)],
        [("", MIDR_A55 if n < 4 else MIDR_A76, *ORION[n][2:]) for n in range(8)],
    ],
)
def test_a_phones_cores_are_of_two_kinds(tmp_path: Path, cores: list[Lie]) -> None:
    root = board(tmp_path, cores)
    assert core_kinds(root, range(8)) == (FAST, SLOW)
    assert [core_label(kind) for kind in (FAST, SLOW)] == ["cortex-a76@2.4", "cortex-a55@1.8"]
    assert core_kinds(root, range(3)) == (CoreKind(A55, 1_800_000_000, (0, 1, 2)),)
    assert core_kinds(root, [90]) == (FAST, SLOW), "none of these is described"


def test_one_processor_with_two_clocks_is_two_kinds(tmp_path: Path) -> None:
    """As on phones with one prime core; a desktop's favoured cores differ by less."""
    clocks = ["2400000", "2200000", "5500000", "5750000"]
    root = board(tmp_path, [("0xd0b", "", "", clock) for clock in clocks])
    assert [k.cores for k in core_kinds(root, (0, 1))] == [(0,), (1,)]
    assert [k.cores for k in core_kinds(root, (2, 3))] == [(2, 3)]


@pytest.mark.parametrize("said", ["", "0", "-5", "fast", "9" * 5000, "²", "1e9", "\0"])
def test_nonsense_makes_cores_alike(tmp_path: Path, said: str) -> None:
    root = board(tmp_path, [("0xd0b", said, said, said), ("0xd0b", "", "1024", "2400000")])
    (kind,) = core_kinds(root, (0, 1))
    assert (kind.processor, kind.cores) == (A76, (0, 1))


def test_a_machine_that_says_nothing_has_no_kinds(tmp_path: Path) -> None:
    assert core_kinds(tmp_path, (0, 1)) == ()
    assert named_device(tmp_path).core == ""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor : x\n\nprocessor : 0\n")
    assert find_kinds(tmp_path, read_processors(tmp_path), (0,)) == (CoreKind("", 0, (0,)),)


def test_the_facts_are_those_of_the_given_cores(tmp_path: Path) -> None:
    root = board(tmp_path, ORION)
    cpuinfo = (root / "proc/cpuinfo").read_text().replace("asimddp", "asimddp bf16", 4)
    (root / "proc/cpuinfo").write_text(cpuinfo)
    slow, fast = named_device(root, range(4)), named_device(root, (5, 6))
    assert (slow.core, slow.processor, slow.cores) == ("cortex-a55@1.8", A55, 4)
    assert (fast.core, fast.processor, fast.cores) == ("cortex-a76@2.4", A76, 2)
    assert "bf16" in slow.features and "bf16" not in fast.features
    assert (slow.physical_cores, fast.physical_cores) == (4, 2)


def test_names_are_those_of_the_core_not_of_its_model() -> None:
    assert core_name("0x41-0xd41") == "cortex-a78", "which LLVM schedules as an A76"
    assert core_name("0x41-0xc07") == "cortex-a7", "of 32 bits"
    assert core_name("somebody's") == "somebody's"
    assert core_label(CoreKind("", 10**9, (0,))) == ""
    assert core_label(CoreKind(A76, 0, (0,))) == "cortex-a76"


def test_ranges() -> None:
    assert ranges_text([7, 0, 1, 2, 5]) == "0-2,5,7"
