"""Artifacts: compiled models as folders that load with NumPy alone.

    manifest.json   the contents: programs, target, schedules, versions, checksums
    kernels.so      the kernels of all programs, one shared library
    weights.bin     the packed constants of all programs, mapped into memory read-only

An artifact contains machine code, which runs with all rights of the process that loads it. The
checksums detect accidental damage, but not a manipulated artifact.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compiler.errors import ArtifactError
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.guarded import GuardedModel, unsegmented
from tilewright.compiler.runtime.inputs import listed
from tilewright.compiler.runtime.kernel import ABI_VERSION
from tilewright.compiler.runtime.model import Model
from tilewright.compiler.runtime.native import check_threads, vector_bits
from tilewright.compiler.runtime.packing import Array, Bytes, aligned_empty
from tilewright.compiler.runtime.ports import (
    Dims,
    ModelPorts,
    Sizes,
    checked_sizes,
    dims_text,
    ranges_text,
    shape_text,
    sizes_text,
)
from tilewright.compiler.runtime.program import Port, Program
from tilewright.compiler.runtime.program_json import program_from_json
from tilewright.compiler.runtime.segment_tree import (
    check_segments,
    load_segments,
    segments_from_json,
)
from tilewright.compiler.runtime.segments import (
    LiveIn,
    LiveIns,
    ModelSegment,
    SegmentBoundary,
    SegmentGuard,
)
from tilewright.compiler.sizes import Dimension
from tilewright.compiler.targets.detection import this_device
from tilewright.compiler.targets.families import family_of

FORMAT = "tilewright-artifact"
FORMAT_VERSION, RANGED_VERSION, STAGED_VERSION = 2, 3, 4
"""Format versions of artifacts: with fixed sizes only, with ranges of sizes, and of segmented
models."""
MANIFEST, LIBRARY, WEIGHTS = "manifest.json", "kernels.so", "weights.bin"


@dataclass(frozen=True, slots=True)
class SizedProgram:
    """A program, and the fixed sizes for which it was compiled.

    `sizes` has the size of each named dimension of the model. It is empty for a program with
    dynamic dimensions, which accepts all sizes in the ranges of `Program.dimensions`, and for a
    model without named dimensions.
    """

    sizes: Sizes
    program: Program


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact folder whose files were verified.

    Attributes:
        path: the folder.
        programs: one program per supported combination of fixed sizes, and at most one program with
            dynamic sizes. An artifact cannot compile further programs.
        ports: the model's inputs and outputs, with the names of their dynamic dimensions.
        stages: the tree of segments of a segmented model; None for other models. A run of a
            segmented model computes some sizes from data, and selects one segment after the other.
            Each segment has an index into `programs`. These programs cannot be selected by sizes.
        target: the target of the generated code (`Target.to_json`).
        metadata: further manifest entries that the compiler writes: model, schedules, record keys,
            versions.
    """

    path: Path
    programs: tuple[SizedProgram, ...]
    ports: ModelPorts
    target: Mapping[str, Any]
    metadata: Mapping[str, Any]
    stages: SegmentBoundary[int] | None = None

    def executable(self, threads: int = 1, sizes: Mapping[str, int] | None = None) -> Executable:
        """Load the program that supports the given sizes of named dimensions.

        Without `sizes`, the first program of the artifact is loaded.

        Raises:
            ArtifactError: if no program supports the sizes, the library does not load, or the model
                is segmented (computes some sizes from data, so that a run needs several programs).
            InvalidArgumentError: if `threads` is not from 1 to `MAX_THREADS`.
        """
        check_threads(threads)
        return self.load(self.program(sizes), threads)

    def model(self, threads: int = 1) -> GuardedModel:
        """Return a model that selects among all programs of the artifact in each run.

        The selection depends on the input shapes. For a segmented model, it also depends on sizes
        that are computed from data during the run. Each program is loaded on first use.

        Raises:
            ArtifactError: if the library does not load.
            InvalidArgumentError: if `threads` is not from 1 to `MAX_THREADS`.
        """
        check_threads(threads)
        if self.stages is not None:
            return load_segments(
                self.stages,
                self.ports,
                lambda number: self.load(self.programs[number].program, threads),
            )
        ranged = self.ranged
        first = unsegmented(
            self.reads,
            self.ports,
            None if ranged is None else self.load(ranged, threads),
            [entry.sizes for entry in self.programs if entry.program is not ranged],
        )

        def make(
            cut: SegmentBoundary[Executable], facts: SegmentGuard, values: Mapping[str, Array]
        ) -> ModelSegment[Executable]:
            program = self.executable(threads, dict(facts.sizes))
            stage = cut.made[facts] = ModelSegment(program, tuple(self.ports.outputs), None)
            return stage

        return GuardedModel(self.ports, first, make)

    @property
    def reads(self) -> LiveIns:
        """The inputs of a model, with the ranges of sizes that its programs accept.

        The ranges are empty if all programs have fixed sizes. The model must not compute sizes from
        data (must not be segmented).
        """
        inputs = zip(self.programs[0].program.inputs, self.ports.inputs.values(), strict=True)
        crossings = tuple(
            LiveIn(port.name, "", port.dtype, dims, deciding=False, text=port.labels is not None)
            for port, dims in inputs
        )
        ranges = () if self.ranged is None else self._ranges(self.ranged)
        return LiveIns(crossings, {each.name: each for each in ranges})

    def load(self, chosen: Program, threads: int = 1) -> Executable:
        """Load the library and the weights, and return an executable for a program.

        `chosen` is one of `programs`, or a copy of one with its dynamic sizes fixed by
        `Program.at`.

        Raises:
            ArtifactError: if the library or the weights cannot be loaded.
        """
        path = self.path / LIBRARY
        try:
            library = ctypes.CDLL(str(path.resolve()))
            addresses = {
                stage.symbol: _address(library, stage.symbol)
                for kernel in chosen.kernels
                for stage in kernel.stages
            }
            weights = self.weights()
        except (OSError, AttributeError) as error:
            raise ArtifactError(f"artifact '{self.path}': cannot load: {error}") from error
        try:
            return Executable(chosen, weights, addresses.__getitem__, threads, library)
        except (ValueError, OverflowError) as error:
            raise ArtifactError(f"artifact '{self.path}': {error}") from error

    @property
    def ranged(self) -> Program | None:
        """The program that accepts ranges of sizes.

        None if all programs have fixed sizes, or the model is segmented (computes some sizes from
        data, so that a run needs several programs).
        """
        if self.stages is not None:
            return None
        return next((e.program for e in self.programs if e.program.dimensions), None)

    def weights(self) -> Bytes:
        """Return the packed constants of all programs, as a read-only memory mapping of the file.

        Raises:
            OSError: if the file cannot be read.
        """
        return _map(self.path / WEIGHTS)

    def program(self, sizes: Mapping[str, int] | None = None, stage: int | None = None) -> Program:
        """Return the program that was compiled for the given sizes of named dimensions.

        If only the program that accepts ranges supports the sizes, the result is a copy of that
        program with these sizes (`Program.at`). Without `sizes` and `stage`, the result is the
        artifact's first program.

        A segmented model computes some sizes from data, so that a run needs several programs. For
        such a model, `stage` is the index of a program, and `sizes` has a size for each of that
        program's dynamic dimensions.

        Raises:
            ArtifactError: if no program supports the sizes, or the model is segmented and `stage`
                is None.
        """
        if stage is not None:
            program = self.programs[stage].program
            return program.at(sizes or {}) if program.dimensions else program
        if self.stages is not None:
            raise ArtifactError(
                f"artifact '{self.path}' runs in stages, since the data decide sizes: none of its "
                "programs is the whole model"
            )
        if sizes is None:
            return self.programs[0].program
        for entry in self.programs:
            if dict(entry.sizes) == dict(sizes) and not entry.program.dimensions:
                return entry.program
        found = self._ranged_at(sizes)
        if found is not None:
            return found
        raise ArtifactError(
            f"artifact '{self.path}' does not serve the sizes {sizes_text(tuple(sizes.items()))}, "
            f"only {self.served_text}"
        )

    def _ranged_at(self, sizes: Mapping[str, int]) -> Program | None:
        """Return a copy of the program that accepts ranges, with its dimensions fixed to `sizes`.

        The result is None if there is no such program, or a size is missing, unknown or outside its
        range. It is also None if the program computes a dimension from others, and `sizes` has a
        different size for this dimension.
        """
        ranged = self.ranged
        known = {} if ranged is None else {d.name: d for d in ranged.dimensions}
        whole = known.keys() <= sizes.keys() <= known.keys() | set(self.ports.open)
        if ranged is None or not whole:
            return None
        if any(d.name in sizes and sizes[d.name] not in d for d in self._ranges(ranged)):
            return None
        closed = ranged.at(sizes)
        named = zip(closed.inputs, self.ports.inputs.values(), strict=True)
        pairs = [pair for port, dims in named for pair in zip(port.shape, dims, strict=True)]
        agree = all(sizes.get(dim, size) == size for size, dim in pairs if isinstance(dim, str))
        return closed if agree else None

    def _ranges(self, ranged: Program) -> tuple[Dimension, ...]:
        """Return the ranges of the program's dimensions, and of dimensions computed from them."""
        return *ranged.dimensions, *self.ports.ranges

    @property
    def served_text(self) -> str:
        """The sizes that the programs support, as text such as `sequence=16; sequence 1..512`.

        In this example, one program has a fixed size, and another one accepts a range.
        """
        return "; ".join(
            ranges_text(entry.program.dimensions) or sizes_text(entry.sizes)
            for entry in self.programs
        )


