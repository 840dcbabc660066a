"""Fuzz test of the REST API: random valid requests, without a token and with each scope.

    python -m benchmarks.rest_fuzz --examples 100 --seed 1

schemathesis generates the requests from the OpenAPI description. Half of the paths name existing
items. An answer must not have a status of 5xx or one that the description lacks, and every error
must be a problem document.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import schemathesis
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.core import NOT_SET
from schemathesis.core.result import Err

from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Scope
from tilewright.service.api.app import create_app
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage

MEDIA_TYPE = "application/problem+json"

_OPTIONS: dict[str, Any] = {
    "database": None,
    "deadline": None,
    "phases": [Phase.generate],
    "suppress_health_check": list(HealthCheck),
}


@schemathesis.serializer("application/x-ndjson")
def _lines(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@dataclass
class Findings:
    """Numbers of HTTP answers by status, and descriptions of the wrong answers (`wrong`).

    An answer is wrong if its status is 5xx or undocumented. An error is also wrong if its content
    type is not `application/problem+json`.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def credentials(storage: Storage) -> dict[str, dict[str, str]]:
    """Request headers by name: "none" without a token, and one entry for each scope."""
    made: dict[str, dict[str, str]] = {"none": {}}
    for scope in Scope:
        secret, _ = storage.tokens.create(scope.value, [scope], all_owners=True)
        made[scope.value] = {"Authorization": f"Bearer {secret}"}
    return made


def known_names(storage: Storage) -> dict[str, str]:
    """Create one item of each kind, and return their path parameters.

    The items are a model, a cancelled job, a worker, a token and a workload.
    """
    model = storage.models.add(b"no model, but there", "m.onnx")
    job = storage.jobs.cancel(storage.jobs.create(model.digest, "host", "a" * 64).id)
    worker = storage.workers.register("w", [], {})
    _, token = storage.tokens.create("to be revoked", [Scope.READ])
    storage.workloads.put_workloads({"a" * 64: "text"})
    return {
        "digest": model.digest,
        "job_id": job.id,
        "worker_id": worker.id,
        "token_id": token.id,
        "key": "a" * 64,
    }


def fuzz(app: FastAPI, storage: Storage, examples: int, start: int = 0, path: str = "") -> Findings:
    """Send `examples` random requests of each operation with each credential; `start` is the seed.

    Only operations whose paths begin with `path` are tested.
    """
    found = Findings()
    names, tokens = known_names(storage), credentials(storage)
    with TestClient(app, raise_server_exceptions=False) as client:
        schema = schemathesis.openapi.from_dict(app.openapi())
        for result in schema.get_all_operations():
            if isinstance(result, Err):
                raise result.err()
            operation = result.ok()
            if not operation.path.startswith(path):
                continue
            documented = {int(status) for status in operation.definition.raw["responses"]}

            def send(case: Any, real: bool) -> None:
                _send(client, case, names if real else {}, tokens, documented, found)  # noqa: B023

            given(case=operation.as_strategy(), real=st.booleans())(
                seed(start)(settings(**_OPTIONS, max_examples=examples)(send))
            )()
    return found


def _send(
    client: TestClient,
    case: Any,
    names: Mapping[str, str],
    tokens: Mapping[str, Mapping[str, str]],
    documented: Collection[int],
    found: Findings,
) -> None:
    """Send one request with each credential, and record the statuses and wrong answers.

    The path parameters in `names` replace generated ones.
    """
    if case.path_parameters:
        case.path_parameters.update({k: names[k] for k in case.path_parameters if k in names})
    for who, header in tokens.items():
        answer = client.request(**_request(case, header))
        status = answer.status_code
        found.statuses[status] += 1
        problem = answer.headers.get("content-type") == MEDIA_TYPE
        if status >= 500 or status not in documented or (status >= 400 and not problem):
            asked = f"{case.method} {case.formatted_path} {case.query} {case.body!r}"
            found.wrong.append(f"{who}: {asked[:400]}: {status} {answer.text[:200]}")


def _request(case: Any, header: Mapping[str, str]) -> dict[str, Any]:
    """Convert a generated case to arguments of the test client.

    `header` replaces its authorisation.
    """
    sent = case.as_transport_kwargs(base_url="http://testserver")
    own = {k: v for k, v in dict(case.headers or {}).items() if k.lower() != "authorization"}
    made = {
        "method": sent["method"],
        "url": sent["url"],
        "params": sent.get("params"),
        "headers": dict(_sendable({**own, **header})),
    }
    if case.body is not NOT_SET and sent.get("json") is not None:
        made["json"] = sent["json"]
    elif case.body is not NOT_SET and sent.get("data") is not None:
        made["content"] = sent["data"]
    return made


def _sendable(headers: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    for name, value in headers.items():
        yield name, str(value).encode("latin-1", "replace")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--path", default="", help="only routes whose paths begin so")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        service = Settings(data_folder=Path(folder), long_poll_seconds=0.1)
        storage = open_storage(service)
        app = create_app(service, storage)
        found = fuzz(app, storage, options.examples, options.seed, options.path)
        storage.close()
    for line in dict.fromkeys(found.wrong):
        print(line)
    print(dict(sorted(found.statuses.items())))
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
