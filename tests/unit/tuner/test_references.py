"""A job's references: computed in a second process that ends with the job."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.graphs import Maker
from tests.kernels import as_workload
from tests.unit.service.child_processes import bounded_children
from tests.waiting import until
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.process.bounded import OWN_BYTES, BoundedChild, Limits, NoAnswer
from tilewright.compiler.timings import Timings
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.oracle import ExpectedOutput, make_reference
from tilewright.tuner.measure.reference_cost import GIB, ReferenceLimit, most_bytes, reference_bytes
from tilewright.tuner.measure.references import ENDED, NoReference, ReferenceCache, computed
from tilewright.tuner.protocol.measurement import Phase, Status

SECONDS_MOST = 20.0
"""Time within which a reference that would take minutes has to end, on a busy machine."""


def _product(m: int = 4, k: int = 8, n: int = 16) -> Workload:
    make = Maker()
    return as_workload(make.graph(make("matmul", make.input("x", m, k), make.input("w", k, n))))


def _slow(products: int = 8) -> Workload:
    """Its products, 10**12 operations, take a core half a minute or more, and 500 MB."""
    make = Maker()
    value, w = make.input("x", 4096, 4096), make.input("w", 4096, 4096)
    for _ in range(products):
        value = make("matmul", value, w)
    return as_workload(make.graph(value))


def _unlimited() -> ReferenceLimit:
    return ReferenceLimit(64 * GIB, operations=10**15)


def _threads() -> int:
    return sum(t.name.startswith("tilewright-references") for t in threading.enumerate())


def test_references_are_computed_once_each_by_another_process() -> None:
    workload = _product()
    timings = Timings()
    with ReferenceCache(timings=timings) as cache:
        screen = cache.prepare(workload, Phase.SCREEN).cases()
        final = cache.prepare(workload, Phase.FINAL).cases()
        assert not isinstance(screen, NoReference)
        assert not isinstance(final, NoReference)
        assert final[0].expected is screen[0].expected, "once each"
        alone = [make_reference(workload, draw) for draw in range(3)]
        assert [each.expected for each in final] == [each.expected for each in alone]
        assert [each.inputs for each in final] == [each.inputs for each in alone]
    (stage,) = timings.stages
    assert (stage.stage, stage.count) == ("references", 3) and stage.seconds > 0


def test_the_oldest_references_are_forgotten() -> None:
    workloads = [_product(m) for m in (4, 5, 6)]
    size = len(make_reference(workloads[-1]).expected)
    with ReferenceCache(limit_bytes=2 * size) as cache:
        first = [cache.get(workload) for workload in workloads]
        assert cache.get(workloads[2]) is first[2]
        cache.get(_product(7))
        assert cache.get(workloads[2]) is first[2], "the newest are kept"
        again = cache.get(workloads[0])
        assert again is not first[0]
        assert again == first[0]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_closing_ends_at_once_what_is_under_way_and_queued() -> None:
    with ReferenceCache(each=_unlimited()) as other, ReferenceCache(each=_unlimited()) as cache:
        kept = other.get(_product())
        assert isinstance(kept, ExpectedOutput)
        theirs, threads = bounded_children(), _threads()
        small = weakref.ref(cache.begin(_product(5), 0))
        assert isinstance(cache.get(_product(5)), ExpectedOutput)
        under_way = cache.prepare(_slow(), Phase.FINAL)
        assert isinstance(cache.get(_product(8)), ExpectedOutput), "quick ones do not wait for it"
        queued = cache.prepare(_slow(9), Phase.SCREEN)
        told: list[object] = []
        waiting = threading.Thread(target=lambda: told.append(under_way.cases()))
        waiting.start()
        until(lambda: len(bounded_children() - theirs) == 2)
        begun = time.monotonic()
        cache.close()
        waiting.join()
        assert time.monotonic() - begun < SECONDS_MOST
        assert told == [ENDED]
        assert queued.cases() is ENDED
        assert cache.get(_product(7)) is ENDED
        assert bounded_children() == theirs
        assert _threads() == threads
        gc.collect()
        assert small() is None, "nothing is held"
        assert other.get(_product()) is kept, "the other job has its own"
        assert isinstance(other.get(_product(9)), ExpectedOutput)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_job_that_is_stopped_loses_its_children_while_its_thread_is_busy() -> None:
    """Its loop may lower candidates for seconds before it looks at its token again."""
    token, before = CancelToken(), bounded_children()
    with ReferenceCache(each=_unlimited(), stop=token) as cache:
        assert isinstance(cache.get(_product()), ExpectedOutput)
        under_way = cache.prepare(_slow(), Phase.SCREEN)
        until(lambda: len(bounded_children() - before) == 2)
        token.cancel()
        # without a call of `get` or `close`
        until(lambda: bounded_children() == before, SECONDS_MOST)
        assert under_way.cases() is ENDED
        assert cache.get(_product(7)) is ENDED


def test_what_does_not_fit_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(self: BoundedChild, *asked: object) -> str:
        raise AssertionError("it is begun")

    monkeypatch.setattr(BoundedChild, "ask", ask)
    with ReferenceCache(each=ReferenceLimit(1 << 20)) as cache:
        found = cache.prepare(_product(1000, 1000, 1000), Phase.SCREEN).cases()
    assert isinstance(found, NoReference)
    measured = found.measurement("MatMul_3", 0.5)
    assert measured.status is Status.NO_REFERENCE
    assert measured.error == (
        "the reference of 'MatMul_3' needs 0.0373 GiB, the limit is 0.000977 GiB"
    )
    operations = ReferenceLimit(64 * GIB, operations=10**9)
    assert operations.refusal(_product(1000, 1000, 1000)) == (
        "needs 2e+09 operations, the limit is 1e+09"
    )
    assert not operations.refusal(_product())


def test_bytes_are_counted_of_what_lives_at_one_time() -> None:
    """A chain of twenty additions needs as much as one of two: dead values are freed."""

    def chain(length: int) -> Graph:
        make = Maker()
        value = make.input("x", 1000)
        for _ in range(length):
            value = make("relu", value)
        return make.graph(value)

    few, many = (reference_bytes(as_workload(chain(length))) for length in (2, 20))
    assert few == many
    assert 8 * 2 * 1000 <= few <= 8 * 16 * 1000


def test_weights_of_a_product_are_held_twice() -> None:
    """As generated and in the type of the computation."""
    needed = reference_bytes(_product(1, 4096, 16384))
    assert 4096 * 16384 * 12 <= needed <= 4096 * 16384 * 17


def test_scores_of_an_attention_count() -> None:
    make = Maker()
    q, k, v = (make.input(name, 1, 1, 5000, 8) for name in "qkv")
    graph = make.graph(make("attention", q, k, v, scale=1.0))
    assert reference_bytes(as_workload(graph)) > 8 * 5000 * 5000


def test_a_quarter_of_the_memory_but_not_all_of_a_large_machine(tmp_path: Path) -> None:
    def machine(name: str, total: int, limit: str = "") -> Path:
        root = tmp_path / name
        (root / "proc").mkdir(parents=True)
        (root / "proc/meminfo").write_text(f"MemTotal: {total // 1024} kB\nMemAvailable: 1 kB\n")
        if limit:
            (root / "sys/fs/cgroup").mkdir(parents=True)
            (root / "sys/fs/cgroup/memory.max").write_text(f"{limit}\n")
        return root

    assert most_bytes(machine("small", 8 * GIB)) == 2 * GIB
    assert most_bytes(machine("large", 1024 * GIB)) == 4 * GIB
    assert most_bytes(machine("contained", 1024 * GIB, str(2 * GIB))) == GIB // 2
    assert most_bytes(machine("free", 4 * GIB, "max")) == GIB
    assert most_bytes(tmp_path / "nothing") == 4 * GIB


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="limits are Linux's")
def test_a_failure_is_told_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child has a memory limit; with a higher one, the same job gets its reference."""
    workload = _product(6000, 8, 6000)
    limit = ReferenceLimit(64 * GIB)
    with ReferenceCache(each=limit) as cache:
        child = cache._slow.child
        few = replace(child._limits, memory_bytes=-OWN_BYTES + (256 << 20))
        monkeypatch.setattr(child, "_limits", few)
        asked = cache.prepare(workload, Phase.SCREEN)
        failed = asked.cases()
        assert isinstance(failed, NoReference)
        assert "takes more memory than it may: Unable to allocate" in failed.reason
        assert asked.cases() is failed, "who asked is told"
        assert not cache._known
        assert isinstance(cache.get(_product()), ExpectedOutput), "others go on"
        child.drop()
        monkeypatch.undo()
        assert isinstance(cache.get(workload), ExpectedOutput)


def test_a_reference_that_takes_too_long_is_given_up() -> None:
    limit = ReferenceLimit(64 * GIB, operations=10**15, seconds=2.0)
    with ReferenceCache(each=limit) as cache:
        begun = time.monotonic()
        assert cache.get(_slow()) == NoReference("takes more than 2 s")
        assert time.monotonic() - begun < SECONDS_MOST
        assert isinstance(cache.get(_product()), ExpectedOutput)


def test_what_is_wrong_with_a_workload_is_told() -> None:
    child = BoundedChild(Limits(GIB, 60.0))
    try:
        with pytest.raises(CompilerError, match="workload: expected 'workload', got 'nonsense'"):
            child.ask(computed, ("nonsense", 0))
        text = _product().text()
        assert child.ask(computed, (text, 2)) == make_reference(_product(), 2)
        bug = child.ask(computed, (text, 99))
        assert isinstance(bug, NoAnswer)
        assert bug.text == "IndexError: tuple index out of range"
    finally:
        child.stop()
        child.close()
    assert np.isfinite(make_reference(_product(), 2).tolerance)