def load_artifact(
    path: str | Path, threads: int = 1, sizes: Mapping[str, int] | None = None
) -> Model:
    """Verify an artifact folder and load it.

    If `sizes` has a size for each named dimension, the result is the program for these sizes. If
    the artifact has only one program and its sizes are fixed, the result is this program.
    Otherwise, `Model.run` selects a program by the shapes of the inputs. If no program matches and
    the artifact allows padding, the inputs are padded to the next larger supported sizes. A
    segmented model (one that computes some sizes from data) runs several programs in order.

    Raises:
        ArtifactError: if a file is missing or damaged, the format version is unsupported, this
            processor lacks a feature that the code uses, or no program supports the sizes.
        InvalidArgumentError: if `threads` is not from 1 to `MAX_THREADS`, or `sizes` is not a
            mapping from names to integers.
    """
    if sizes is not None:
        sizes = checked_sizes(sizes)
    artifact = read_artifact(path)
    several = artifact.stages is not None or len(artifact.programs) > 1
    if sizes is None and (several or artifact.ranged is not None):
        return artifact.model(threads)
    return artifact.executable(threads, sizes)


def read_artifact(path: str | Path) -> Artifact:
    """Read an artifact's manifest and verify its files, without loading the code.

    Raises:
        ArtifactError: if a file is missing or damaged, the format version is unsupported, or this
            processor lacks a feature that the code uses.
    """
    path = Path(path)
    try:
        return _read(path)
    except KeyError as error:
        reason = f"there is no {error}"
    except (TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        reason = str(error)
    raise ArtifactError(f"artifact '{path}': {MANIFEST} is malformed: {reason}")


def _read(path: Path) -> Artifact:
    """Read and verify an artifact folder, like `read_artifact`.

    A malformed manifest raises the error of the failed conversion, such as KeyError, which
    `read_artifact` converts to ArtifactError.
    """
    manifest = _read_manifest(path)
    target = manifest["target"]
    _check_processor(path, target)
    for name in (LIBRARY, WEIGHTS):
        _check_file(path, name, manifest["files"][name])
    programs = tuple(
        SizedProgram(
            tuple((str(k), int(v)) for k, v in entry["sizes"].items()),
            program_from_json(entry["program"]),
        )
        for entry in manifest["programs"]
    )
    ports = ModelPorts.from_json(manifest["ports"])
    ports.check_padding()
    if not programs:
        raise ArtifactError(f"artifact '{path}' contains no program")
    if manifest["version"] == STAGED_VERSION:
        stages = segments_from_json(manifest["stages"])
        check_segments(stages, [entry.program for entry in programs], ports)
        return Artifact(path, programs, ports, target, dict(manifest["metadata"]), stages)
    for entry in programs:
        inputs, outputs = entry.program.inputs, entry.program.outputs
        _check_ports("input", ports.inputs, {port.name: port for port in inputs})
        given = {
            result.name: None if result.is_list else outputs[result.places[0]]
            for result in entry.program.results
        }
        _check_ports("output", ports.outputs, given)
    if sum(bool(entry.program.dimensions) for entry in programs) > 1:
        raise ArtifactError(f"artifact '{path}' contains two programs with ranges")
    return Artifact(path, programs, ports, target, dict(manifest["metadata"]))


def _check_ports(kind: str, stated: Mapping[str, Dims], ports: Mapping[str, Port | None]) -> None:
    """Check that a program has the inputs or outputs that the manifest states.

    Names, their order, and the number of dimensions must agree.

    Args:
        kind: `input` or `output`, for the error message.
        stated: the dimensions of each input or output in the manifest.
        ports: the inputs or outputs of the program. An output that is a list of arrays is None, and
            its dimensions are not checked.

    Raises:
        ValueError: if the program and the manifest differ.
    """
    if list(stated) != list(ports):
        raise ValueError(f"a program has the {kind}s {listed(ports)}, not {listed(stated)}")
    for name, port in ports.items():
        if port is not None and len(port.shape) != len(stated[name]):
            raise ValueError(
                f"{kind} '{name}' has shape {shape_text(port.shape)}, not {dims_text(stated[name])}"
            )


def _read_manifest(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise ArtifactError(f"'{path}' is not an artifact: it is not a folder")
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
    except FileNotFoundError as error:
        raise ArtifactError(f"'{path}' is not an artifact: {MANIFEST} is missing") from error
    except (OSError, ValueError) as error:
        raise ArtifactError(f"artifact '{path}': {MANIFEST} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ArtifactError(f"'{path}' is not an artifact: {MANIFEST} is of another kind")
    versions = (manifest.get("version"), manifest.get("abi"))
    formats = FORMAT_VERSION, RANGED_VERSION, STAGED_VERSION
    if versions not in [(version, ABI_VERSION) for version in formats]:
        raise ArtifactError(
            f"artifact '{path}' has format {versions[0]} and kernel ABI {versions[1]}, this "
            f"runtime reads formats {FORMAT_VERSION} to {STAGED_VERSION} and ABI {ABI_VERSION}: "
            "compile the model again"
        )
    if manifest.get("checksum") != manifest_checksum(manifest):
        raise ArtifactError(f"artifact '{path}': {MANIFEST} is damaged: its checksum differs")
    absent = {"target", "programs", "ports", "files", "metadata"} - manifest.keys()
    if absent:
        raise ArtifactError(f"artifact '{path}': {MANIFEST} has no '{min(absent)}'")
    return manifest


def manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest as canonical JSON, excluding the entry `checksum`."""
    rest = {key: value for key, value in manifest.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _check_processor(path: Path, target: Mapping[str, Any]) -> None:
    built_for = str(target.get("triple", "")).partition("-")[0]
    facts = this_device()
    family = family_of(facts.architecture)
    here = family.name if family else facts.architecture
    if built_for and built_for != here:
        raise ArtifactError(f"artifact '{path}' is for {built_for}, this machine is {here}")
    asked = [str(name) for name in target.get("features", ())]
    missing: tuple[str, ...] = ()
    if family is not None:
        cpu = str(target.get("cpu", ""))
        missing = family.missing(cpu, asked, facts.processor, facts.features)
    if family is not None:
        needed = family.register_bits(asked, int(target.get("vector_bits", 0)))
        if needed > (found := vector_bits() if needed else 0):
            has = f"has vectors of {found} bits" if found else "has none whose length is known"
            missing = (*missing, f"vectors of {needed} bits: it {has}")
    if missing:
        raise ArtifactError(
            f"artifact '{path}' is for {target.get('cpu') or target.get('name')}, this processor "
            f"lacks {', '.join(missing)}"
        )


def _check_file(path: Path, name: str, wanted: Mapping[str, Any]) -> None:
    try:
        size = (path / name).stat().st_size
        if size != wanted["bytes"]:
            raise ArtifactError(
                f"artifact '{path}': {name} has {size} bytes instead of {wanted['bytes']}"
            )
        with (path / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise ArtifactError(f"artifact '{path}': {name} is missing") from error
    except OSError as error:
        raise ArtifactError(f"artifact '{path}': {name} cannot be read: {error}") from error
    if digest != wanted["sha256"]:
        raise ArtifactError(f"artifact '{path}': {name} is damaged: its checksum differs")


def _map(path: Path) -> Bytes:
    """Map a file into memory read-only; the operating system loads its pages on first access."""
    if path.stat().st_size == 0:
        return aligned_empty(0)
    return np.memmap(path, np.uint8, "r")


def _address(library: ctypes.CDLL, symbol: str) -> int:
    address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    if not address:
        raise OSError(f"symbol '{symbol}' is null")
    return address
