"""The commands that do what a page shows. Names that others chose are quoted for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tilewright.service.api.schemas.jobs import JobView
from tilewright.service.cli.mode_options import ModeOptions
from tilewright.service.sentences import one_sentence

_NUMBERS = {
    "trials": "--trials",
    "seconds": "--seconds",
    "weight_limit": "--weight-limit",
    "seed": "--seed",
    "stop_gain": "--stop-gain",
    "target_ms": "--target-ms",
}
_USUAL = {"seed": 0, "stop_gain": 0.005}


def job_commands(job: JobView, server: str) -> list[tuple[str, str]]:
    """(what it does, the command) for one job."""
    where = f"--server {shlex.quote(server)}"
    same = " ".join(["tilewright job submit", *_submission(job), where])
    watch = f"tilewright job watch {job.id} {where}"
    listed = [("follow it", watch), ("tune the same again", same)]
    if job.artifact:
        fetch = f"tilewright job fetch {job.id} --output artifact {where}"
        listed.insert(0, ("fetch the artifact", fetch))
    header = '-H "Authorization: Bearer $TILEWRIGHT_TOKEN"'
    tasks = shlex.quote(f"{server}/v1/jobs/{job.id}/tasks")
    return [*listed, ("its tasks as JSON", f"curl {header} {tasks}")]


def worker_commands(server: str) -> list[tuple[str, str]]:
    """(what it does, the command) for a device that is to measure."""
    where = f"--server {shlex.quote(server)}"
    return [
        ("on the device", f"tilewright-worker {where} --token-file token --name NAME"),
        ("a link that makes a browser a device", f"tilewright device link --name NAME {where}"),
        (
            "a token for it, on the machine of the service",
            "tilewright token create NAME --scope measure",
        ),
        ("what is wrong with a device", "tilewright-worker --check"),
    ]


def _submission(job: JobView) -> list[str]:
    options: Mapping[str, Any] = job.options
    name = one_sentence(job.model_name) or "model.onnx"
    words = [f"./{name}" if name.startswith("-") else name, "--target", one_sentence(job.target)]
    words += ["--threads", str(job.threads), "--numerics", str(job.numerics)]
    for each in fields(ModeOptions):
        if options.get(each.name, each.default) != each.default:
            words += [f"--{each.name}", str(options[each.name])]
    for option, flag in _NUMBERS.items():
        value = options.get(option)
        if value is not None and value != _USUAL.get(option):
            words += [flag, str(value)]
    for dimension, sizes in (options.get("dims") or {}).items():
        listed = sizes if isinstance(sizes, list) else [sizes]
        listed = sorted(listed, key=lambda size: isinstance(size, str))  # hints of a range go last
        words += ["--dim", f"{dimension}={','.join(map(str, listed))}"]
    if options.get("strategy"):
        words += ["--strategy", str(options["strategy"])]
    words += [f"--{flag}" for flag in ("pad", "unconstrained") if options.get(flag)]
    return [shlex.quote(word) for word in words]
