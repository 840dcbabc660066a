"""Build a release, and check it in clean environments: `python -m deploy.release`.

A release consists of an sdist and wheels. Its version is the tag of the commit. A commit without a
tag gets a development version, derived from the version in pyproject.toml. The release notes are
the section of CHANGELOG.md for the version.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deploy.wheels import (
    ANY,
    HARNESSES,
    LIBRARY,
    PLATFORMS,
    ROOT,
    Platform,
    build_python,
    build_sdist,
    contents,
    copy_sources,
    is_binary,
    make_wheels,
)
from tilewright.tuner.measure.harness.binary import harness_path
from tilewright.tuner.measure.harness.build import TARGETS

MACHINES = {"x86_64": 62, "aarch64": 183, "armv7l": 40, "riscv64": 243}
"""Maps the processor at the end of a wheel's platform tag to the machine number in ELF headers."""

NOTES = "release-notes.md"

CHECK = """
import os
import sys
from importlib.metadata import version
from pathlib import Path
import numpy as np
import tilewright
from tilewright.compiler.runtime import native
from tilewright.tuner.measure.harness.binary import FOLDER
from tilewright.tuner.measure.harness.build import harness_folder, local_harness
from tilewright.tuner.measure.harness.local import harness_here

installed, artifact, arrays = version("tilewright"), sys.argv[2], np.load(sys.argv[3])
assert installed == tilewright.__version__ == sys.argv[1], f"version {installed}"
executable = tilewright.load_artifact(artifact)
found = executable.run({port.name: arrays[port.name] for port in executable.inputs})
for name, output in zip(executable.output_names, found, strict=True):
    assert np.array_equal(output, arrays[name]), f"output {name} is another"
others = {name.partition(".")[0] for name in sys.modules} & {"onnx", "llvmlite", "pydantic", "rich"}
assert not others, f"{others} were imported"
os.environ["XDG_CACHE_HOME"] = os.path.abspath("caches")
assert local_harness(harness_folder(os.environ)).parent == FOLDER, "there is no harness"
with harness_here(print) as harness:
    assert harness.readings(1)[0].arithmetic_seconds > 0, "the harness measures nothing"
"""
"""A program that checks an installed package. Its arguments are the expected version, an artifact,
and the npz file with inputs and outputs (`Sample.arrays`)."""


class ReleaseError(Exception):
    """A check of the release failed; the message states the reason in a sentence."""


def version_of(declared: str, tags: Sequence[str], commits: int, commit: str) -> str:
    """Return the version of a commit.

    Args:
        declared: the version in pyproject.toml.
        tags: the tags of the commit; those of the form `v1.2` are versions.
        commits: the number of commits up to this commit, for development versions.
        commit: the abbreviated hash of the commit, for development versions.

    Raises:
        ReleaseError: if the commit has a version tag that differs from `declared`.
    """
    versions = [tag.removeprefix("v") for tag in tags if re.fullmatch(r"v\d+(\.\d+)*\S*", tag)]
    match versions:
        case []:
            return f"{declared}.dev{commits}+g{commit}"
        case [only] if only == declared:
            return only
        case _:
            said = ", ".join(f"v{version}" for version in versions)
            raise ReleaseError(f"the commit has the tag {said}, pyproject.toml says {declared}")


def version_here() -> str:
    """Return the version of the commit that is checked out.

    Raises:
        ReleaseError: if the working tree has changes, the tag differs from the version in
            pyproject.toml, or CHANGELOG.md has no notes for the version.
    """
    if _git("status", "--porcelain"):
        raise ReleaseError("the working tree has changes: a release is of a commit")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    tags = _git("tag", "--points-at", "HEAD").split()
    commits = int(_git("rev-list", "--count", "HEAD"))
    version = version_of(declared, tags, commits, _git("rev-parse", "--short=9", "HEAD"))
    notes_of(version)
    return version


def notes_of(version: str) -> str:
    """Return the release notes of a version, which are its section of CHANGELOG.md.

    For a development version, the result is the newest section.

    Raises:
        ReleaseError: if the section is missing, or the heading of a release has no date.
    """
    sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    for heading, _, body in (section.partition("\n") for section in sections):
        if ".dev" in version:
            return body.strip() + "\n"
        if heading.strip("[").split("]")[0].split()[:1] == [version]:
            if not re.search(r"\d{4}-\d\d-\d\d", heading):
                raise ReleaseError(f"the heading '## {heading}' of CHANGELOG.md has no date")
            return body.strip() + "\n"
    raise ReleaseError(f"CHANGELOG.md has no heading '## {version}'")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


