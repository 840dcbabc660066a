"""`tilewright-worker --check` on a board of 32 bits, in its own Python and with its own sandbox."""

from __future__ import annotations

import json
import os
import shlex
import subprocess

import pytest

from tests.devices.emulators import Emulated
from tests.devices.machines import CORTEX_A15, Machine

pytestmark = [pytest.mark.devices, pytest.mark.timeout(900)]


@pytest.fixture
def machine() -> Machine:
    return CORTEX_A15


def test_a_board_of_32_bits_is_looked_at(emulated: Emulated) -> None:
    command = [*emulated.python, "-m", "tilewright.service.worker", "--check", "--json"]
    done = subprocess.run(
        [*command, "--sandbox-users", "none", "--python", shlex.join(emulated.python)],
        cwd=emulated.packages,
        env={**os.environ, "PYTHONPATH": str(emulated.packages)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr
    found = {each["name"]: each for each in json.loads(done.stdout)}
    assert found["cores"]["found"].startswith("cortex-a15 (")
    assert found["features"]["found"].endswith("code is made for 'cortex-a15'")
    assert found["governor"]["grade"] == "fine"
    assert "(arithmetic)" in found["noise"]["found"], "its C runtime ran there"
