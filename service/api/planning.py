"""Reads models and partitions them into workloads, in child processes with time and memory limits.

A crafted or very large model can make reading slow, exhaust memory or crash the process. Then only
the child process and the request fail, not the web process. The tokens of clients take turns: even
if one token sends many requests, other tokens get a child process.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncIterator
from concurrent.futures import TimeoutError as TooLongError
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from fastapi.concurrency import contextmanager_in_threadpool, run_in_threadpool
from pebble import ProcessExpired, ProcessPool

from tilewright.db.stores.blobs import BlobStore
from tilewright.service.api import planning_child
from tilewright.service.api.cache import LRU
from tilewright.service.api.concurrency import SingleFlight
from tilewright.service.api.errors import ApiProblem
from tilewright.service.api.planning_child import (
    JobCheck,
    KeptQuestion,
    Measured,
    ModelCheck,
    ModelQuestion,
    Question,
    Refusal,
    SamplesCheck,
)
from tilewright.service.api.turns import TooManyError, Turns
from tilewright.service.jobs.inputs.given_files import SamplesFile, shown_name
from tilewright.service.jobs.plan.bounded_planning import memory_limit
from tilewright.service.settings import Settings

MOST_WAITING = 64
"""Limit of questions that wait for a planning process. A further question is rejected with status
503."""

MOST_OF_ONE = 16
"""Limit of waiting questions per API token."""

LOOK_SECONDS = 5.0
"""Interval in seconds at which the sender of a question checks that the process pool is still
alive."""

T = TypeVar("T")


class Planning:
    """Answers questions about models in child processes, and caches the answers.

    A question is a computation, such as listing a model's workloads; its result is the answer. The
    processes start at the first question, and run until `close`. In all methods, `asker` is the id
    of the token that asks; tokens take turns.
    """

    def __init__(self, settings: Settings, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._seconds = settings.planning_seconds
        self._memory_bytes = memory_limit(settings)
        self._samples_bytes = settings.max_samples_bytes
        self._processes = settings.planning_processes
        self._turns = Turns(self._processes, MOST_WAITING, MOST_OF_ONE)
        self._pool: ProcessPool | None = None
        self._kept: dict[type[KeptQuestion[Any]], LRU[str, Any]] = {}
        self._waiting: SingleFlight[tuple[str, str], Any] = SingleFlight()
        self._computing: SingleFlight[str, Any] = SingleFlight()

    async def check_model(self, path: Path, name: str, asker: str) -> None:
        """Check that the file at `path` is an ONNX model. `name` names the model in error messages.

        Raises:
            ApiProblem: if the file is not a model; the problem states the reason.
        """
        await self._ask(ModelCheck(path, name), f"model '{name}'", asker)

    async def check_samples(self, path: Path, name: str, asker: str) -> None:
        """Check that the file at `path` contains sample inputs.

        `name` names the file in error messages.

        Raises:
            ApiProblem: if the file does not contain samples; the problem states the reason.
        """
        question = SamplesCheck(SamplesFile(name, path), self._samples_bytes)
        await self._ask(question, f"'{name}'", asker)

    async def check_job(self, check: JobCheck, asker: str) -> None:
        """Check that a model can be tuned with a job's options and sample inputs.

        A child process partitions the model into workloads, as the tuner will do. `asker` is the id
        of the token that sent the job.

        Raises:
            ApiProblem: if the check fails; the problem states the reason.
        """
        async with AsyncExitStack() as stack:
            path = await stack.enter_async_context(self._local(check.digest))
            samples = [
                SamplesFile(shown_name(digest), await stack.enter_async_context(each))
                for digest in check.spec(b"").options.samples
                for each in [self._local(digest)]
            ]
            asked = replace(
                check, path=path, samples=tuple(samples), samples_bytes=self._samples_bytes
            )
            await self._ask(asked, f"model '{check.digest}'", asker)

    def knows(self, question: KeptQuestion[Any], asker: str) -> bool:
        """Whether `find` would return a result without starting a new computation.

        This holds if the result is cached or being computed. It also holds if an earlier call with
        the same question and asker still waits.

        Args:
            question: the computation, such as listing a model's workloads.
            asker: the id of the token that requests the result.
        """
        key = question.key()
        return (
            key in self._computing or (key, asker) in self._waiting or key in self._cache(question)
        )

    async def find(self, question: KeptQuestion[T], asker: str) -> T:
        """Return the result of a computation, from the cache or from a child process.

        The tokens (askers) take turns. If several tokens request the same computation, it runs
        once, at the first turn of one of them. All of them get its result.

        Args:
            question: the computation, such as listing a model's workloads.
            asker: the id of the token that requests the result.

        Raises:
            ApiProblem: if the computation fails, or too many computations wait.
        """
        key = question.key()
        kept: T | None = self._cache(question).get(key)
        if kept is not None:
            return kept
        computed = self._computing.running(key)
        if computed is None:
            computed = self._waiting.start((key, asker), lambda: self._make(key, question, asker))
        made: T = await asyncio.shield(computed)
        return made

    def _cache(self, question: KeptQuestion[T]) -> LRU[str, T]:
        return self._kept.setdefault(type(question), LRU(question.MOST_BYTES))

    async def _make(self, key: str, question: KeptQuestion[T], asker: str) -> T:
        """Wait for the token's turn, run a computation in a child process, and return the result.

        If the computation has run or started for another token meanwhile, return that result.

        Args:
            key: the cache key of the computation.
            question: the computation, such as listing a model's workloads.
            asker: the id of the token.
        """
        async with AsyncExitStack() as stack:
            measured = Measured(question)
            if isinstance(question, ModelQuestion):
                path = await stack.enter_async_context(self._local(question.model))
                measured = Measured(question.at(path))
            async with self._turn(asker):
                kept: T | None = self._cache(question).get(key)
                if kept is not None:
                    return kept
                other = self._computing.running(key)
                if other is None:
                    computed: T = await self._computing.run(
                        key, lambda: self._compute(key, question, measured)
                    )
                    return computed
            answer: T = await asyncio.shield(other)  # the place is free for other questions
            return answer

    async def _compute(self, key: str, question: KeptQuestion[T], measured: Measured[T]) -> T:
        answer: T
        answer, size_bytes = await self._answered(measured, question.subject)
        self._cache(question).put(key, answer, size_bytes)
        return answer

    def _local(self, digest: str) -> AbstractAsyncContextManager[Path]:
        return contextmanager_in_threadpool(self._blobs.local(digest))

    def close(self) -> None:
        """End the child processes."""
        if self._pool is not None:
            _end(self._pool)

    async def _ask(self, question: Question, what: str, asker: str) -> Any:
        async with self._turn(asker):
            return await self._answered(question, what)

    @asynccontextmanager
    async def _turn(self, asker: str) -> AsyncIterator[None]:
        """Wait for the turn of a token, and reserve a child process within the context.

        `asker` is the id of the token.

        Raises:
            ApiProblem: 503, if too many requests wait already.
        """
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._turns.turn(asker))
            except TooManyError as error:
                raise ApiProblem(
                    503,
                    "planning-busy",
                    f"{error.waiting} models are already waiting to be read: try again later",
                    headers={"Retry-After": "5"},
                ) from None
            yield

    async def _answered(self, question: Question, what: str) -> Any:
        """Run a computation in a child process, and return its result.

        If the process pool breaks because an idle child was killed, the computation is sent once
        more.

        Args:
            question: the computation, such as listing a model's workloads.
            what: the name of the model or file, for error messages.

        Raises:
            ApiProblem: if the child rejects the model, takes too long, or crashes.
        """
        try:
            try:
                answer = await self._answer(question)
            except BrokenProcessPool:  # an idle child was killed, not by this question
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
        if isinstance(answer, Refusal):
            raise ApiProblem(answer.status, answer.slug, answer.detail, answer.extra)
        return answer

    async def _answer(self, question: Question) -> Any:
        """Send a computation (`question`) to a child process once, and return the result.

        The result is a `Refusal` if the child rejects the model.

        Raises:
            BrokenProcessPool: if the pool of processes ended before a child received the
                computation.
        """
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
        """Close the pool of child processes if it is broken. The next computation opens a new one.

        The pool breaks permanently if an idle child ends. The kernel may kill an idle child when
        memory runs out.
        """
        pool = self._pool
        if pool is not None and not pool.active:
            self._pool = None
            await run_in_threadpool(_end, pool)

    def _started(self) -> ProcessPool:
        if self._pool is None:
            # The fork server has loaded the compiler and has no threads, so a dead child is
            # replaced quickly.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([planning_child.__name__])
            self._pool = ProcessPool(
                max_workers=self._processes,
                context=context,
                initializer=planning_child.begin,
                initargs=[self._memory_bytes],
            )
        return self._pool


def _end(pool: ProcessPool) -> None:
    pool.stop()
    pool.join()
