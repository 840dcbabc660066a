"""Machines to emulate: the facts that their operating systems would report, and their Pythons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.compiler.targets.device import Cache

MOST_CACHES = 16
"""The number of caches of a core that the harness reads at most."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that qemu can emulate, with the facts that its Linux reports.

    Attributes:
        name: of the worker.
        architecture: as `uname -m` says, and as qemu's program is called.
        cpu: qemu's name of the processor.
        target: of the generated code.
        model: the processor's or the board's name, as `compiler.targets.device` reads it.
        cpuinfo: /proc/cpuinfo.
        board: the device tree's model; boards with Arm cores have one.
        memory_kib: all of it.
        caches: of the first core.
    """

    name: str
    architecture: str
    cpu: str
    target: str
    model: str
    cpuinfo: str
    memory_kib: int
    caches: tuple[Cache, ...]
    board: str = ""

    def write(self, root: Path) -> None:
        """Make its `proc` and `sys` in a folder, where qemu looks before it looks at the host's."""
        cpu = root / "sys/devices/system/cpu/cpu0"
        files = {
            root / "proc/cpuinfo": self.cpuinfo,
            root / "proc/meminfo": f"MemTotal:       {self.memory_kib} kB\n",
            root / "sys/firmware/devicetree/base/model": f"{self.board}\0",
            cpu / "cpufreq/scaling_governor": "performance\n",
        }
        for number, cache in enumerate(self.caches):
            entries = {
                "level": cache.level,
                "type": cache.kind.capitalize(),
                "size": f"{cache.bytes >> 10}K",
                "ways_of_associativity": cache.ways,
                "coherency_line_size": cache.line_bytes,
                "shared_cpu_list": f"0-{cache.shared_by - 1}",
            }
            for name, value in entries.items():
                files[cpu / f"cache/index{number}" / name] = f"{value}\n"
        # qemu reads the host's file if the root has none, so that the host's caches would follow
        for number in range(len(self.caches), MOST_CACHES):
            files[cpu / f"cache/index{number}/size"] = ""
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def _cpuinfo(processors: int, lines: Sequence[str]) -> str:
    """The same lines for every processor; a field and its value are parted by the first colon."""
    return "".join(
        "\n".join([f"processor\t: {number}", *(line.replace(": ", "\t: ", 1) for line in lines)])
        + "\n\n"
        for number in range(processors)
    )


_HASWELL = "Intel(R) Core(TM) i7-4770 CPU @ 3.40GHz (emulated)"
_HASWELL_FLAGS = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse "
    "sse2 ht syscall nx rdtscp lm constant_tsc nopl xtopology cpuid pni pclmulqdq ssse3 fma cx16 "
    "sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand hypervisor lahf_lm abm fsgsbase bmi1 "
    "avx2 smep bmi2 erms"
)

HASWELL = Machine(
    name="haswell",
    architecture="x86_64",
    cpu="Haswell",
    target="haswell",
    model=_HASWELL,
    cpuinfo=_cpuinfo(
        2,
        [
            "vendor_id: GenuineIntel",
            "cpu family: 6",
            "model: 60",
            f"model name: {_HASWELL}",
            "stepping: 3",
            "cache size: 8192 KB",
            f"flags: {_HASWELL_FLAGS}",
        ],
    ),
    memory_kib=8_123_456,
    caches=(
        Cache(1, "data", 32 << 10, 8, 64, 1),
        Cache(1, "instruction", 32 << 10, 8, 64, 1),
        Cache(2, "unified", 256 << 10, 8, 64, 1),
        Cache(3, "unified", 8 << 20, 16, 64, 2),
    ),
)

_BOARD = "Raspberry Pi 4 Model B Rev 1.4"

CORTEX_A72 = Machine(
    name="cortex-a72",
    architecture="aarch64",
    cpu="cortex-a72",
    target="cortex-a72",
    model=f"{_BOARD} (implementer 0x41 part 0xd08)",
    cpuinfo=_cpuinfo(
        4,
        [
            "BogoMIPS: 108.00",
            "Features: fp asimd evtstrm crc32 cpuid",
            "CPU implementer: 0x41",
            "CPU architecture: 8",
            "CPU variant: 0x0",
            "CPU part: 0xd08",
            "CPU revision: 3",
        ],
    ),
    memory_kib=3_884_360,
    caches=(
        Cache(1, "data", 32 << 10, 2, 64, 1),
        Cache(1, "instruction", 48 << 10, 3, 64, 1),
        Cache(2, "unified", 1 << 20, 16, 64, 4),
    ),
    board=_BOARD,
)

_ARMV7_BOARD = "BeagleBone with a Cortex-A15"

CORTEX_A15 = Machine(
    name="cortex-a15",
    architecture="armv7l",
    cpu="cortex-a15",
    target="cortex-a15",
    model="ARMv7 Processor rev 4 (v7l)",
    cpuinfo=_cpuinfo(
        2,
        [
            "model name: ARMv7 Processor rev 4 (v7l)",
            "Features: half thumb fastmult vfp edsp neon vfpv3 tls vfpv4 idiva idivt vfpd32 lpae",
            "CPU implementer: 0x41",
            "CPU architecture: 7",
            "CPU variant: 0x2",
            "CPU part: 0xc0f",
            "CPU revision: 4",
        ],
    ),
    memory_kib=2_034_120,
    caches=(
        Cache(1, "data", 32 << 10, 2, 64, 1),
        Cache(1, "instruction", 32 << 10, 2, 64, 1),
        Cache(2, "unified", 1 << 20, 16, 64, 2),
    ),
    board=_ARMV7_BOARD,
)

NEOVERSE_V1 = replace(
    CORTEX_A72,
    name="neoverse-v1",
    cpu="max,sve-max-vq=2",  # registers of 256 bits
    target="neoverse-v1",
    model="implementer 0x41 part 0xd40",
    cpuinfo=_cpuinfo(
        2,
        [
            "Features: fp asimd asimdhp asimddp sve i8mm bf16",
            "CPU implementer: 0x41",
            "CPU part: 0xd40",
        ],
    ),
    board="",
)

NEOVERSE_N1 = replace(
    CORTEX_A72,
    name="neoverse-n1",
    cpu="neoverse-n1",
    target="neoverse-n1",
    model="implementer 0x41 part 0xd0c",
    cpuinfo=_cpuinfo(
        1,
        [
            "Features: fp asimd evtstrm crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc asimddp",
            "CPU implementer: 0x41",
            "CPU architecture: 8",
            "CPU variant: 0x3",
            "CPU part: 0xd0c",
            "CPU revision: 1",
        ],
    ),
    board="",
)

_VECTOR_BOARD = "A RISC-V board with vectors of 128 bits"

RISCV64 = Machine(
    name="riscv64",
    architecture="riscv64",
    cpu="rv64,v=true,vlen=128,vext_spec=v1.0",
    target="riscv64",
    model=_VECTOR_BOARD,
    cpuinfo=_cpuinfo(4, ["hart: 0", "isa: rv64imafdcv_zicsr_zifencei", "mmu: sv39"]),
    memory_kib=4_012_345,
    caches=(
        Cache(1, "data", 32 << 10, 8, 64, 1),
        Cache(1, "instruction", 32 << 10, 8, 64, 1),
        Cache(2, "unified", 512 << 10, 16, 64, 4),
    ),
    board=_VECTOR_BOARD,
)
