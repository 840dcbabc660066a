"""Models are read and planned in a limited process of their own, and once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from fastapi.testclient import TestClient
from onnx import TensorProto, helper, numpy_helper

from tests.waiting import until_async
from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.storage import Storage
from tilewright.service.api import planning as api_planning
from tilewright.service.api import planning_child
from tilewright.service.api.errors import ApiProblem
from tilewright.service.api.planning import Planning
from tilewright.service.api.planning_child import WorkloadsQuestion
from tilewright.service.settings import Settings

TARGET = resolve_target("x86-64-v3")


def model_bytes() -> bytes:
    weight = numpy_helper.from_array(np.ones((8, 4), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [weight],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    data: bytes = onnx.ModelProto.SerializeToString(made)
    return data


@pytest.fixture
def limited(storage: Storage) -> Iterator[Callable[..., Planning]]:
    """Planning with other limits."""
    made: list[Planning] = []

    def make(**limits: Any) -> Planning:
        made.append(Planning(Settings(**limits), storage.blobs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def doing(call: Callable[..., Any], *arguments: Any) -> Any:
    """A question that only calls something in the child."""
    return SimpleNamespace(run=partial(call, *arguments))


async def until_queued(planning: Planning, asker: str, count: int) -> None:
    """Wait until this many questions of an asker wait for its turn."""
    await until_async(lambda: len(planning._turns._waiting.get(asker, ())) == count)


def refused(planning: Planning, question: Any) -> ApiProblem:
    async def ask() -> None:
        await planning._ask(question, "model 'm'", "me")

    with pytest.raises(ApiProblem) as raised:
        asyncio.run(ask())
    return raised.value


def test_a_model_that_kills_its_reader_fails_alone(limited: Callable[..., Planning]) -> None:
    planning = limited()
    problem = refused(planning, doing(os._exit, 3))
    assert (problem.status, problem.slug) == (422, "planning-failed")
    assert "model 'm'" in problem.detail and "3" in problem.detail
    # the next one finds a new child
    assert asyncio.run(planning._ask(doing(os.getpid), "next", "me")) != os.getpid()


def test_a_child_that_is_killed_without_work_is_replaced(limited: Callable[..., Planning]) -> None:
    planning = limited()

    async def run() -> None:
        for noticed in (False, True):  # whether the pool has seen that the child is gone
            child = await planning._ask(doing(os.getpid), "first", "me")
            pool = planning._pool
            assert pool is not None
            os.kill(child, signal.SIGKILL)
            if noticed:
                await until_async(lambda pool=pool: not pool.active)
            found = await asyncio.gather(
                *(planning._ask(doing(os.getpid), "next", "me") for _ in range(3))
            )
            assert child not in found

    asyncio.run(run())


def test_a_pool_that_breaks_again_and_again_is_no_error_of_ours(
    limited: Callable[..., Planning], monkeypatch: pytest.MonkeyPatch
) -> None:
    planning = limited()
    monkeypatch.setattr(planning_child, "begin", len)  # fails: the child ends without a question
    problem = refused(planning, doing(os.getpid))
    assert (problem.status, problem.slug) == (503, "planning-broken")
    assert problem.headers == {"Retry-After": "5"}
    monkeypatch.undo()
    assert asyncio.run(planning._ask(doing(len, b"123"), "next", "me")) == 3


def test_a_model_has_a_time_limit(limited: Callable[..., Planning]) -> None:
    planning = limited(planning_seconds=0.2)
    problem = refused(planning, doing(time.sleep, 3600))
    assert (problem.status, problem.slug) == (422, "planning-failed")
    assert "TILEWRIGHT_PLANNING_SECONDS" in problem.detail


def test_a_model_has_a_memory_limit(limited: Callable[..., Planning]) -> None:
    planning = limited(planning_memory_bytes=2 << 30)
    problem = refused(planning, doing(bytes, 3 << 30))
    assert (problem.status, problem.slug) == (507, "insufficient-memory")
    assert asyncio.run(planning._ask(doing(len, b"123"), "next", "me")) == 3


def test_one_more_than_may_wait_is_told_when_to_come_again(
    limited: Callable[..., Planning], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_planning, "MOST_WAITING", 0)
    problem = refused(limited(), doing(len, b""))
    assert (problem.status, problem.headers) == (503, {"Retry-After": "5"})


def test_one_that_asks_for_much_holds_up_nobody_else(limited: Callable[..., Planning]) -> None:
    """If planning the models of one token would take for ever, those of another are still
    planned."""
    planning = limited()

    async def run() -> None:
        slow = [
            asyncio.ensure_future(planning._ask(doing(time.sleep, 3600), "slow", "greedy"))
            for _ in range(64)
        ]
        for _ in range(3):
            assert await planning._ask(doing(len, b"123"), "small", "other") == 3
        refused = [each for each in slow if each.done()]
        assert len(refused) == 64 - api_planning.MOST_OF_ONE - 1
        problem = refused[0].exception()
        assert isinstance(problem, ApiProblem) and problem.status == 503
        for each in slow:
            each.cancel()
        await asyncio.gather(*slow, return_exceptions=True)

    asyncio.run(run())


def test_what_is_asked_for_at_once_is_planned_once(
    limited: Callable[..., Planning], storage: Storage
) -> None:
    digest = storage.blobs.put(model_bytes())
    planning = limited()
    asked = count_questions(planning)
    question = WorkloadsQuestion(digest, Mode(TARGET), {"batch": 2}, None)

    async def run() -> None:
        askers = [f"asker {number % 3}" for number in range(8)]
        found = await asyncio.gather(*(planning.find(question, asker) for asker in askers))
        assert len({tuple(each) for each in found}) == 1
        assert found[0][0].name.startswith("matmul")
        await planning.find(replace(question, dims={"batch": 3}), "me")
        await planning.find(replace(question, dims={"batch": 3}, mode=Mode(TARGET, 2)), "me")

    asyncio.run(run())
    assert asked == [1, 1, 1], "once for each question: sizes and threads are others"


def test_a_question_of_two_askers_does_not_wait_in_the_turns_of_the_first(
    limited: Callable[..., Planning], storage: Storage
) -> None:
    """The first asker's lookup waits behind that asker's other questions."""
    question = WorkloadsQuestion(storage.blobs.put(model_bytes()), Mode(TARGET), {"batch": 2}, None)
    planning = limited()
    asked = count_questions(planning)

    async def run() -> None:
        slow = [
            asyncio.ensure_future(planning._ask(doing(time.sleep, 3600), "slow", "greedy"))
            for _ in range(planning._processes + api_planning.MOST_OF_ONE - 2)
        ]
        early = asyncio.ensure_future(planning.find(question, "greedy"))
        await until_queued(planning, "greedy", api_planning.MOST_OF_ONE)
        begun = len(asked)
        found = await asyncio.wait_for(planning.find(question, "other"), 60)
        assert not early.done(), "it waits for its own turn"
        for each in slow:
            each.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        assert await asyncio.wait_for(early, 60) == found
        assert len(asked) == begun + 1, "planned once for both"

    asyncio.run(run())


def test_a_refusal_of_one_asker_is_not_that_of_another(
    limited: Callable[..., Planning], storage: Storage
) -> None:
    question = WorkloadsQuestion(storage.blobs.put(model_bytes()), Mode(TARGET), {"batch": 2}, None)
    planning = limited()

    async def run() -> None:
        slow = [
            asyncio.ensure_future(planning._ask(doing(time.sleep, 3600), "slow", "greedy"))
            for _ in range(64)
        ]
        await until_queued(planning, "greedy", api_planning.MOST_OF_ONE)
        both = (planning.find(question, asker) for asker in ("greedy", "other"))
        refused, found = await asyncio.gather(*both, return_exceptions=True)
        assert isinstance(refused, ApiProblem) and refused.status == 503
        assert isinstance(found, list | tuple), found
        for each in slow:
            each.cancel()
        await asyncio.gather(*slow, return_exceptions=True)

    asyncio.run(run())


def test_a_model_that_is_damaged_on_the_disk_is_no_mistake_of_the_user(
    limited: Callable[..., Planning], storage: Storage
) -> None:
    digest = storage.blobs.put(model_bytes())
    with storage.blobs.local(digest) as path:
        path.write_bytes(b"x" + model_bytes()[1:])
    question = WorkloadsQuestion(digest, Mode(TARGET), {"batch": 2}, None)
    with pytest.raises(ApiProblem) as raised:
        asyncio.run(limited().find(question, "me"))
    assert (raised.value.status, raised.value.slug) == (500, "storage-error")


def count_questions(planning: Planning) -> list[int]:
    asked: list[int] = []
    answered = planning._answered

    async def counting(question: Any, what: str) -> Any:
        asked.append(1)
        return await answered(question, what)

    planning._answered = counting  # type: ignore[method-assign]
    return asked


def test_a_model_is_planned_for_the_first_of_its_lookups(client: TestClient) -> None:
    digest = client.post("/v1/models", content=model_bytes()).json()["digest"]
    asked = count_questions(client.app.state.planning)  # type: ignore[attr-defined]
    body = {"model": digest, "dims": {"batch": 2}, "target": "x86-64-v3"}
    first = client.post("/v1/schedules/lookup", json=body).json()
    assert client.post("/v1/schedules/lookup", json=body).json() == first
    assert len(asked) == 1
    for _ in range(2):  # a failure is not remembered: another release may plan it
        wrong = client.post("/v1/schedules/lookup", json={**body, "dims": {"nothing": 2}})
        assert wrong.status_code == 422
    assert len(asked) == 3


def test_a_precision_is_another_question_with_other_kernels(client: TestClient) -> None:
    digest = client.post("/v1/models", content=two_products()).json()["digest"]
    body = {"model": digest, "target": "x86-64-v3"}
    keys = {
        precision: [
            entry["workload_key"]
            for entry in client.post(
                "/v1/schedules/lookup", json={**body, "precision": precision}
            ).json()["schedules"]
        ]
        for precision in ("float32", "bfloat16", "float16")
    }
    assert client.post("/v1/schedules/lookup", json=body).json()["known"] == 0
    assert len({*map(tuple, keys.values())}) == 3
    refused = client.post("/v1/schedules/lookup", json={**body, "precision": "int8"})
    assert refused.status_code == 422
    job = {**body, "trials": 0, "precision": "bfloat16"}
    assert client.post("/v1/jobs", json=job).json()["options"]["precision"] == "bfloat16"
    assert client.post("/v1/jobs", json={**job, "precision": "half"}).status_code == 422


def two_products() -> bytes:
    weights = [
        helper.make_tensor(n, TensorProto.FLOAT, (8, 8), np.arange(64) % 7) for n in ("v", "w")
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 8]) for n in "xy"]
    graph = helper.make_graph(nodes, "two", ends[:1], ends[1:], weights)
    return bytes(helper.make_model(graph).SerializeToString())


def test_an_unknown_strategy_is_refused_before_the_model_is_read(client: TestClient) -> None:
    digest = client.post("/v1/models", content=model_bytes()).json()["digest"]
    asked = count_questions(client.app.state.planning)  # type: ignore[attr-defined]
    body = {"model": digest, "target": "x86-64-v3", "dims": {"batch": 2}}
    answer = client.post("/v1/jobs", json={**body, "strategy": "guessing"})
    assert (answer.status_code, answer.json()["title"]) == (422, "Compiler error")
    assert "guessing" in answer.json()["detail"]
    assert asked == []
    assert client.post("/v1/jobs", json={**body, "strategy": "random"}).status_code == 201
    assert asked == [1]
