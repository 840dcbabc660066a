"""Converts a newly compiled program, or an artifact's program, to a `Loadable` that a device
runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from tilewright.compiler import driver
from tilewright.compiler.codegen.link import link_shared
from tilewright.compiler.program.builder import CompiledProgram
from tilewright.compiler.runtime.artifact import LIBRARY, Artifact
from tilewright.compiler.schedule.templates import template_of
from tilewright.service.jobs.device.device import Loadable
from tilewright.service.jobs.plan.planning import Planned

LoadableOf = Callable[[Planned], Loadable]
"""A function that returns the part of a compiled model that serves the sizes of a plan."""


def of_compiled(compiled: CompiledProgram) -> Loadable:
    """Return a compiled program as a Loadable.

    The program is linked to a shared library only when a device calls `link`.
    """
    return Loadable(
        compiled.program,
        compiled.weights,
        partial(driver.load_program, compiled),
        partial(_linked, compiled.objects),
        frozenset(
            compiled.described[key][0]
            for key, schedule in compiled.schedules.items()
            if template_of(schedule.algorithm).mixes
        ),
    )


def at_sizes(compiled: CompiledProgram, planned: Planned) -> Loadable:
    """Return a compiled program, with fixed sizes, as a `Loadable` that a device can run.

    The sizes of `planned` replace the dynamic dimensions of the program.
    """
    program = compiled.program
    if program.dimensions:
        program = program.at(dict(planned.sizes))
    return of_compiled(replace(compiled, program=program))


def of_artifact(artifact: Artifact, planned: Planned) -> Loadable:
    """Return one program of an artifact as a `Loadable` that a device can run.

    An artifact (a compiled model) may have a program per combination of sizes. If the model's data
    determine sizes, the model runs as several segments, with a program per segment. `planned`
    states the sizes and the segment of the program to return. The code and the weights are read
    from the artifact's files.

    Raises:
        ArtifactError: if the artifact does not support these sizes.
        OSError: if its files cannot be read.
    """
    sizes = dict(planned.sizes)
    program = artifact.program(sizes, planned.stage if planned.stages is not None else None)
    return Loadable(
        program,
        artifact.weights(),
        lambda threads: artifact.load(program, threads),
        (artifact.path / LIBRARY).read_bytes,
        frozenset(
            str(said["kernel"])
            for said in artifact.metadata["schedules"].values()
            if template_of(said["schedule"]["algorithm"]).mixes
        ),
    )


def _linked(objects: tuple[bytes, ...]) -> bytes:
    """Link object files to a shared library, and return the bytes of the library.

    Raises CompilerError if the files cannot be linked.
    """
    with tempfile.TemporaryDirectory(prefix="tilewright-link-") as folder:
        library = Path(folder) / "kernels.so"
        link_shared(list(objects), library)
        return library.read_bytes()
