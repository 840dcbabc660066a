"""Models are read and planned in a process of their own, one at a time, within limits.

A model may be of any size, crafted, or merely large: it can make its reader slow, run out of memory
or crash. That ends the child and this one request, never the web process, and costs no other
request its time.
"""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import TimeoutError as TooLongError
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from fastapi.concurrency import contextmanager_in_threadpool, run_in_threadpool
from pebble import ProcessExpired, ProcessPool

from db.stores.blobs import BlobStore
from db.types import canonical_json
from service.api import planning_child
from service.api.errors import ApiProblem
from service.api.planning_child import (
    CodeQuestion,
    GraphQuestion,
    JobCheck,
    ModelCheck,
    PlannedWorkload,
    PredictionsQuestion,
    Question,
    Refusal,
    WorkloadsQuestion,
)
from service.jobs.model_graph import ModelGraph
from service.jobs.predicted import Predicted
from service.jobs.shown_code import ShownCode
from service.settings import Settings

MOST_WAITING = 64
"""Questions that wait for the child; one more is answered 503 at once."""

PLANS_KEPT = 1024
"""Plans that are remembered, as lists of their workloads."""

GRAPHS_KEPT = 16
"""Drawings that are remembered; a large one takes 10 MB."""

CODES_KEPT = 64
"""Schedules that are remembered as code: 300 kB at most."""

PREDICTIONS_KEPT = 64
"""Tasks whose predictions are remembered: 100 kB at most."""

LOOK_SECONDS = 5.0
"""How often a question that waits looks whether there is still a pool that will answer it."""

T = TypeVar("T")


