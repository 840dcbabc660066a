"""Atomic writing of artifact folders.

The files are written to a temporary folder, which is renamed when the artifact is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tilewright.compiler.errors import ArtifactError
from tilewright.compiler.runtime.artifact import (
    FORMAT,
    FORMAT_VERSION,
    LIBRARY,
    MANIFEST,
    RANGED_VERSION,
    STAGED_VERSION,
    WEIGHTS,
    Artifact,
    SizedProgram,
    manifest_checksum,
)
from tilewright.compiler.runtime.kernel import ABI_VERSION
from tilewright.compiler.runtime.ports import Dims, ModelPorts, dynamic_dims
from tilewright.compiler.runtime.program import Program
from tilewright.compiler.runtime.program_json import program_to_json
from tilewright.compiler.runtime.segment_tree import segments_to_json
from tilewright.compiler.runtime.segments import SegmentBoundary
from tilewright.compiler.runtime.weight_file import WeightFile


class ArtifactWriter:
    """A context manager that writes an artifact into a temporary folder next to its destination.

    `weights` collects packed weights, and `finish` writes the other files. The artifact that
    `finish` returns can be tested before `publish` moves it to its destination, where it replaces
    an older artifact. If `publish` is not called, the temporary folder is removed when the context
    exits.

    Args:
        path: the destination folder.

    Raises:
        ArtifactError: from the constructor, if `path` exists and is not an artifact; on entering or
            leaving the context, if a file cannot be written.
    """

    weights: WeightFile

    def __init__(self, path: str | Path) -> None:
        self._path = check_destination(path)
        self._staging = _staging_folder(self._path)

    def __enter__(self) -> ArtifactWriter:
        with _writing(self._path):
            self._staging.mkdir()
            try:
                self.weights = WeightFile(self._staging / WEIGHTS)
            except OSError:
                self._staging.rmdir()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # `finish` and `publish` have already reported errors that matter
            self.weights.close()
        shutil.rmtree(self._staging, ignore_errors=True)
        if isinstance(error, OSError):
            with _writing(self._path):
                raise error

    def finish(
        self,
        programs: Sequence[SizedProgram],
        library: bytes,
        target: Mapping[str, Any],
        metadata: Mapping[str, Any],
        ports: ModelPorts | None = None,
        stages: SegmentBoundary[int] | None = None,
    ) -> Artifact:
        """Write all files of the artifact except the weights, and return the artifact.

        The files are in the writer's temporary folder.

        Args:
            programs: the programs of the artifact. `Artifact.executable` loads the first by
                default.
            library: the linked shared library with the kernels of all programs.
            target: `Target.to_json()`.
            metadata: JSON data: model, schedules, record keys, versions.
            ports: the model's inputs and outputs with their dynamic dimensions; None if no input
                has a named dimension.
            stages: for a segmented model, the tree of its segments, which refer to `programs` by
                index; None for other models. A segmented model computes some tensor sizes from
                data. Each segment is a part of the model with its own program.

        Raises:
            OSError: if a file cannot be written.
        """
        ports = ports or _fixed_ports(programs[0].program)
        _write(self._staging / LIBRARY, library)
        digest = hashlib.sha256(library).hexdigest()
        version = FORMAT_VERSION
        if stages is not None:
            version = STAGED_VERSION
        elif any(entry.program.dimensions for entry in programs):
            version = RANGED_VERSION
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "version": version,
            "abi": ABI_VERSION,
            "target": dict(target),
            "programs": [
                {"sizes": dict(entry.sizes), "program": program_to_json(entry.program)}
                for entry in programs
            ],
            "ports": ports.to_json(),
            **({} if stages is None else {"stages": segments_to_json(stages)}),
            "files": {
                LIBRARY: {"bytes": len(library), "sha256": digest},
                WEIGHTS: self.weights.finish(),
            },
            "metadata": dict(metadata),
        }
        manifest["checksum"] = manifest_checksum(manifest)
        _write(self._staging / MANIFEST, json.dumps(manifest, indent=1).encode())
        return Artifact(self._staging, tuple(programs), ports, dict(target), dict(metadata), stages)

    def publish(self) -> None:
        """Flush the finished folder to disk, then move it to its destination.

        Raises:
            OSError: if the folder cannot be flushed or moved.
        """
        self.weights.close()
        replace_folder(self._staging, self._path)


def check_destination(path: str | Path) -> Path:
    """Check that an artifact may be saved at a path, and return the absolute path.

    Three kinds of path are allowed: one that does not exist, an empty folder, and an artifact
    folder without additional files. Missing parent folders are created.

    Raises:
        ArtifactError: if something else exists at the path, or a parent folder cannot be created or
            written.
    """
    path = Path(path).absolute()
    try:
        for folder in path.parents:
            if folder.exists() and not folder.is_dir():
                raise ArtifactError(f"cannot write artifact '{path}': '{folder}' is a file")
        if path.exists() and (reason := _hindrance(path)):
            raise ArtifactError(f"'{path}' {reason}, it is not replaced")
    except (OSError, ValueError) as error:
        raise _not_written(path, error) from error
    above = next(folder for folder in path.parents if folder.exists())
    staging = _staging_folder(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staging.mkdir()  # the permissions of /proc allow root more than the kernel does
        staging.rmdir()
    except ValueError as error:  # a null byte
        raise _not_written(path, error) from error
    except OSError as error:
        raise ArtifactError(
            f"cannot write artifact '{path}': no folder can be created in '{above}' "
            f"({error.strerror}); choose another destination"
        ) from error
    return path


def _staging_folder(path: Path) -> Path:
    """Return a new name for the temporary folder in which the artifact for `path` is written."""
    return path.parent / f".{path.name}.{secrets.token_hex(4)}"


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A context that converts OSError to an ArtifactError that names the artifact's path."""
    try:
        yield
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: Path, error: Exception) -> ArtifactError:
    reason = getattr(error, "strerror", None) or error
    return ArtifactError(f"cannot write artifact '{path}': {reason}")


