"""Command lines for the actions of a page, which users copy into a terminal.

Untrusted names in them are quoted for a shell.
"""

from __future__ import annotations

import shlex
from contextlib import suppress

from tilewright.service.api.schemas.jobs import JobView
from tilewright.service.option_texts import OptionError
from tilewright.service.options import of_earlier_releases, stated_words
from tilewright.service.show.text import one_sentence


def job_commands(job: JobView, server: str) -> list[tuple[str, str]]:
    """Return (purpose, command line) pairs that follow a job, repeat it, or fetch its artifact."""
    where = f"--server {shlex.quote(server)}"
    watch = f"tilewright job watch {job.id} {where}"
    listed = [("follow it", watch)]
    with suppress(OptionError):  # another release may have stored options that are unknown here
        same = " ".join(["tilewright job submit", *_submission(job), where])
        listed.append(("tune the same again", same))
    if job.artifact:
        fetch = f"tilewright job fetch {job.id} --output artifact {where}"
        listed.insert(0, ("fetch the artifact", fetch))
    header = '-H "Authorization: Bearer $TILEWRIGHT_TOKEN"'
    tasks = shlex.quote(f"{server}/v1/jobs/{job.id}/tasks")
    return [*listed, ("get its tasks as JSON", f"curl {header} {tasks}")]


def worker_commands(server: str) -> list[tuple[str, str]]:
    """Return (purpose, command line) pairs that turn a device into a measurement worker."""
    where = f"--server {shlex.quote(server)}"
    return [
        (
            "start the worker on the device",
            f"tilewright-worker {where} --token-file token --name NAME",
        ),
        (
            "print a link that makes a browser a device",
            f"tilewright device link --name NAME {where}",
        ),
        (
            "create its token, on the machine of the service",
            "tilewright token create NAME --scope measure",
        ),
        ("find the faults of a device", "tilewright-worker --check"),
    ]


def _submission(job: JobView) -> list[str]:
    """Return the arguments, quoted for a shell, that submit a job again with the same options.

    Raises:
        OptionError: if the job has an option that this release does not define.
    """
    name = one_sentence(job.model_name) or "model.onnx"
    words = [f"./{name}" if name.startswith("-") else name, "--target", one_sentence(job.target)]
    # the job's columns, and its stored options
    stored = {
        "threads": job.threads,
        "numerics": job.numerics,
        "priority": job.priority,
        "wait_seconds": job.wait_seconds,
        **of_earlier_releases(job.options),
    }
    words += stated_words(stored)
    return [shlex.quote(word) for word in words]