# -- metadata in a file -----------------------------------------------------------------------


def check_wheel(path: Path, version: str) -> None:
    """Check the file name, metadata, tags, file list and binaries of a wheel.

    Raises:
        ReleaseError: if they contradict each other, or the wheel is not of this version.
    """
    name, stated, python, abi, tags = path.name.removesuffix(".whl").split("-")
    if (name, stated) != ("tilewright", version):
        raise ReleaseError(f"{path.name} is not of version {version}")
    with zipfile.ZipFile(path) as archive:
        files = {entry: archive.read(entry) for entry in archive.namelist()}
    information = f"tilewright-{version}.dist-info"
    _check_list(path.name, files, f"{information}/RECORD")
    metadata, wheel = (files[f"{information}/{part}"].decode() for part in ("METADATA", "WHEEL"))
    if f"\nVersion: {version}\n" not in metadata:
        raise ReleaseError(f"the metadata of {path.name} has another version")
    listed = set(re.findall(r"^Tag: (\S+)", wheel, re.MULTILINE))
    if listed != {f"{python}-{abi}-{tag}" for tag in tags.split(".")}:
        raise ReleaseError(f"{path.name} has the tags {', '.join(sorted(listed))}")
    libraries = [entry for entry in files if entry.endswith(".so")]
    if libraries != ([] if tags == ANY else [LIBRARY]):
        raise ReleaseError(f"{path.name} has the libraries {libraries}")
    if libraries:
        _check_library(path.name, files[LIBRARY], tags.split(".")[0])
    harnesses = {str(harness_path(target, Path(HARNESSES))): target for target in TARGETS}
    if {*filter(is_binary, files)} - {LIBRARY} != {*harnesses}:
        raise ReleaseError(f"{path.name} has not the harnesses for {', '.join(TARGETS)}")
    for entry, target in harnesses.items():
        if not _is_for(files[entry], target):
            raise ReleaseError(f"the harness for {target} of {path.name} is not of its processor")


def _check_list(name: str, files: dict[str, bytes], record: str) -> None:
    rows = list(csv.reader(files[record].decode().splitlines()))
    if {row[0] for row in rows} != set(files):
        raise ReleaseError(f"the list of {name} has other files than {name}")
    for entry, digest, _ in rows:
        if entry == record:
            continue
        found = base64.urlsafe_b64encode(hashlib.sha256(files[entry]).digest()).rstrip(b"=")
        if digest != f"sha256={found.decode()}":
            raise ReleaseError(f"{entry} of {name} is not what its list says")


def _check_library(name: str, library: bytes, tag: str) -> None:
    """Check that the C runtime in a wheel runs on the platform of the wheel's tag.

    Raises:
        ReleaseError: if the library is for another processor, or needs a newer C library (glibc).
    """
    if not _is_for(library, next(name for name in MACHINES if tag.endswith(name))):
        raise ReleaseError(f"the library of {name} is not of its processor")
    needed = [
        tuple(map(int, each.split(b"."))) for each in re.findall(rb"GLIBC_(\d+\.\d+)", library)
    ]
    stated = re.match(r"manylinux_(\d+)_(\d+)", tag)
    newest = (int(stated[1]), int(stated[2])) if stated else (0, 0)
    if needed and max(needed) > newest:
        least = ".".join(map(str, max(needed)))
        raise ReleaseError(f"the library of {name} needs glibc {least}")


def _is_for(binary: bytes, machine: str) -> bool:
    """Whether a file is an ELF binary for a processor.

    `machine` is the start of a name in MACHINES, such as `x86_64`.
    """
    number = next(number for name, number in MACHINES.items() if name.startswith(machine))
    return binary[:4] == b"\x7fELF" and int.from_bytes(binary[18:20], "little") == number


# -- clean environments -----------------------------------------------------------------------