def _fixed_ports(program: Program) -> ModelPorts:
    outputs: dict[str, Dims] = {}
    for result in program.results:
        first = program.outputs[result.places[0]]
        outputs[result.name] = (-1,) if result.is_list else dynamic_dims(first.shape)
    return ModelPorts({port.name: dynamic_dims(port.shape) for port in program.inputs}, outputs)


def _hindrance(path: Path) -> str:
    """Return the reason why an existing path must not be replaced, for an error message.

    The result is empty for an empty folder, and for an artifact folder without other files. A
    folder counts as an artifact only if the content of its manifest.json shows it, because web
    applications use this file name too. Other files must not be lost, because users may have added
    them.
    """
    names = {each.name for each in path.iterdir()} if path.is_dir() else {""}
    own = _own_files(path / MANIFEST) if MANIFEST in names else set()
    if not own and names:
        return "exists and is not an artifact"
    others = sorted(names - own)
    return f"holds '{others[0]}' next to an artifact" if others else ""


def _own_files(manifest: Path) -> set[str]:
    """Return the names of the files that belong to an artifact, according to its manifest.

    The result is empty if the manifest is unreadable or belongs to other software.
    """
    try:
        said = json.loads(manifest.read_bytes())
        if str(said["format"]).startswith("tilewright-"):
            return {MANIFEST, *said["files"]}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass
    return set()


def _write(path: Path, data: bytes | memoryview) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_folder(staging: Path, path: Path) -> None:
    """Move the complete folder `staging` to `path`, and delete the folder that it replaces.

    An existing folder at `path` is renamed first. If the move fails, its old name is restored.
    """
    if not path.exists():
        staging.rename(path)
        return
    aside = path.parent / f".{path.name}.{secrets.token_hex(4)}.old"
    path.rename(aside)
    try:
        staging.rename(path)
    except OSError:
        with suppress(OSError):
            aside.rename(path)
        raise
    shutil.rmtree(aside, ignore_errors=True)
