"""The best target of a device from its kernel's output, without LLVM."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.compiler.errors import UnknownTargetError
from tilewright.compiler.targets import host
from tilewright.compiler.targets.detection import best_target, can_run, missing_features
from tilewright.compiler.targets.device import DeviceFacts, find_device
from tilewright.compiler.targets.families import family_of
from tilewright.compiler.targets.host import host_target, resolve_target
from tilewright.compiler.targets.target import known_targets

CPUINFO = Path(__file__).parent / "cpuinfo"

# text of /proc/cpuinfo -> architecture, target, bits and number of its vector registers
MACHINES = {
    "haswell": ("x86_64", "haswell", 256, 16),
    "skylake-x": ("x86_64", "skylake-avx512", 512, 32),
    "sapphire-rapids": ("x86_64", "sapphirerapids-amx", 512, 32),
    "zen2": ("x86_64", "znver2", 256, 16),
    "zen3": ("x86_64", "znver3", 256, 16),
    "zen4": ("x86_64", "znver4", 512, 32),
    "zen5": ("x86_64", "znver5", 512, 32),
    "cortex-a7": ("armv7l", "cortex-a7", 128, 16),
    "cortex-a9": ("armv7l", "cortex-a9", 128, 16),
    "cortex-a53": ("aarch64", "cortex-a53", 128, 32),
    "cortex-a72": ("aarch64", "cortex-a72", 128, 32),
    "cortex-a76": ("aarch64", "cortex-a76", 128, 32),
    "neoverse-n1": ("aarch64", "neoverse-n1", 128, 32),
    "neoverse-v1": ("aarch64", "neoverse-v1", 128, 32),
    "neoverse-v2": ("aarch64", "neoverse-v2", 128, 32),
    "apple-m1": ("aarch64", "apple-m1", 128, 32),
    "rk3588": ("aarch64", "cortex-a55", 128, 32),
    "sifive-u74": ("riscv64", "sifive-u74", 64, 16),
    "sifive-u74-newer": ("riscv64", "sifive-u74", 64, 16),
    "spacemit-x60": ("riscv64", "spacemit-x60", 512, 16),
    "spacemit-x60-no-uarch": ("riscv64", "spacemit-x60", 512, 16),
    "spacemit-x60-vendor-kernel": ("riscv64", "spacemit-x60", 512, 16),
}
UNKNOWN = {
    "core2": ("x86_64", "x86-64-v1"),
    "neoverse-n2": ("aarch64", "armv8.6-a"),
    "apple-virtual": ("aarch64", "armv8.2-a"),
    "riscv-with-vectors": ("riscv64", "riscv64"),
}

Device = Callable[..., DeviceFacts]


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    def make(
        name: str, architecture: str, text: str | None = None, granted: bool = True
    ) -> DeviceFacts:
        (tmp_path / "proc").mkdir(exist_ok=True)
        text = (CPUINFO / f"{name}.txt").read_text() if text is None else text
        (tmp_path / "proc/cpuinfo").write_text(text)
        monkeypatch.setattr(platform, "machine", lambda: architecture)
        monkeypatch.setattr(platform, "system", lambda: "Linux")
        family = family_of(architecture)
        asked = family and replace(family, ask=lambda: granted)
        monkeypatch.setattr("tilewright.compiler.targets.device.family_of", lambda _: asked)
        return find_device(tmp_path)

    return make


def test_registers_of_matrices_count_where_the_system_grants_them(device: Device) -> None:
    with_them, without = (
        device("sapphire-rapids", "x86_64", granted=granted) for granted in (True, False)
    )
    assert {*with_them.features} - {*without.features} == {"amx_tile", "amx_int8", "amx_bf16"}
    assert best_target(with_them)[0].name == "sapphirerapids-amx"
    found, sentence = best_target(without)
    assert found.name == "sapphirerapids"
    assert "lacks amx-bf16, amx-int8, amx-tile: sapphirerapids is the same CPU" in sentence


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_a_described_cpu(device: Device, name: str) -> None:
    architecture, expected, bits, registers = MACHINES[name]
    facts = device(name, architecture)
    found, sentence = best_target(facts)
    assert (found.name, found.vector_bits, found.vector_registers) == (expected, bits, registers)
    assert found == resolve_target(expected)
    assert sentence.endswith(f"is described as {expected}")
    assert can_run(found, facts) and not missing_features(found, facts)


@pytest.mark.parametrize("name", sorted(UNKNOWN))
def test_an_unknown_cpu_gets_the_best_baseline(device: Device, name: str) -> None:
    architecture, expected = UNKNOWN[name]
    found, sentence = best_target(device(name, architecture))
    assert found.name == expected
    assert sentence.endswith(
        f"is described by no target: {expected} is the best baseline that it runs"
    )


def test_every_file_is_looked_at() -> None:
    ways = {*MACHINES, *UNKNOWN, "rk3576"}
    assert {path.stem for path in CPUINFO.glob("*.txt")} == ways


def test_the_fastest_kind_of_core_decides(device: Device, tmp_path: Path) -> None:
    """Linux reports the capacity of cores that differ; the features are those that all of them
    have."""
    cpus = tmp_path / "sys/devices/system/cpu"
    for number, capacity in enumerate((414, 1024)):
        (cpus / f"cpu{number}/cache/index0").mkdir(parents=True)
        (cpus / f"cpu{number}/cpu_capacity").write_text(f"{capacity}\n")
        cache = {"level": "1", "type": "Data", "size": f"{32 << number}K"}
        for key, value in cache.items():
            (cpus / f"cpu{number}/cache/index0/{key}").write_text(value)
    for name, expected in (("rk3588", "cortex-a76"), ("rk3576", "cortex-a72")):
        facts = device(name, "aarch64")
        assert best_target(facts)[0].name == expected
        assert facts.cache_bytes(1) == 64 << 10
    mixed = (CPUINFO / "rk3588.txt").read_text().replace(" asimddp", "", 1)
    facts = device("", "aarch64", mixed)
    assert "asimddp" not in facts.features and "asimdhp" in facts.features
    found, sentence = best_target(facts)
    assert found.name == "aarch64"
    assert "is described as cortex-a76, but lacks dotprod: aarch64 is the best" in sentence


def test_a_hypervisor_that_hides_features(device: Device) -> None:
    hidden = (CPUINFO / "zen4.txt").read_text().replace(" avx512_bf16", "")
    found, sentence = best_target(device("", "x86_64", hidden))
    assert found.name == "x86-64-v4"
    assert "is described as znver4, but lacks avx512bf16" in sentence
    weaker = {" avx512vl": "x86-64-v3", " avx2": "x86-64-v2", " sse4_2": "x86-64-v1"}
    for name, expected in weaker.items():
        hidden = hidden.replace(name, "")
        assert best_target(device("", "x86_64", hidden))[0].name == expected
    with pytest.raises(
        UnknownTargetError, match=r"'AMD Ryzen 9 7950X .*runs none of the described"
    ):
        best_target(replace(device("", "x86_64", hidden), system="Darwin"))


@pytest.mark.parametrize(("name", "rounds"), [("core2", False), ("penryn", True)])
def test_a_host_without_sse4_as_llvm_states_it(name: str, rounds: bool) -> None:
    """It has the core of a baseline without fused multiply-adds, not that of a new CPU."""
    family = family_of("x86_64")
    assert family is not None and family.detect is not None
    features = {"sse2": True, "sse3": True, "ssse3": True, "sse4.1": rounds, "avx": False}
    found = family.detect("x86_64-unknown-linux-gnu", name, features)
    assert (found.vector_bits, found.vector_registers, found.fma) == (128, 16, False)
    assert found.has_rounding is rounds and found.core == resolve_target("x86-64-v1").core
    assert found.core != family.core.with_vector_bits(128)


def test_vectors_of_unknown_length_are_taken_for_short_ones(device: Device) -> None:
    """Linux does not print the vector length of a RISC-V, and code for longer vectors computes only
    half on shorter ones."""
    unknown = device("riscv-with-vectors", "riscv64")
    long, short = resolve_target("riscv64-zvl256b"), resolve_target("riscv64")
    assert missing_features(long, unknown) == ("vectors of 256 bits",)
    assert not can_run(resolve_target("spacemit-x60"), unknown)
    known = device("spacemit-x60", "riscv64")
    assert can_run(long, known) and not can_run(long, replace(known, vector_bits=128))
    told = replace(unknown, vector_bits=512)
    assert can_run(long, told) and best_target(told)[0] == long
    assert best_target(replace(unknown, vector_bits=128))[0] == short == best_target(unknown)[0]


def test_the_length_of_sve_is_read(device: Device, tmp_path: Path) -> None:
    """Code with vectors of 256 bits runs on longer registers too."""
    long, short = resolve_target("neoverse-v1-sve256"), resolve_target("neoverse-v1")
    said = tmp_path / "proc/sys/abi/sve_default_vector_length"
    said.parent.mkdir(parents=True)
    for text, runs in {"": False, "16": False, "32": True, "64": True, "lots": False}.items():
        said.write_text(f"{text}\n")
        facts = device("neoverse-v1", "aarch64")
        assert can_run(long, facts) is runs and can_run(short, facts)
        assert best_target(facts)[0] == short


def test_what_a_cpus_name_turns_on_is_asked_for(device: Device) -> None:
    """LLVM may use SVE for a Neoverse V1, whatever features its target lists."""
    facts = device("neoverse-v1", "aarch64")
    without = replace(facts, features=tuple(f for f in facts.features if f != "sve"))
    assert missing_features(resolve_target("neoverse-v1"), without) == ("sve",)
    assert best_target(without)[0].name == "armv8.6-a"


@pytest.mark.parametrize(
    "name", sorted(n for n, t in known_targets().items() if "linux" in t.triple)
)
def test_every_feature_of_a_target_can_be_told(name: str) -> None:
    described = resolve_target(name)
    wanted = {switch[1:] for switch in described.features}
    assert wanted <= {*described.family.linux_features, *described.family.scalable}


def test_the_device_runs_what_it_runs(device: Device) -> None:
    """Code runs on the machines that have its features, and on no other architecture or system."""
    zen4, haswell = device("zen4", "x86_64"), device("haswell", "x86_64")
    assert can_run(resolve_target("znver4"), zen4) and can_run(resolve_target("haswell"), zen4)
    assert not can_run(resolve_target("znver4"), haswell)
    assert not can_run(resolve_target("aarch64"), zen4)
    assert not can_run(resolve_target("x86-64-v2"), replace(zen4, system="Darwin"))
    assert not can_run(resolve_target("x86-64-v2"), replace(zen4, features=()))
    assert can_run(resolve_target("x86-64-v2"), replace(zen4, architecture="AMD64"))


def test_no_family_describes_the_machine(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = device("", "s390x", "processor : 0\nmodel name : a mainframe\n")
    with pytest.raises(UnknownTargetError, match=r"describes 'a mainframe' \(s390x\)"):
        best_target(facts)
    monkeypatch.setattr(host, "this_device", lambda: facts)
    monkeypatch.setattr(host, "family_of", lambda machine: None)
    with pytest.raises(UnknownTargetError, match="no target family describes"):
        host_target.__wrapped__()


def test_the_host_without_llvm(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = device("cortex-a76", "aarch64")
    monkeypatch.setattr(host, "this_device", lambda: facts)
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    assert host_target.__wrapped__() == resolve_target("cortex-a76")


def test_facts_of_every_machine_read_back(device: Device) -> None:
    for name, (architecture, *_) in MACHINES.items():
        facts = device(name, architecture)
        assert facts.features and facts.processor
        assert DeviceFacts.from_json(json.loads(json.dumps(facts.to_json()))) == facts
