"""Running generated kernels in tests: every buffer between guard pages, stages in random pieces.

A kernel runs in this process, by a caller in C that comes back from a fault (`guarded_calls.c`), so
that an access outside of a buffer fails one test: a fork of a process that has collected all tests
takes longer than most kernels. Vectors may read up to the end of an aligned line of 64 bytes that
holds an element (such a read cannot cross a page); everything else around a buffer is out of
bounds, and nothing else lies within `GUARD_BYTES` of it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from tests.examples import examples
from tilewright.compiler.codegen.backend import Library, backend_of
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.loops.layout import ROW_MAJOR, Layout
from tilewright.compiler.loops.nest import LoopNest
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Boundary, Halo, Workload
from tilewright.compiler.program.build import build_kernel
from tilewright.compiler.runtime.kernel import BufferRole
from tilewright.compiler.runtime.packing import make_weight, pack, unpack
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.sizes import at, replaced
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

Array = np.ndarray[Any, Any]
Numbers = np.random.Generator

HOST = resolve_target("host")
WIDTHS = tuple(bits for bits in (128, 256, 512) if bits <= HOST.vector_bits)
"""Vector widths that this machine runs."""


def widths_in_turn(cases: Iterable[str]) -> list[tuple[str, int]]:
    """Each case with one of the widths, in turn; with all of them where property tests generate
    many."""
    if examples(100) > 100:
        return [(case, bits) for case in cases for bits in WIDTHS]
    return list(zip(cases, cycle(WIDTHS)))


LINE = 64
GUARD_BYTES = 1 << 24
"""Inaccessible memory on either side of a buffer: address space alone."""
_PROT_NONE = 0
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0
_LIBC = ctypes.CDLL(None)
_POISON = 0xFF
"""Bytes of a NaN in every float type, and of -1 in integers."""


@cache
def guarded_calls() -> ctypes.CDLL:
    """`guarded_calls.c`, compiled once a process; from then on it takes the faults of its calls.

    A later handler of a signal (the emulator of AMX) passes on the signals that it does not handle.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, source = (
            Path(folder) / "guarded_calls.so",
            Path(__file__).with_name("guarded_calls.c"),
        )
        subprocess.run(
            ["cc", "-O1", "-std=gnu11", "-shared", "-fPIC", "-o", path, source], check=True
        )
        library = ctypes.CDLL(str(path))
    library.guarded_call.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 2
    assert library.guarded_start() == 0
    return library


def call_guarded(
    function: int,
    buffers: ctypes.Array[ctypes.c_void_p] | int,
    scratch: int,
    sizes: int,
    part: range,
) -> None:
    """Call a stage that may access memory out of bounds.

    Raises:
        AssertionError: if it did.
    """
    calls = guarded_calls()
    ended_by = calls.guarded_call(function, buffers, scratch, sizes, part.start, part.stop)
    assert ended_by >= 0, "it was not called"
    assert ended_by == 0, f"it died of {signal.Signals(ended_by).name}"


def width(bits: int) -> Target:
    """The host with vectors of this many bits; skips the test if its own are narrower."""
    if bits > HOST.vector_bits:
        pytest.skip(f"this machine has no vectors of {bits} bits")
    return resolve_target(f"host:{bits}")


