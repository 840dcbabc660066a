"""The compilation cache: compiled models in a folder that the processes of a machine share.

A model is stored as an artifact. Its key is the digest of everything that its code depends on: the
model's bytes, the options, the processor, and the compiler itself. Loading an entry reads no ONNX
and compiles nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeGuard, cast

import numpy as np

from tilewright.compiler.errors import ArtifactError, InvalidArgumentError, InvalidModelError
from tilewright.compiler.options import CompileOptions
from tilewright.compiler.runtime.artifact import read_artifact
from tilewright.compiler.runtime.codec import JsonValue
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.guarded import GuardedModel, unsegmented
from tilewright.compiler.runtime.json_form import JsonForm
from tilewright.compiler.runtime.model import Model
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.segments import ModelSegment, SegmentBoundary, SegmentGuard
from tilewright.compiler.sizes.hinted_ranges import as_hinted
from tilewright.compiler.sizes.ranges import as_range
from tilewright.compiler.specialise.cache_folder import CacheFolder
from tilewright.compiler.specialise.requested_schedules import (
    Answers,
    RequestedSchedules,
    check_answers,
)
from tilewright.compiler.targets.detection import this_device
from tilewright.compiler.targets.host import check_runs_here

if TYPE_CHECKING:
    from tilewright.compiler.driver import ModelSource
    from tilewright.compiler.frontend.model_file import ReadModel

FORMAT = 2
ARTIFACT, DETAILS = "artifact", "details.json"

FOLDER, LIMIT = "TILEWRIGHT_KEPT_FOLDER", "TILEWRIGHT_KEPT_BYTES"
DEFAULT_LIMIT_BYTES = 4 << 30

MOST_LOOKS = 3
"""Maximum number of attempts to read a cache entry that other processes replace at the same
time."""


def user_cache_folder(environment: Mapping[str, str] = os.environ) -> CacheFolder | None:
    """Return the folder of this user's compilation cache.

    It is `$TILEWRIGHT_KEPT_FOLDER`, or else `tilewright/compiled` in `$XDG_CACHE_HOME` or ~/.cache.
    The result is None if `$TILEWRIGHT_KEPT_FOLDER` is empty or the user has no home folder.

    Raises:
        InvalidArgumentError: if `$TILEWRIGHT_KEPT_BYTES` is not a number of bytes.
    """
    stated = environment.get(FOLDER)
    if stated == "":
        return None
    limit = environment.get(LIMIT, str(DEFAULT_LIMIT_BYTES))
    if not (limit.isascii() and limit.isdigit()):
        raise InvalidArgumentError(
            f"{LIMIT} is '{limit}', expected a number of bytes, such as 1000000000"
        )
    if stated:
        return CacheFolder(stated, int(limit))
    base = environment.get("XDG_CACHE_HOME", "")
    try:
        caches = Path(base) if base else Path.home() / ".cache"
    except RuntimeError:  # a container may run as a user without an entry in the password database
        return None
    return CacheFolder(caches / "tilewright" / "compiled", int(limit))


class CompilationCache:
    """Compiles models that are not in the compilation cache, and stores the results.

    A result is stored under three conditions:

    - The model is given as a file, as bytes, or as a `ReadModel` (an ONNX message, with its tensors
      in separate arrays).
    - The compiled model has a single program. Models that compute sizes from data have several.
    - `options.planner` is None. The cache cannot detect that a planner returns another plan.

    When an entry is loaded, the source of schedules is queried again and must return the same
    schedules.

    Args:
        folder: the cache folder; None stores nothing.
    """

    def __init__(self, folder: CacheFolder | None) -> None:
        self._folder = folder

    def compile(self, model: ModelSource, options: CompileOptions) -> Model:
        """Return the cached model, or compile the model and store it.

        Raises:
            CompilerError: naming the fault of the model or the options.
        """
        check_runs_here(options.mode.target)  # before a large file is read
        source = None if self._folder is None else _Source.of(model)
        if source is None or options.planner is not None:
            with _naming_packages():
                from tilewright.compiler.driver import compile_with

            return compile_with(model, options)
        key = _key(source.digest, options)
        return self._load(key, source, options) or self._make(key, source, options)

    def tuned(self, model: ModelSource, options: CompileOptions) -> Model | None:
        """Return the tuned model for these options from the compilation cache, or None.

        The method `keep_tuned` stores it, in this or in another process.
        """
        source = None if self._folder is None else _Source.of(model)
        if source is None:
            return None
        return self._load(_key(source.digest, options, tuned=True), source, options, tuned=True)

    def keep_tuned(
        self, model: ModelSource, options: CompileOptions, make: Callable[[Path | None], Model]
    ) -> Model:
        """Compile a tuned model with `make`, store it for `tuned`, and return it.

        An earlier entry for this model and these options is replaced; other processes find it until
        the new one is complete.

        Args:
            make: compiles the model and writes its artifact into the given folder, or nowhere if
                the argument is None.
        """
        source = None if self._folder is None else _Source.of(model)
        if source is None or self._folder is None:
            return make(None)
        with _naming_packages():
            from tilewright.compiler.frontend.model_file import read_model
            from tilewright.compiler.frontend.tensors import external_files

        locations = external_files(read_model(source.model).proto)
        key = _key(source.digest, options, tuned=True)
        return self._keep(key, source, locations, make, replacing=True) or make(None)

    def _load(
        self, key: str, source: _Source, options: CompileOptions, *, tuned: bool = False
    ) -> Model | None:
        if self._folder is None:
            return None
        for _ in range(MOST_LOOKS):
            entry = self._folder.find(key)
            if entry is None:
                return None
            identity, found = _state_of(entry)[:2], None
            # it is damaged, or another process is removing it
            with suppress(ArtifactError, OSError, ValueError):
                found = self._opened(entry, source, options, tuned=tuned)
            if _state_of(entry)[:2] == identity:
                if found is None:
                    self._folder.remove(key)
                return found
            # another process has replaced it: the files read may belong to two different entries
        return None

    def _opened(
        self, entry: Path, source: _Source, options: CompileOptions, *, tuned: bool
    ) -> Model:
        """Load the program of an entry.

        Raises:
            OSError: if a file of the entry cannot be read.
            ValueError: if the entry is damaged.
            ArtifactError: if the entry is damaged or outdated.
        """
        details = _Details.from_json(json.loads((entry / DETAILS).read_bytes()))
        beside = source.states(details.files)
        if not source.has(details.files):
            raise ArtifactError("its external data has changed")
        if options.schedules is not None and not tuned:
            check_answers(details.schedules, options.schedules, options.mode)
        artifact = read_artifact(entry / ARTIFACT)
        program = artifact.executable(options.mode.threads)
        if not artifact.ports.open:
            return program
        ranges = {name: as_range(name, text) for name, text in details.ranges.items()}

        def make(
            cut: SegmentBoundary[Executable], facts: SegmentGuard, values: Mapping[str, Array]
        ) -> ModelSegment[Executable]:
            """Compile another program, for sizes that the cached one does not serve."""
            source.check_same(beside)
            dims = {**options.dims, **dict(facts.sizes)}
            found = self.compile(source.model, replace(options, dims=dims))
            assert isinstance(found, Executable)
            stage = cut.made[facts] = ModelSegment(found, tuple(artifact.ports.outputs), None)
            return stage

        reads = replace(artifact.reads, ranges=ranges)
        own = options.own_sizes
        first = unsegmented(reads, artifact.ports, program, own=own, reason=details.reason)
        return GuardedModel(artifact.ports, first, make)

    def _make(self, key: str, source: _Source, options: CompileOptions) -> Model:
        with _naming_packages():
            from tilewright.compiler.driver import compile_read, reading
            from tilewright.compiler.frontend.tensors import external_files

        read = reading(source.model, options)
        asked = None if options.schedules is None else RequestedSchedules(options.schedules)
        given = replace(options, schedules=asked)
        made = self._keep(
            key,
            source,
            external_files(read[0].proto),
            lambda into: compile_read(read, given, into),
            asked,
        )
        return made or compile_read(reading(source.model, options), options)

    def _keep(
        self,
        key: str,
        source: _Source,
        locations: Sequence[str],
        compiling: Callable[[Path], Model],
        asked: RequestedSchedules | None = None,
        *,
        replacing: bool = False,
    ) -> Model | None:
        """Compile a model, and store its artifact in the cache folder if possible.

        Returns the compiled model, even if it could not be stored: it has several programs, its
        file changed meanwhile, or the disk is full, for example. Returns None if the model was not
        compiled, because the folder cannot be created or other users may write to it. The caller
        then compiles the model without the cache.

        Args:
            key: the key of the new cache entry.
            source: the model with its digest.
            locations: the external-data files of the model.
            compiling: compiles the model, writes its artifact to the given path, and returns the
                model.
            asked: the source of schedules for the compilation, which records its queries; they are
                stored in the entry. None if there is no such source.
            replacing: whether to replace an existing entry; if not, an existing entry is kept.
        """
        assert self._folder is not None
        made: list[Model] = []
        beside, files = source.states(locations), source.digests(locations)

        def make(folder: Path) -> None:
            made.append(compiling(folder / ARTIFACT))
            source.check_same(beside)
            if not (folder / ARTIFACT).exists():
                raise ArtifactError("it has more than one program")
            guarded = made[0] if isinstance(made[0], GuardedModel) else None
            ranges = {} if guarded is None else {n: d.range_text for n, d in guarded.ranges.items()}
            reason = "" if guarded is None else guarded.reason
            answers = () if asked is None else asked.answers()
            details = _Details(files, ranges, reason, answers)
            (folder / DETAILS).write_text(json.dumps(details.to_json()))

        with suppress(ArtifactError, ChangedModelError):
            self._folder.keep(key, make, replacing=replacing)
        return made[0] if made else None


@contextmanager
def _naming_packages() -> Iterator[None]:
    """Context in which the error of a failed import names the package to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"tilewright.compile_model needs the package '{error.name}': "
            "pip install 'tilewright[compiler]' has it",
            name=error.name,
        ) from error


