"""OpenAPI description of the interface: parameters, responses, errors and examples per operation.

FastAPI derives parameters and responses from the types. This module adds error responses and
examples to every operation. Error responses are problem documents (RFC 9457). Their statuses follow
from the checks that the route makes, such as for a token, a body or a rate limit. The example of a
request or response consists of the examples of its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from tilewright.service.api.errors import MEDIA_TYPE, PREFIX
from tilewright.service.api.gate import GatedRoute
from tilewright.service.api.schemas.bodies import ProblemView
from tilewright.service.api.schemas.fields import SHOWN_ID, SHOWN_KEY

Json = dict[str, Any]

_PROBLEM = "#/components/schemas/ProblemView"

_EXAMPLES = {
    401: ("unauthorized", "the token is invalid, revoked or expired"),
    403: ("forbidden", "token 'ci' has no scope 'admin'"),
    404: ("not-found", f"there is no job '{SHOWN_ID}'"),
    408: ("request-timeout", "the request body came too slowly: 1200 bytes in time"),
    409: ("conflicting-state", f"job '{SHOWN_ID}' is succeeded: it cannot be paused"),
    413: ("too-large", "the request body is larger than 1048576 bytes"),
    416: ("range-not-satisfiable", f"blob '{SHOWN_KEY}' has 10 bytes: byte 20 is not among them"),
    422: ("invalid-request", "body.threads: Input should be less than or equal to 256"),
    429: (
        "too-many-requests",
        "token 'ci' has used up its jobs, 9 a minute: the next one in 1 s",
    ),
    500: ("internal-error", "the service failed; its log says why"),
    503: ("storage-unavailable", "the database is busy: try again"),
    507: ("insufficient-storage", "the service's disk is full; nothing of this request was saved"),
}
"""Example error kind and message of each HTTP error status in OpenAPI. docs/rest.md lists all
kinds."""

_NAMES = {"digest": SHOWN_KEY, "key": SHOWN_KEY}
"""Example values of path parameters in OpenAPI. All other path parameters get an example id."""


def describe(described: Json, routes: Sequence[GatedRoute], prefix: str) -> Json:
    """Add a summary, error responses and examples to each operation of FastAPI's OpenAPI document.

    Args:
        described: the OpenAPI document. It is changed in place, and returned.
        routes: the routes of the operations.
        prefix: the start of each path, such as "/v1".
    """
    schemas = described["components"]["schemas"]
    schemas["ProblemView"] = ProblemView.model_json_schema()
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for route in routes:
        for method in route.methods or ():
            operation = described["paths"][prefix + route.path][method.lower()]
            operation["summary"] = _summary(route)
            _refusals(operation, route)
            _examples(operation, schemas)
    return described


def _summary(route: GatedRoute) -> str:
    """Return the summary of an operation: the first sentence of its route's docstring."""
    first = " ".join(route.description.partition("\n\n")[0].split())
    for end in (". ", "; ", ": "):
        first = first.partition(end)[0]
    return first.rstrip(".")


def _refusals(operation: Json, route: GatedRoute) -> None:
    responses = operation["responses"]
    for status in sorted(route.refusals):
        kind, detail = _EXAMPLES[status]
        problem = {
            "type": PREFIX + kind,
            "title": kind.replace("-", " ").capitalize(),
            "status": status,
            "detail": detail,
            "request_id": SHOWN_ID,
        }
        content = {MEDIA_TYPE: {"schema": {"$ref": _PROBLEM}, "example": problem}}
        phrase = HTTPStatus(status).phrase
        responses[str(status)] = {"description": phrase, "content": content}
    operation["responses"] = dict(sorted(responses.items()))


def _examples(operation: Json, schemas: Mapping[str, Json]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            parameter["example"] = _NAMES.get(parameter["name"], SHOWN_ID)
        elif parameter["required"]:
            parameter["example"] = example(parameter["schema"], schemas, parameter["name"])
    for content in _contents(operation):
        if "schema" in content and "example" not in content and content["schema"]:
            content["example"] = example(content["schema"], schemas)


def _contents(operation: Json) -> Iterator[Json]:
    """Yield the content entries of an operation's request and successful responses.

    An entry has the schema and the example of one media type. Entries for files are left out.
    """
    holders = [operation.get("requestBody", {})]
    holders += [answer for status, answer in operation["responses"].items() if status < "300"]
    for holder in holders:
        for content in holder.get("content", {}).values():
            if content.get("schema", {}).get("format") != "binary":
                yield content


def example(schema: Json, schemas: Mapping[str, Json], where: str = "") -> Any:
    """Return an example value for a JSON schema, built from the examples of its parts.

    Args:
        schema: the schema.
        schemas: the schemas to which `$ref` refers, by name.
        where: the name of the schema in error messages.

    Raises:
        ValueError: if a string or an object without properties has no example.
    """
    if "examples" in schema:
        return schema["examples"][0]
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return example(schemas[name], schemas, name)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return example(schema["anyOf"][0], schemas, where)
    if (build := _BUILDERS.get(schema.get("type", ""))) is None:
        raise ValueError(f"{where}: it needs an example")
    return build(schema, schemas, where)


def _object(schema: Json, schemas: Mapping[str, Json], where: str) -> Any:
    if "properties" not in schema:
        raise ValueError(f"{where}: it needs an example")
    fields = schema["properties"].items()
    return {name: example(field, schemas, f"{where}.{name}") for name, field in fields}


_BUILDERS: Mapping[str, Callable[[Json, Mapping[str, Json], str], Any]] = {
    "object": _object,
    "array": lambda schema, schemas, where: [example(schema["items"], schemas, where)],
    "integer": lambda schema, *_: max(1, schema.get("minimum", 1)),
    "number": lambda *_: 1.5,
    "boolean": lambda *_: False,
    "null": lambda *_: None,
}
