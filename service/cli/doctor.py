"""`tilewright doctor`: checks of this machine and installation, with remedies."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.service.cli.common import JsonOption
from tilewright.service.cli.terminal import say


def doctor(
    as_json: JsonOption = False,
) -> None:
    """Check this machine and this installation, and print a remedy for each problem.

    Status 0: nothing to do; 3: something is poor; 1: something does not work.

    Example: tilewright doctor --json
    """
    from tilewright.service.cli.common import load_settings
    from tilewright.service.doctor import check_installation
    from tilewright.service.worker.check import check_device, exit_status, report
    from tilewright.tuner.measure.harness.local import local_readings

    findings = check_installation(load_settings())
    findings += check_device(Path("/"), (), local_readings)
    say(report(findings, as_json))
    if status := exit_status(findings):
        raise typer.Exit(status)
