"""The peak of one core, in floating-point operations a second: `python -m benchmarks.peak`.

Speeds of kernels are given as shares of it.
"""

from __future__ import annotations

from tilewright.compiler.targets.host import host_target
from tilewright.tuner.measure.roofline import peak_flops

if __name__ == "__main__":
    host = host_target()
    print(f"{peak_flops(host) / 1e9:.1f} GFLOP/s a core, {host.name}")