def pythons() -> Iterator[tuple[str, str]]:
    """Yield (version, program) of each supported Python that is installed on this machine.

    The supported versions are those in the classifiers of pyproject.toml.
    """
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    for version in re.findall(r"Python :: (3\.\d+)", " ".join(classifiers)):
        here = ".".join(map(str, sys.version_info[:2])) == version
        program = sys.executable if here else shutil.which(f"python{version}")
        if program is None:
            print(f"not checked: there is no python{version}")
        elif subprocess.run([program, "--version"], capture_output=True, check=False).returncode:
            print(f"not checked: {program} does not start")
        else:
            yield version, program


class Clean:
    """A new virtual environment that contains only packages installed by `install`."""

    def __init__(self, folder: Path, python: str) -> None:
        _run([python, "-m", "venv", str(folder)])
        self._bin = folder / "bin"
        self._here = folder / "here"
        for name in ("compiler", "tuner", "db", "service"):
            (self._here / name).mkdir(parents=True)
            (self._here / name / "__init__.py").write_text("raise ImportError")

    def install(self, what: str) -> None:
        """Install a file, optionally with extras such as `[all]`.

        Raises:
            ReleaseError: if pip fails.
        """
        quiet = ["--quiet", "--disable-pip-version-check", "--no-cache-dir"]
        _run([str(self._bin / "python"), "-m", "pip", "install", *quiet, what])

    def run(self, *command: str) -> str:
        """Run a program of the environment, and return its output.

        The working directory contains packages named `compiler`, `tuner`, `db` and `service` that
        cannot be imported. This checks that an installed Tilewright does not import packages of
        these names from a user's folder.

        Raises:
            ReleaseError: if the program fails.
        """
        return _run([str(self._bin / command[0]), *command[1:]], self._here)


def _run(command: Sequence[str], folder: Path | None = None) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise ReleaseError(f"{' '.join(command)[:200]} ended with {done.returncode}:\n{tail}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Sample:
    """The files of a small model, for tests of installed packages.

    Attributes:
        model: the ONNX file.
        artifact: the folder of its artifact, compiled for this machine.
        inputs: an npz file with random inputs.
        arrays: an npz file with these inputs and the outputs that the artifact computes from them.
    """

    model: Path
    artifact: Path
    inputs: Path
    arrays: Path


def write_sample(folder: Path) -> Sample:
    """Create a small model, compile and run it, and write all files of the sample to a folder."""
    import numpy as np

    import tilewright
    from examples.compile_model import perceptron
    from tilewright.compiler.runtime.executable import Executable

    model, artifact = folder / "model.onnx", folder / "artifact"
    inputs, arrays = folder / "inputs.npz", folder / "arrays.npz"
    model.write_bytes(perceptron(0)[0].SerializeToString())
    command = [
        sys.executable,
        "-m",
        "tilewright.service.cli",
        "compile",
        str(model),
        "--dim",
        "batch=4",
    ]
    subprocess.run(
        [*command, "-o", str(artifact)],
        cwd=ROOT,
        env={**os.environ, "TILEWRIGHT_DATA_FOLDER": str(folder / "data")},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    executable = tilewright.load_artifact(artifact)
    assert isinstance(executable, Executable)  # all sizes are fixed, so that it is one program
    random = np.random.default_rng(0)
    held: dict[str, Any] = {}
    for port in executable.program.inputs:
        held[port.name] = random.standard_normal(port.shape, np.float32)
    np.savez(inputs, allow_pickle=False, **held)
    outputs = executable.run(held)
    held.update(zip(executable.output_names, outputs, strict=True))
    np.savez(arrays, allow_pickle=False, **held)
    return Sample(model, artifact, inputs, arrays)


def check_installed(what: Path, python: str, version: str, sample: Sample, folder: Path) -> None:
    """Install a wheel into a new environment, and run the sample's artifact and the worker there.

    Args:
        what: the wheel.
        python: the Python program that creates the environment.
        version: the version that the installed package must have.
        sample: the sample; the installed package must compute the same outputs.
        folder: the new folder of the environment.

    Raises:
        ReleaseError: if the installation or a program fails.
    """
    clean = Clean(folder, python)
    clean.install(str(what))
    clean.run("python", "-c", CHECK, version, str(sample.artifact), str(sample.arrays))
    clean.run("tilewright-worker", "--help")


def check_everything(what: Path, python: str, version: str, sample: Sample, folder: Path) -> None:
    """Install a wheel with the extra `[all]`, and compile and run the sample's model there.

    The arguments are those of `check_installed`.

    Raises:
        ReleaseError: if the installation or a command fails, or the version is wrong.
    """
    clean = Clean(folder, python)
    clean.install(f"{what}[all]")
    if version not in (said := clean.run("tilewright", "--version")).split():
        raise ReleaseError(f"tilewright --version says '{said.strip()}' of {version}")
    made, outputs = str(folder / "made"), str(folder / "outputs.npz")
    clean.run("tilewright", "compile", str(sample.model), "--dim", "batch=4", "-o", made)
    clean.run("tilewright", "run", made, "--inputs", str(sample.inputs), "--outputs", outputs)


# -- the release ------------------------------------------------------------------------------


def check_sdist(sdist: Path, version: str, folder: Path) -> Path:
    """Build a wheel from an sdist, and return the wheel's path.

    Raises:
        ReleaseError: if the wheel's files differ from those of a wheel built from the sources.
    """
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    if any(not name.startswith(f"tilewright-{version}") or ".." in name for name in names):
        raise ReleaseError(f"{sdist.name} has files outside of its folder")
    _run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "-w",
            str(folder),
            str(sdist),
        ]
    )
    (built,) = folder.glob("*.whl")
    (folder / "again").mkdir()
    expected = contents(build_python(folder / "again", version))
    found = contents(built)
    other = sorted(n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n))
    if other:
        raise ReleaseError(f"{sdist.name} builds another {', '.join(other[:5])}")
    return built


