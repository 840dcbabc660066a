"""What many requests ask for at one moment, done for all of them at once.

While a call is done in a thread, the next questions gather; so there is no clock in it. Where
little is asked a question waits for nobody, and where much is asked the calls grow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from tilewright.db.errors import DatabaseError

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Together(Generic[Asked, Answer]):
    """Coroutines of one event loop ask; one call at a time answers.

    Args:
        answer: answers so many questions, in their order. An answer that is an exception is raised
            to who asked.
        most: questions of a call.
    """

    def __init__(
        self, answer: Callable[[Sequence[Asked]], Sequence[Answer | Exception]], most: int
    ) -> None:
        self._answer = answer
        self._most = most
        self._gathered: list[tuple[Asked, asyncio.Future[Answer]]] = []
        self._working: asyncio.Task[None] | None = None
        self._thread = CapacityLimiter(1)  # its own: whatever others do, this goes on

    async def ask(self, question: Asked) -> Answer:
        """The answer to one question. Raises what the call raises, or answers."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._gathered.append((question, future))
        if self._working is None:  # it begins when all who are at it now have asked
            self._working = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        try:
            while self._gathered:
                some, self._gathered = self._gathered[: self._most], self._gathered[self._most :]
                questions = [question for question, _ in some]
                answers = await run_sync(self._answers, questions, limiter=self._thread)
                for (_, future), answer in zip(some, answers, strict=True):
                    if future.done():  # who asked has gone
                        continue
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
        finally:
            self._working = None

    def _answers(self, questions: Sequence[Asked]) -> Sequence[Answer | Exception]:
        """An answer for each. What only one of them brings about is only that one's error."""
        try:
            return self._answer(questions)
        except DatabaseError as error:
            return [error] * len(questions)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is told to who asked)
            if len(questions) == 1:
                return [error]
            return [answer for each in questions for answer in self._answers([each])]
