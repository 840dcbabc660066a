"""The most floating-point operations a core of this machine does: `python -m benchmarks.peak`.

What a kernel executes is given as a share of this.
"""

from __future__ import annotations

from compiler.roofline import peak_flops
from compiler.target import host_target

if __name__ == "__main__":
    host = host_target()
    print(f"{peak_flops(host) / 1e9:.1f} GFLOP/s a core, {host.name}")