class ChangedModelError(InvalidModelError):
    """A model's file, or its external data, was changed after it was read."""


@dataclass(frozen=True, slots=True)
class _Details(JsonValue):
    """Metadata of a cache entry, stored next to its artifact.

    Attributes:
        files: SHA-256 (hex) of the model's external-data files, by location.
        ranges: the ranges of the dimensions, by name, in the form of users' input, such as
            `1..512`.
        reason: why each combination of sizes needs its own program; otherwise empty.
        schedules: the queries to the source of schedules, with its results.
    """

    json_form: ClassVar[JsonForm] = JsonForm("details", sparse=("schedules",))

    files: Mapping[str, str]
    ranges: Mapping[str, str]
    reason: str
    schedules: Answers = ()


@dataclass(frozen=True, slots=True)
class _Source:
    """A model with a digest that identifies it.

    Attributes:
        model: a file, its bytes, or a message with all its tensors in separate arrays.
        digest: SHA-256 (hex) of the bytes.
        state: device, inode, size and modification time of the file when it was read.
    """

    model: Path | bytes | ReadModel
    digest: str
    state: tuple[int, ...] = ()

    @classmethod
    def of(cls, model: ModelSource) -> _Source | None:
        """Return a model together with its digest, which identifies the model in the cache.

        Returns None for kinds of model that cannot be stored, and for a file that cannot be read.
        The import reports an unreadable file in more detail.
        """
        if isinstance(model, bytes | bytearray | memoryview):
            return cls(bytes(model), hashlib.sha256(model).hexdigest())
        if _is_whole(model):
            return cls(model, _digest_of_parts(model))
        if not isinstance(model, str | os.PathLike):
            return None
        path = Path(model)
        try:
            if not path.is_file():  # a pipe can be read only once
                return None
            with path.open("rb") as file:
                state = _state(os.fstat(file.fileno()))
                return cls(path, hashlib.file_digest(file, "sha256").hexdigest(), state)
        except (OSError, ValueError):
            return None

    def digests(self, locations: Iterable[str]) -> dict[str, str]:
        """Return the SHA-256 (hex) of external-data files, by location.

        The digest is empty for a file that is not read: one outside the model's folder, a special
        file, which might never end, or one that cannot be opened. The import rejects such a model.
        """
        if not isinstance(self.model, Path):
            return {}
        folder = self.model.resolve().parent
        return {location: _digest(folder, location) for location in locations}

    def has(self, files: Mapping[str, str]) -> bool:
        """Whether the external-data files have the digests `files`, which are given by location."""
        return self.digests(files) == dict(files)

    def states(self, locations: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """The state of each external-data file, to detect changes.

        A state is the device, inode, size and modification time of the file; it is empty for a
        missing file. The keys are the locations in the model.
        """
        if not isinstance(self.model, Path):
            return {}
        folder = self.model.resolve().parent
        return {location: _state_of(folder / location) for location in locations}

    def check_same(self, beside: Mapping[str, tuple[int, ...]]) -> None:
        """Check that no file of the model has changed since it was read.

        `beside` has the states of the external-data files when they were read (`states`).

        Raises:
            ChangedModelError: if the model's file or an external-data file has changed.
        """
        if not isinstance(self.model, Path):
            return
        if _state_of(self.model) != self.state:
            raise ChangedModelError(f"'{self.model}' has changed since it was compiled")
        for location, state in beside.items():
            if _state_of(self.model.resolve().parent / location) != state:
                raise ChangedModelError(
                    f"'{location}' next to '{self.model}' has changed since it was compiled"
                )


def _is_whole(model: ModelSource) -> TypeGuard[ReadModel]:
    """Whether a model is a message with all its tensors in separate arrays.

    Such a model is hashed array by array, without a copy.
    """
    tensors = getattr(model, "tensors", None)
    if tensors is None:
        return False
    read = cast("ReadModel", model)
    return all(each.name in tensors for each in read.proto.graph.initializer)


def _digest_of_parts(model: ReadModel) -> str:
    """The SHA-256 (hex) of a model's message, and of each tensor with its name, type and shape."""
    digest = hashlib.sha256(model.proto.SerializeToString(deterministic=True))
    for name, tensor in sorted(model.tensors.items()):
        array = np.ascontiguousarray(tensor.array)
        digest.update(f"{name} {tensor.dtype} {array.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _state_of(path: Path) -> tuple[int, ...]:
    try:
        return _state(path.stat())
    except (OSError, ValueError):
        return ()


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _digest(folder: Path, location: str) -> str:
    try:
        path = (folder / location).resolve()
        if not (path.is_relative_to(folder) and path.is_file()):
            return ""
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError, RuntimeError):  # a circle of symbolic links
        return ""


def _key(model: str, options: CompileOptions, *, tuned: bool = False) -> str:
    """The key of a cache entry: a digest of everything that the code of a model depends on.

    Details that may differ between processes, such as the order of the dimensions, are left out.

    Args:
        model: the digest of the model.
        options: the options of the compilation.
        tuned: whether the entry is a tuned model (`CompilationCache.keep_tuned`).
    """
    device = this_device()
    parts = {
        "format": FORMAT,
        "compiler": _compiler_digest(),
        "model": model,
        "mode": options.mode.to_json(),
        "device": [device.processor, [asdict(cache) for cache in device.caches]],
        "dims": sorted((n, as_hinted(n, given).text) for n, given in options.dims.items()),
        "weight_limit_bytes": options.weight_limit_bytes,
        "schedules": options.schedules is not None and not tuned,
        "tuned": tuned,
        "own_sizes": sorted(sorted(sizes) for sizes in options.own_sizes),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def _compiler_digest() -> str:
    """A digest of the sizes and modification times of the compiler's own files.

    If a developer edits the compiler, cached models are therefore compiled again.
    """
    root = Path(__file__).parents[1]
    files = [
        (path.relative_to(root).as_posix(), status.st_size, status.st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.suffix in (".py", ".so") and (status := path.stat())
    ]
    # a wheel may give all its files the same time
    versions = [_version(name) for name in ("tilewright", "numpy", "llvmlite")]
    return hashlib.sha256(json.dumps([files, versions]).encode()).hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
