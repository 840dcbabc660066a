"""What others rely on, in one file each: the interface over HTTP, commands, settings, metrics.

A change of any of it is seen in review. `pytest tests/golden/service --update-golden` writes them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer

from tests.databases import lay_database
from tilewright.service.api.app import create_app
from tilewright.service.api.metrics import Metrics
from tilewright.service.cli.tree import plant
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage

LEFT_OUT = {"title", "operationId", "summary", "description"}
"""Keys of a description: what the framework makes up itself, and words for people."""

SHOWN = {"example", "examples"}
"""Keys of values, of which nothing is left out."""


def interface() -> str:
    """OpenAPI; what all refusals of a status say alike is said once."""
    described = create_app(Settings()).openapi()
    refusals: dict[str, Any] = {}
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            answers = operation["responses"]
            refused = [status for status in answers if status >= "400"]
            for status in refused:
                answer = answers.pop(status)
                assert refusals.setdefault(status, answer) == answer, (method, path)
            operation["refused"] = " ".join(refused)
    operations = {name: described[name] for name in ("paths", "components")}
    return written({"operations": operations, "refusals": refusals})


def commands() -> str:
    """Every command with its arguments and options: names, types, bounds, defaults."""
    app = typer.Typer()
    plant(app)
    return written(dict(sorted(of_group(app, "tilewright"))))


def of_group(app: typer.Typer, prefix: str) -> Iterator[tuple[str, Any]]:
    for command in app.registered_commands:
        name = command.name or command.callback.__name__.rstrip("_")  # type: ignore[union-attr]
        yield f"{prefix} {name}", parameters(command.callback)
    for group in app.registered_groups:
        inner, name = group.typer_instance, f"{prefix} {group.name}"
        assert inner is not None and inner.info.no_args_is_help
        yield name, {"alone": "shows its help"}
        yield from of_group(inner, name)


def parameters(callback: Any) -> dict[str, Any]:
    """What a command takes, by the names of its options."""
    hints = get_type_hints(callback, include_extras=True)
    described = {}
    for name, parameter in inspect.signature(callback).parameters.items():
        given = get_args(hints[name])
        if not given:  # the context
            continue
        kind, info = given
        facts = {
            "type": getattr(kind, "__name__", str(kind)),
            "least": info.min,
            "most": info.max,
            "metavar": info.metavar,
            "hidden": info.hidden,
        }
        # beside a type, the first of the names lies where a default would
        first = [info.default] if isinstance(info.default, str) else []
        names = (*first, *(info.param_decls or ()))
        described[" ".join(names) or name] = {
            **{name: plain(fact) for name, fact in facts.items() if fact not in (None, False)},
            "default": "required"
            if parameter.default is parameter.empty
            else plain(parameter.default),
        }
    return described


def settings() -> str:
    """Every setting with its type, its bounds and its default."""
    schema = Settings.model_json_schema()
    names = ("env_prefix", "extra", "frozen", "allow_inf_nan")
    read = {name: Settings.model_config.get(name) for name in names}
    return written({"read": read, **schema})


def metrics(folder: Path) -> str:
    """What Prometheus reads of a service that nobody has asked anything."""
    lay_database(folder)
    storage = open_storage(Settings(data_folder=folder))
    try:
        text = Metrics().render(storage).decode()
    finally:
        storage.close()
    # when a counter was made is told as a gauge of its own
    return "".join(line + "\n" for line in text.splitlines() if "_created" not in line)


def written(described: Any) -> str:
    return json.dumps(bare(described), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def bare(value: Any) -> Any:
    """Without what nobody relies on."""
    match value:
        case dict():
            kept = {k: v for k, v in value.items() if k not in LEFT_OUT or isinstance(v, dict)}
            return {key: each if key in SHOWN else bare(each) for key, each in kept.items()}
        case list() | tuple():
            return [bare(each) for each in value]
        case _:
            return value


def plain(value: Any) -> Any:
    match value:
        case list() | tuple():
            return [plain(each) for each in value]
        case None | bool() | int() | float():
            return value
        case _:
            return str(value)


def compare(name: str, text: str, config: pytest.Config) -> None:
    path = Path(__file__).parent / name
    if config.getoption("--update-golden", default=False):
        path.write_text(text)
    assert path.read_text() == text


def test_interface(pytestconfig: pytest.Config) -> None:
    compare("interface.json", interface(), pytestconfig)


def test_commands(pytestconfig: pytest.Config) -> None:
    compare("commands.json", commands(), pytestconfig)


def test_settings(pytestconfig: pytest.Config) -> None:
    compare("settings.json", settings(), pytestconfig)


def test_metrics(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    compare("metrics.txt", metrics(tmp_path), pytestconfig)
