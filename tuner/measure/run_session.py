"""The child's side of a run: loads whole programs, and checks, races or profiles them.

Files are given by digest. Weights are put together from their parts, one block for the programs
that share it. Only the standard library, NumPy and compiler.runtime are imported.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import assert_never, cast
from weakref import WeakValueDictionary

import numpy as np

from tilewright.compiler.errors import CompilerError, OutOfMemoryError
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.memory import check_memory
from tilewright.compiler.runtime.native import pinned_random_keys
from tilewright.compiler.runtime.packing import Bytes, aligned_zeros
from tilewright.compiler.runtime.program_json import program_from_json
from tilewright.compiler.runtime.speeds import Probes, Speeds
from tilewright.tuner.measure.model_runs import Run, draw_inputs, output_error, race, run_all
from tilewright.tuner.measure.run_result import RunResult, RunStatus
from tilewright.tuner.measure.run_wire import (
    CheckWork,
    Part,
    ProfileWork,
    RaceWork,
    RunRequest,
    SpeedsWork,
)
from tilewright.tuner.measure.wire import array_to_bytes

Emit = Callable[..., None]

PROFILE_SECONDS = 2.0
"""Samples of a profile are taken for so long at a time, between two signs of life."""


def run_job(request: RunRequest, files: Mapping[str, str], emit: Emit) -> None:
    """Do what a request asks, and emit its result.

    A `begin` event goes out before each step, which may crash, hang, or take all memory.

    Args:
        request: what to do.
        files: the path of every blob that the request names, by digest.
        emit: takes events.
    """
    try:
        with pinned_random_keys():  # the references draw these numbers
            result = _Run(request, files, emit).result()
    except (MemoryError, OutOfMemoryError) as error:
        reason = str(error) or "there is not enough memory"
        result = RunResult(request.request_id, RunStatus.OUT_OF_MEMORY, reason)
    except (CompilerError, ValueError, KeyError, AttributeError, OSError, RuntimeError) as error:
        result = RunResult(request.request_id, RunStatus.FAILED, str(error) or repr(error))
    emit(event="result", result=result.to_json())


class _Run:
    def __init__(self, request: RunRequest, files: Mapping[str, str], emit: Emit) -> None:
        self._request = request
        self._files = files
        self._emit = emit
        self._blocks: WeakValueDictionary[int, Bytes] = WeakValueDictionary()
        self._filled: dict[int, set[Part]] = {}

    def result(self) -> RunResult:
        request, work = self._request, self._request.work
        check_memory(request.memory_bytes, "for this run")
        result = partial(RunResult, request.request_id, RunStatus.OK)
        match work:
            case CheckWork():
                errors, fetched = self._check(work)
                return result(errors=errors, fetched=fetched)
            case RaceWork(variants, seed):
                first, *others = (partial(self._variant, v, seed) for v in variants)
                begin_round = partial(self._begin, "race")
                found = race(first(), others, request.threads, begin_round=begin_round)
                return result(race=found)
            case ProfileWork(number, samples, seed):
                return result(seconds=self._profile(number, samples, seed))
            case SpeedsWork():
                return result(speeds=self._speeds(work))
            case _:
                assert_never(work)

    def _check(self, work: CheckWork) -> tuple[dict[str, float], dict[str, bytes]]:
        executable = self._load(work.program)
        inputs = self._inputs(work.program, executable, work.seed)
        self._begin("run")
        found = executable.run(inputs, labels=False)
        ports = {port.name: port for port in executable.program.outputs}
        outputs = dict(zip(ports, found, strict=True))
        errors = {}
        for name, digest in work.expected.items():
            self._begin("compare")
            expected = np.load(self._files[digest], allow_pickle=False)
            errors[name] = output_error(ports[name], outputs[name], expected)
        return errors, {name: array_to_bytes(outputs[name]) for name in work.fetch}

    def _variant(self, numbers: tuple[int, ...], seed: int) -> Run:
        loaded = [(number, self._load(number)) for number in numbers]
        return run_all([(each, self._inputs(number, each, seed)) for number, each in loaded])

    def _inputs(self, number: int, executable: Executable, seed: int) -> dict[str, np.ndarray]:
        """The inputs of a program: the arrays that it was given, and random ones."""
        files = self._request.programs[number].inputs
        given = {n: np.load(self._files[file], allow_pickle=False) for n, file in files.items()}
        return {**draw_inputs(executable.program.inputs, seed), **given}

    def _profile(self, number: int, samples: int, seed: int) -> tuple[float, ...]:
        """The fastest sample of each instruction; each group of samples warms up by itself."""
        executable = self._load(number)
        inputs = self._inputs(number, executable, seed)
        self._begin("profile")
        started = time.perf_counter()
        executable.run(inputs, labels=False)
        together = max(1, int(PROFILE_SECONDS / max(1e-9, time.perf_counter() - started)))
        rows = []
        while samples > 0:
            self._begin("profile")
            rows.append(executable.profile(inputs, min(samples, together)).min(axis=0))
            samples -= together
        return tuple(map(float, np.min(rows, axis=0)))

    def _speeds(self, work: SpeedsWork) -> Speeds:
        self._begin("speeds")
        library = _open(self._files[work.library])
        peak, read = (_address(library, name) for name in ("peak", "read"))
        dots = {name: _address(library, f"peak_{name}") for name in work.dots}
        probes = Probes(peak, read, work.vector_bytes, dots)
        return probes.speeds(work.cache_bytes, work.memory_bytes)

    def _load(self, number: int) -> Executable:
        """A program with its code and weights; a block is held as long as a program needs it."""
        self._begin("load")
        parts = self._request.programs[number]
        text = Path(self._files[parts.program]).read_bytes()
        program = program_from_json(json.loads(text))
        weights = self._blocks.get(parts.block)
        if weights is None:
            weights = aligned_zeros(self._request.block_bytes[parts.block])
            self._blocks[parts.block], self._filled[parts.block] = weights, set()
        filled = self._filled[parts.block]
        for part in parts.parts:
            if part not in filled:
                self._fill(weights, part)
                filled.add(part)
        library = _open(self._files[parts.library]) if parts.library else None
        addresses = {
            stage.symbol: _address(library, stage.symbol)
            for kernel in program.kernels
            for stage in kernel.stages
        }
        threads = self._request.threads
        return Executable(program, weights, addresses.__getitem__, threads, library)

    def _fill(self, weights: Bytes, part: Part) -> None:
        with open(self._files[part.digest], "rb", buffering=0) as file:
            file.seek(part.start)
            view = memoryview(cast("bytearray", weights))[part.offset :][: part.bytes]
            if _read_all(file.readinto, view) != part.bytes:
                raise OSError(f"blob {part.digest} has not {part.bytes} bytes at {part.start}")

    def _begin(self, step: str) -> None:
        self._emit(event="begin", step=step)


def _read_all(readinto: Callable[[memoryview], int | None], view: memoryview) -> int:
    """Fill the memory from the file; returns how many bytes there were."""
    done = 0
    while done < len(view):
        count = readinto(view[done:])
        if not count:
            break
        done += count
    return done


def _open(path: str) -> ctypes.CDLL:
    return ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)


def _address(library: ctypes.CDLL | None, symbol: str) -> int:
    """Where a function lies; AttributeError if the library has none of that name."""
    address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    if not address:
        raise OSError(f"symbol '{symbol}' is null")
    return address
