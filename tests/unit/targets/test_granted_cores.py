"""The cores that control groups grant, as containers see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.compiler.targets import granted_cores as module
from tilewright.compiler.targets.granted_cores import granted_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_cores", lambda: set(range(8)))


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ({"sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2),
        ({"sys/fs/cgroup/cpu.max": "1000000 100000\n"}, 8),
        ({"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"sys/fs/cgroup/a/cpu.max": "300000 100000\n"}, 3),
        ({"sys/fs/cgroup/a/b/cpu.max": "300000 100000\n", "sys/fs/cgroup/cpu.max": "2 1\n"}, 2),
        ({"sys/fs/cgroup/cpu.max": "0 0"}, 1),
        ({"sys/fs/cgroup/cpu.max": "-1 100000"}, 8),
        ({"sys/fs/cgroup/cpu.max": "9" * 5000 + " 1"}, 8),
        ({"sys/fs/cgroup/cpu.max": "three of four"}, 8),
    ],
)
def test_the_second_version(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/a/b\n", **files})
    assert granted_cores(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("400000", 4), ("", 8)])
def test_the_first_version(tmp_path: Path, quota: str, cores: int) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct/docker/1"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/1\n3:cpu,cpuacct:/docker/1\n",
            f"{folder}/cpu.cfs_quota_us": quota,
            f"{folder}/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/docker/1/cpu.max": "100000 100000",
        },
    )
    assert granted_cores(tmp_path) == cores


def test_a_name_does_not_lead_out(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/../../x\n", "sys/cpu.max": "1 1"})
    assert granted_cores(tmp_path) == 8
