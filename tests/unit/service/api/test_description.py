"""The description: every operation with a summary, examples that are right, and each refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient
from pydantic import TypeAdapter

from tests.unit.service.api_calls import npz_bytes, onnx_bytes, upload
from tilewright.service.api.app import create_app, route_modules
from tilewright.service.api.deps import Reader, Submitter
from tilewright.service.api.description import describe, example
from tilewright.service.api.gate import GatedRoute
from tilewright.service.api.limiter import LimiterDep
from tilewright.service.api.refusals import refuses
from tilewright.service.api.schemas.bodies import ProblemView, RequestBody, View
from tilewright.service.api.schemas.fields import SHOWN_ID, SHOWN_KEY
from tilewright.service.settings import Settings

DESCRIBED = create_app(Settings()).openapi()

BINARY = {"type": "string", "format": "binary"}


class Operation(NamedTuple):
    method: str
    path: str
    described: dict[str, Any]
    route: GatedRoute


def operations() -> Iterator[Operation]:
    for router in route_modules():
        for route in router.routes:
            assert isinstance(route, GatedRoute)
            (method,) = route.methods or ()
            path = f"/v1{route.path}"
            yield Operation(method, path, DESCRIBED["paths"][path][method.lower()], route)


OPERATIONS = {f"{one.method} {one.path}": one for one in operations()}

each_operation = pytest.mark.parametrize("name", OPERATIONS)


def test_all_paths_are_operations() -> None:
    described = {f"{m.upper()} {p}" for p, found in DESCRIBED["paths"].items() for m in found}
    assert described == OPERATIONS.keys()


@each_operation
def test_an_operation_says_what_it_takes_and_answers(name: str) -> None:
    described = OPERATIONS[name].described
    assert 5 < len(described["summary"]) < 100 and described["description"]
    holders = [described["requestBody"]] if "requestBody" in described else []
    assert len(holders) == (described.get("requestBody") is not None)
    answers = [answer for status, answer in described["responses"].items() if status < "300"]
    for holder in holders + answers:
        if holder.get("content") is None:
            assert "204" in described["responses"], "all else answers with something"
        for content in holder.get("content", {}).values():
            assert "example" in content or content["schema"] == BINARY
    for parameter in described.get("parameters", ()):
        assert not parameter["required"] or "example" in parameter


@each_operation
def test_an_operation_says_how_it_refuses(name: str) -> None:
    described = OPERATIONS[name].described
    refusals = {s: answer for s, answer in described["responses"].items() if s >= "400"}
    assert {"422", "500", "503", "507"} <= refusals.keys()
    assert (refusals.keys() >= {"401", "403"}) == ("security" in described)
    assert ("404" in refusals) >= ("{" in name)
    assert ("408" in refusals) == ("requestBody" in described)
    for status, answer in refusals.items():
        (content,) = answer["content"].items()
        assert content[0] == "application/problem+json"
        assert content[1]["schema"] == {"$ref": "#/components/schemas/ProblemView"}
        shown = ProblemView.model_validate(content[1]["example"])
        assert str(shown.status) == status and answer["description"]


@each_operation
def test_an_answers_example_is_of_its_schema(name: str) -> None:
    operation = OPERATIONS[name]
    shown = operation.described["responses"].get(str(operation.route.status_code or 200), {})
    content = shown.get("content", {}).get("application/json")
    if content is not None:
        read = TypeAdapter(operation.route.response_model).validate_python(content["example"])
        found = TypeAdapter(operation.route.response_model).dump_python(read, mode="json")
        assert found == content["example"], "every field is shown, and no other"


def test_every_requests_example_is_accepted(client: TestClient) -> None:
    """By the real application: the named objects may be missing, but nothing of it is invalid."""
    model, wrong = upload(client), []
    for name, (method, path, described, _) in OPERATIONS.items():
        query = {}
        for parameter in described.get("parameters", ()):
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", parameter["example"])
            elif parameter["required"]:
                query[parameter["name"]] = parameter["example"]
        if name == "GET /v1/trials":
            query["job"] = SHOWN_ID  # one of two filters: the description cannot express that
        given: dict[str, Any] = {}
        for kind, shown in described.get("requestBody", {}).get("content", {}).items():
            text = json.dumps(shown.get("example")).replace(SHOWN_KEY, model)
            files = {
                "application/octet-stream": onnx_bytes(),
                "application/x-ndjson": shown.get("example"),
            }
            given = {"content": files.get(kind, text), "headers": {"Content-Type": kind}}
        if name == "POST /v1/samples":
            given["content"] = npz_bytes(x=np.ones((2, 4), np.float32))
        answer = client.request(method, path, params=query, **given)
        if answer.status_code in (400, 405, 413, 415, 422) or answer.status_code >= 500:
            wrong.append((name, answer.text))
    assert not wrong


def test_a_client_of_these_tests_notices_an_answer_that_is_not_described(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.get("/v1/health").status_code == 200
    described = client.app.openapi()  # type: ignore[attr-defined]
    monkeypatch.delitem(described["paths"]["/v1/health"]["get"]["responses"], "200")
    with pytest.raises(AssertionError, match="get /v1/health: 200"):
        client.get("/v1/health")


# ---- the mechanism


class ShownBody(RequestBody):
    number: int


class MuteView(View):
    text: str


def described_alone(endpoint: Any, **options: Any) -> Any:
    router = APIRouter(route_class=GatedRoute)
    router.add_api_route("/x/{thing}", endpoint, **options)
    app = FastAPI()
    app.include_router(router)
    routes = [route for route in router.routes if isinstance(route, GatedRoute)]
    return describe(app.openapi(), routes, "")["paths"]["/x/{thing}"]


def test_refusals_follow_from_what_an_operation_passes() -> None:
    @refuses(416)
    def read(thing: str, _: Reader) -> int:
        """Reads it. And nothing else."""
        return 1

    def change(thing: str, body: ShownBody, limiter: LimiterDep, _: Submitter) -> int:
        """Changes it"""
        return 1

    always = {"200", "401", "403", "404", "413", "422", "500", "503", "507"}
    described = described_alone(read)["get"]
    assert described["responses"].keys() == always | {"416"}
    assert described["summary"] == "Reads it"
    described = described_alone(change, methods=["POST"])["post"]
    assert described["responses"].keys() == always | {"408", "409", "429"}
    assert described["requestBody"]["content"]["application/json"]["example"] == {"number": 1}


def test_text_without_an_example_is_found() -> None:
    def mute(thing: str) -> list[MuteView]:
        """Says nothing"""
        return []

    with pytest.raises(ValueError, match=r"MuteView\.text: it needs an example"):
        described_alone(mute)
    with pytest.raises(ValueError, match="facts: it needs an example"):
        example({"type": "object", "additionalProperties": True}, {}, "facts")


def test_examples_are_put_together_from_those_of_the_fields() -> None:
    schemas = {"Inner": {"type": "object", "properties": {"a": {"type": "boolean"}}}}
    reference = {"$ref": "#/components/schemas/Inner"}
    for schema, expected in (
        ({"type": "integer", "minimum": 7}, 7),
        ({"type": "array", "items": reference}, [{"a": False}]),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, 1.5),
        ({"type": "string", "enum": ["x", "y"]}, "x"),
        ({"const": "ok"}, "ok"),
        ({"type": "string", "examples": ["given"]}, "given"),
    ):
        assert example(schema, schemas) == expected
