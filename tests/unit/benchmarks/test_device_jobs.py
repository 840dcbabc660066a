"""The report of jobs on emulated machines."""

from __future__ import annotations

from benchmarks.device_jobs import DeviceJob, page
from benchmarks.report import Origin


def test_a_job_that_was_measured_elsewhere_is_not_counted() -> None:
    right = DeviceJob("board", "armv7l", "cortex-a15", 9, 7, 0, 2e-6, "faster", 16)
    jobs = [
        right,
        DeviceJob("board", "armv7l", "cortex-a15", 9, 7, 1, 2e-6, "tie", 16),
        DeviceJob("other", "riscv64", "riscv64", 9, 0, 0, 2e-6, "same", 0),
        DeviceJob("other", "riscv64", "riscv64", 9, 7, 0, 2e-3, "same", 0),
        DeviceJob("last", "aarch64", "cortex-a72", 9, 7, 0, None, "", 0),
    ]
    assert [each.right for each in jobs] == [True, False, False, False, False]
    text = page(Origin(), jobs)
    assert "1 of 5 jobs were tuned and certified" in text and "1 measurements name another" in text
    assert "| board | armv7l | cortex-a15 | 9 | 7 | 2.0e-06 | faster (16) |" in text
    assert "| last | aarch64 | cortex-a72 | 9 | 7 |  |  |" in text