class _Remembered(Generic[T]):
    """Answers by their questions, the latest ones. Whoever asks while one is made waits for it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, asyncio.Future[T]] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    async def get(self, key: str, make: Callable[[], Awaitable[T]]) -> T:
        asked = self._kept.get(key)
        if asked is None:
            # a task of its own: whoever asked first may go away, and others ask for the same
            asked = asyncio.ensure_future(make())
            self._kept[key] = asked
            asked.add_done_callback(lambda done: self._forget_failure(key, done))
        self._kept.move_to_end(key)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return await asyncio.shield(asked)

    def _forget_failure(self, key: str, done: asyncio.Future[T]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._kept.pop(key, None)


class Planning:
    """The child process, which starts when it is first needed and stays; and what it said."""

    def __init__(self, settings: Settings, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._seconds = settings.planning_seconds
        self._memory_bytes = settings.planning_memory_bytes
        self._pool: ProcessPool | None = None
        self._waiting = 0
        self._plans: _Remembered[Sequence[PlannedWorkload]] = _Remembered(PLANS_KEPT)
        self._graphs: _Remembered[ModelGraph] = _Remembered(GRAPHS_KEPT)
        self._codes: _Remembered[ShownCode] = _Remembered(CODES_KEPT)
        self._predictions: _Remembered[Predicted] = _Remembered(PREDICTIONS_KEPT)

    async def check_model(self, path: Path, name: str) -> None:
        """Raises a problem that says why a file is no ONNX model."""
        await self._ask(ModelCheck(path, name), f"model '{name}'")

    async def check_job(self, check: JobCheck) -> None:
        """Raises a problem that says why a model cannot be tuned so."""
        async with self._local(check.digest) as path:
            await self._ask(replace(check, path=path), f"model '{check.digest}'")

    def knows(self, question: WorkloadsQuestion) -> bool:
        """Whether a model's workloads are known, or found out just now."""
        return _key(question) in self._plans

    async def workloads(self, question: WorkloadsQuestion) -> Sequence[PlannedWorkload]:
        """The workloads of a model, planned once for the same question. Raises a problem."""
        return await self._plans.get(_key(question), lambda: self._plan(question))

    def knows_graph(self, question: GraphQuestion) -> bool:
        """Whether a model's drawing is there, or made just now."""
        return _graph_key(question) in self._graphs

    async def graph(self, question: GraphQuestion) -> ModelGraph:
        """The drawing of a job's model, made once for the same question. Raises a problem."""
        return await self._graphs.get(_graph_key(question), lambda: self._graph(question))

    def knows_code(self, question: CodeQuestion) -> bool:
        """Whether a schedule's code is there, or made just now."""
        return _code_key(question) in self._codes

    async def code(self, question: CodeQuestion) -> ShownCode:
        """A schedule as code, made once for the same question. Raises a problem."""

        async def make() -> ShownCode:
            found: ShownCode = await self._ask(question, "the code of the schedule")
            return found

        return await self._codes.get(_code_key(question), make)

    def knows_predictions(self, question: PredictionsQuestion) -> bool:
        """Whether a task's predictions are there, or made just now."""
        return _predictions_key(question) in self._predictions

    async def predictions(self, question: PredictionsQuestion) -> Predicted:
        """What is predicted of a task's trials, asked once for the same. Raises a problem."""

        async def make() -> Predicted:
            found: Predicted = await self._ask(question, "what the cost model predicts")
            return found

        return await self._predictions.get(_predictions_key(question), make)

    async def _graph(self, question: GraphQuestion) -> ModelGraph:
        digest = question.check.digest
        async with self._local(digest) as path:
            check = replace(question.check, path=path)
            found: ModelGraph = await self._ask(replace(question, check=check), f"model '{digest}'")
        return found

    async def _plan(self, question: WorkloadsQuestion) -> Sequence[PlannedWorkload]:
        async with self._local(question.digest) as path:
            found: Sequence[PlannedWorkload] = await self._ask(
                replace(question, path=path), f"model '{question.digest}'"
            )
        return found

    def _local(self, digest: str) -> AbstractAsyncContextManager[Path]:
        return contextmanager_in_threadpool(self._blobs.local(digest))

    def close(self) -> None:
        """End the child."""
        if self._pool is not None:
            _end(self._pool)

    async def _ask(self, question: Question, what: str) -> Any:
        if self._waiting >= MOST_WAITING:
            raise ApiProblem(
                503,
                "planning-busy",
                f"{self._waiting} models wait to be read already",
                headers={"Retry-After": "5"},
            )
        self._waiting += 1
        try:
            try:
                answer = await self._answer(question)
            except BrokenProcessPool:  # a child without work was killed: this was not its fault
                answer = await self._answer(question)
        except TooLongError:
            limit = f"{self._seconds:g} s (TILEWRIGHT_PLANNING_SECONDS)"
            raise ApiProblem(
                422, "planning-failed", f"{what} takes longer to plan than {limit}"
            ) from None
        except ProcessExpired as error:
            raise ApiProblem(
                422,
                "planning-failed",
                f"{what} ended the process that read it (exit code {error.exitcode})",
            ) from error
        except BrokenProcessPool as error:
            raise ApiProblem(
                503,
                "planning-broken",
                "the process that reads models ended twice before it read this one",
                headers={"Retry-After": "5"},
            ) from error
        finally:
            self._waiting -= 1
        if isinstance(answer, Refusal):
            raise ApiProblem(answer.status, answer.slug, answer.detail, answer.extra)
        return answer

    async def _answer(self, question: Question) -> Any:
        """Raises BrokenProcessPool if the pool ended before the child had the question."""
        await self._let_go()
        pool = self._started()
        asked = asyncio.wrap_future(
            pool.schedule(planning_child.answer, args=[question], timeout=self._seconds)
        )
        try:
            while not (await asyncio.wait([asked], timeout=LOOK_SECONDS))[0]:
                if not pool.active:
                    raise BrokenProcessPool("the pool ended and forgot the question")
            return asked.result()
        finally:
            asked.cancel()

    async def _let_go(self) -> None:
        """A pool is over for good once a child ends that had no work: where memory runs out the
        kernel may choose it."""
        pool = self._pool
        if pool is not None and not pool.active:
            self._pool = None
            await run_in_threadpool(_end, pool)

    def _started(self) -> ProcessPool:
        if self._pool is None:
            # forked from a server that has loaded the compiler and has no threads: a child that
            # died is replaced in no time
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([planning_child.__name__])
            self._pool = ProcessPool(
                max_workers=1,
                context=context,
                initializer=planning_child.begin,
                initargs=[self._memory_bytes],
            )
        return self._pool


def _end(pool: ProcessPool) -> None:
    pool.stop()
    pool.join()


def _key(question: WorkloadsQuestion) -> str:
    """Names a question. The code version is this process's own and so it is not in it."""
    stored = question.stored
    chosen = None if stored is None else (stored.digest, stored.created_at)
    how = (
        question.target.key,
        question.threads,
        question.numerics,
        question.precision,
        question.dims,
    )
    return canonical_json((question.digest, *how, chosen))


def _code_key(question: CodeQuestion) -> str:
    how = (question.text, question.target.key, question.threads, question.numerics)
    return _short((*how, question.schedule))


def _predictions_key(question: PredictionsQuestion) -> str:
    trials = [trial.id for trial in question.trials]
    return _short((question.text, question.target.key, trials, question.digest))


def _short(key: object) -> str:
    """Names a question by a few bytes, however long its parts are."""
    return hashlib.sha256(canonical_json(key).encode()).hexdigest()


def _graph_key(question: GraphQuestion) -> str:
    check = question.check
    how = (check.digest, check.target.key, check.threads, check.numerics, check.options)
    return canonical_json((*how, question.choice))