class Guarded:
    """`size` poisoned bytes, aligned to 64, against an inaccessible page.

    `late` puts the end (rounded up to a line) against the page behind, otherwise the start against
    the page before. The bytes in between are filled with poison, and `check` expects to find them
    untouched.
    """

    def __init__(self, size: int, *, late: bool) -> None:
        page = mmap.PAGESIZE
        lines = -(-max(size, 1) // LINE) * LINE
        inside = -(-lines // page) * page
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._map = mmap.mmap(-1, inside + 2 * GUARD_BYTES, flags)
        whole = np.frombuffer(self._map, np.uint8)
        length = ctypes.c_size_t(GUARD_BYTES)
        for guard in (whole[:GUARD_BYTES], whole[-GUARD_BYTES:]):
            if _LIBC.mprotect(ctypes.c_void_p(guard.ctypes.data), length, _PROT_NONE):
                raise OSError("mprotect failed")
        self._inside = whole[GUARD_BYTES:-GUARD_BYTES]
        self._inside[:] = _POISON
        self._start = inside - lines if late else 0
        self._size = size

    @property
    def bytes(self) -> Array:
        return self._inside[self._start : self._start + self._size]

    def check(self, name: str) -> None:
        before = self._inside[: self._start]
        after = self._inside[self._start + self._size :]
        assert (before == _POISON).all(), f"'{name}': written before its start"
        assert (after == _POISON).all(), f"'{name}': written behind its end"


def in_child(work: Callable[[], None]) -> None:
    """Run in a forked process, which may be killed by an invalid access.

    It collects no garbage: a session of ONNX Runtime that some other test left would wait for its
    threads, which a fork does not have.

    Raises:
        AssertionError: if it did, or `work` raised what is printed, or took a minute.
    """
    child = os.fork()
    if child == 0:
        gc.disable()
        faulthandler.dump_traceback_later(60, exit=True)
        try:
            work()
        except BaseException:  # noqa: BLE001 - the parent says that it failed
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert not os.WIFSIGNALED(status), f"it died of {signal.Signals(os.WTERMSIG(status)).name}"
    assert status == 0, "it failed in a process of its own"


def ranges(extent: int, random: Numbers | None) -> list[tuple[int, int]]:
    """[0, extent) as one range; with random numbers, in pieces and in any order."""
    if random is None or extent < 2:
        return [(0, extent)]
    cuts = random.integers(0, extent + 1, int(random.integers(1, 4)))
    edges = sorted({0, extent, *map(int, cuts)})
    pieces = list(pairwise(edges))
    random.shuffle(pieces)
    return pieces


@dataclass(slots=True)
class Arena:
    """The buffers of one run, and a new scratch block for every piece of a stage."""

    contents: Sequence[Array | int]
    """Bytes to begin with, or (outputs) a number of bytes."""
    names: Sequence[str]
    random: Numbers
    guarded: list[Guarded] = field(default_factory=list)

    def __post_init__(self) -> None:
        for content in self.contents:
            size = content if isinstance(content, int) else content.nbytes
            block = Guarded(size, late=bool(self.random.integers(0, 4)))
            if not isinstance(content, int):
                block.bytes[:] = content.reshape(-1).view(np.uint8)
            self.guarded.append(block)

    def run(
        self,
        library: Library,
        stages: Sequence[tuple[str, int]],
        scratch_bytes: int,
        *,
        split: bool,
        sizes: Sequence[int] = (),
    ) -> None:
        functions = [library.address(symbol) for symbol, _ in stages]
        pieces = [ranges(extent, self.random if split else None) for _, extent in stages]
        scratch = [Guarded(scratch_bytes, late=True) for part in pieces for _ in part]
        numbers = np.array(sizes, np.int64)
        pointers = (ctypes.c_void_p * len(self.guarded))(
            *[block.bytes.ctypes.data for block in self.guarded]
        )

        blocks = iter(scratch)
        for function, part in zip(functions, pieces, strict=True):
            for low, high in part:
                place = next(blocks).bytes.ctypes.data
                call_guarded(function, pointers, place, numbers.ctypes.data, range(low, high))
        for name, block in zip(self.names, self.guarded, strict=True):
            block.check(name)
        for block in scratch:
            block.check("scratch")
        for content, name, block in zip(self.contents, self.names, self.guarded, strict=True):
            if not isinstance(content, int):
                same = np.array_equal(block.bytes, content.reshape(-1).view(np.uint8))
                assert same, f"'{name}' is an input and was written"


class NestCode:
    """A nest, compiled and loaded; with sizes that are known at run time, for all of them."""

    def __init__(self, nest: LoopNest, target: Target) -> None:
        backend = backend_of(target)
        self.nest = nest
        self.code = backend.lower(nest, target)
        self._library = backend.load([backend.compile(self.code.text, target)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._library.close()

    def run(
        self,
        *inputs: Array,
        random: Numbers | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> list[Array]:
        """The output of the nest; its first buffers are `inputs`, all in their physical form.

        With random numbers, parallel loops run in pieces.
        """
        values, code = sizes or {}, self.code
        buffers = [tensor.at(values) for tensor in self.nest.buffers]
        outputs = buffers[len(inputs) :]
        contents = [*map(np.ascontiguousarray, inputs), *(tensor.bytes for tensor in outputs)]
        arena = Arena(contents, [t.name for t in buffers], random or np.random.default_rng(0))
        arena.run(
            self._library,
            [(stage.symbol, at(stage.extent, values)) for stage in code.stages],
            at(code.scratch_bytes, values),
            split=random is not None,
            sizes=[values[d.name] // d.multiple for d in code.sizes],
        )
        blocks = arena.guarded[len(inputs) :]
        return [b.bytes.copy().view(t.dtype.numpy) for b, t in zip(blocks, outputs, strict=True)]


def run_nest_code(
    nest: LoopNest, target: Target, *inputs: Array, random: Numbers | None = None
) -> list[Array]:
    """The output of a nest without open sizes, compiled for one run."""
    with NestCode(nest, target) as code:
        return code.run(*inputs, random=random)


class WorkloadCode:
    """A schedule of a workload, compiled and loaded; of one with open sizes, for all of them.

    Raises:
        ScheduleError: if the schedule does not fit.
    """

    def __init__(
        self, workload: Workload, schedule: Schedule, target: Target, threads: int = 1
    ) -> None:
        built = build_kernel(workload, schedule, Mode(target, threads))
        self._spec = built.spec
        self._dimensions = built.spec.sizes
        self._library = backend_of(target).load([built.object])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._library.close()

    def run(
        self, arrays: Sequence[Array], random: Numbers, sizes: Mapping[str, int] | None = None
    ) -> Array:
        """The logical output for these inputs; its halo must come out as zeros."""
        values = sizes or {}
        known = replaced(self._spec, lambda size: at(size, values))
        contents: list[Array | int] = []
        for spec in known.buffers:
            match spec.role:
                case BufferRole.INPUT:
                    layout, array = spec.parsed_layout(), arrays[spec.source]
                    contents.append(pack(array, spec.shape, layout, spec.halo, spec.dtype))
                case BufferRole.WEIGHT:
                    contents.append(make_weight(spec, arrays[spec.source]))
                case BufferRole.SHARED | BufferRole.OUTPUT:
                    contents.append(spec.bytes)
        arena = Arena(contents, [spec.name for spec in known.buffers], random)
        arena.run(
            self._library,
            [(stage.symbol, stage.extent) for stage in known.stages],
            known.scratch_bytes,
            split=True,
            sizes=[values[d.name] // d.multiple for d in self._dimensions],
        )
        spec = known.buffers[-1]
        raw = arena.guarded[-1].bytes.copy()
        result = unpack(raw, spec.shape, spec.parsed_layout(), spec.halo, spec.dtype)
        if spec.halo:
            again = pack(result, spec.shape, spec.parsed_layout(), spec.halo, spec.dtype)
            np.testing.assert_array_equal(raw.view(spec.dtype.numpy), again, "the halo is not zero")
        return result


def run_workload(
    workload: Workload,
    schedule: Schedule,
    target: Target,
    arrays: Sequence[Array],
    random: Numbers,
    threads: int = 1,
) -> Array:
    """The logical output of a compiled schedule; its halo must come out as zeros.

    Raises:
        ScheduleError: if the schedule does not fit.
    """
    with WorkloadCode(workload, schedule, target, threads) as code:
        return code.run(arrays, random)


def as_workload(
    graph: Graph,
    constants: Sequence[str] = (),
    places: Mapping[str, tuple[Layout, Halo]] | None = None,
) -> Workload:
    """A whole graph as a workload; `constants` are the inputs that are weights."""
    given = places or {}

    def boundary(value: str) -> Boundary:
        layout, halo = given.get(value, (ROW_MAJOR, ()))
        return Boundary(graph.types[value], layout, halo, constant=value in constants)

    inputs = tuple(boundary(value) for value in graph.inputs)
    return Workload(graph, inputs, boundary(graph.outputs[0]))