def release(output: Path, version: str, platforms: Sequence[Platform], everything: bool) -> None:
    """Build and check all files of a release in an empty folder.

    Args:
        output: the folder.
        version: the version of the release.
        platforms: the platforms for which to build wheels.
        everything: whether to check the installation with the extra `[all]` too.

    Raises:
        ReleaseError: if a check fails.
    """
    output.mkdir(parents=True, exist_ok=True)
    if left := sorted(path.name for path in output.iterdir()):
        raise ReleaseError(f"{output} is not empty: {left[0]}")
    (output / NOTES).write_text(notes_of(version))
    with TemporaryDirectory() as temporary:
        copy_sources(Path(temporary) / "source", version)
        sdist = build_sdist(Path(temporary) / "source", output)
    wheels = make_wheels(output, platforms, version, TARGETS)
    for path in wheels:
        check_wheel(path, version)
        print(f"{path.stat().st_size / 1024:6.0f} KiB  {path.name}: whole", flush=True)
    machine = f"_{os.uname().machine}.whl"
    ours = [p for p in wheels if "manylinux" in p.name and p.name.endswith(machine)]
    with TemporaryDirectory() as temporary:
        sample = write_sample(Path(temporary))
        (Path(temporary) / "sdist").mkdir()
        built = check_sdist(sdist, version, Path(temporary) / "sdist")
        print(f"{sdist.stat().st_size / 1024:6.0f} KiB  {sdist.name}: builds the same", flush=True)
        _install(built, sys.executable, version, sample, "the sdist's wheel")
        for number, (name, python) in enumerate(pythons()):
            for path in ours + (wheels[:1] if number == 0 else []):
                _install(path, python, version, sample, f"{path.name} on Python {name}")
            if everything and number == 0:
                for path in ours:
                    with TemporaryDirectory() as folder:
                        check_everything(path, python, version, sample, Path(folder))
                    print(f"{path.name}[all] compiles and runs", flush=True)


def _install(path: Path, python: str, version: str, sample: Sample, name: str) -> None:
    with TemporaryDirectory() as temporary:
        check_installed(path, python, version, sample, Path(temporary))
    print(f"{name}: installed alone, runs an artifact and the harness", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build a release, and return the exit status: 1 if a check failed, otherwise 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="an empty folder")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of platforms' names")
    parser.add_argument("--everything", action="store_true", help="check [all], too: 300 MB")
    given = parser.parse_args(arguments)
    chosen = [p for p in PLATFORMS if any(part in p.tags[0] for part in given.only)]
    try:
        version = version_here()
        print(f"version {version}", flush=True)
        release(given.output, version, chosen, given.everything)
    except ReleaseError as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
