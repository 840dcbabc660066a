"""The contract with clients, a file each for the interface over HTTP, commands, settings, metrics.

A change of any of it is seen in review. `pytest tests/golden/service --update-golden` writes the
files. The interface has a line per operation and per schema, the commands a line each. A line ends
with a digest of the whole description, types and bounds included: docs/reference shows the change.
"""

from __future__ import annotations

import hashlib
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
from tilewright.service.cli.tree import add_commands
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage

LEFT_OUT = {"title", "operationId", "summary", "description"}
"""Keys of a description: the framework's own additions, and words for people."""

SHOWN = {"example", "examples"}
"""Keys of values, of which nothing is left out."""


def interface() -> str:
    """OpenAPI; refusals with the same status share one line."""
    described = bare(create_app(Settings()).openapi())
    refusals: dict[str, Any] = {}
    lines = []
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            answers = operation["responses"]
            refused = [status for status in answers if status >= "400"]
            for status in refused:
                answer = answers.pop(status)
                assert refusals.setdefault(status, answer) == answer, (method, path)
            inputs = [marked(each["name"], each) for each in operation.get("parameters", ())]
            inputs += [f"body {name}" for name in contents(operation.get("requestBody", {}))]
            given = [f"{code} {' '.join(contents(answers[code]))}".strip() for code in answers]
            said = f"{method.upper()} {path} ({', '.join(inputs)}) -> {', '.join(given)}"
            lines.append(line(f"{said}; refused {' '.join(refused) or 'never'}", operation))
    for status, answer in sorted(refusals.items()):
        lines.append(line(f"refusal {status}", answer))
    for kind, members in described["components"].items():
        for name, member in members.items():
            fields = member.get("properties", {})
            needed = member.get("required", ())
            marks = [marked(each, {"required": each in needed}) for each in fields]
            lines.append(line(f"{kind} {name} {{{', '.join(marks)}}}", member))
    return "".join(lines)


def marked(name: str, described: Any) -> str:
    """A name, with ! if it is required."""
    return f"{name}!" if described.get("required") else name


def contents(described: Any) -> list[str]:
    """The schemas of a body by their names, or else its media types."""
    return [
        each.get("schema", {}).get("$ref", media).rpartition("/schemas/")[2]
        for media, each in described.get("content", {}).items()
    ]


def line(said: str, described: Any) -> str:
    """One line, with the digest of everything that is described."""
    whole = json.dumps(described, sort_keys=True)
    return f"{said} #{hashlib.sha256(whole.encode()).hexdigest()[:12]}\n"


def commands() -> str:
    """Every command with its arguments and options; the digest has types, bounds and defaults."""
    app = typer.Typer()
    add_commands(app)
    return "".join(
        line(f"{words}: {', '.join(takes) or 'nothing'}", takes)
        for words, takes in sorted(of_group(app, "tilewright"))
    )


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
    """A command's parameters, by the names of its options."""
    hints = get_type_hints(callback, include_extras=True)
    described = {}
    for name, parameter in inspect.signature(callback).parameters.items():
        given = get_args(hints[name])
        if not given:  # the context
            continue
        kind, info = given
        facts = {
            "type": str(kind) if get_args(kind) else getattr(kind, "__name__", str(kind)),
            "least": info.min,
            "most": info.max,
            "metavar": info.metavar,
            "hidden": info.hidden,
        }
        # if a type follows, the first of the names takes the place of a default
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
    """The metrics that Prometheus reads from a service without any requests."""
    lay_database(folder)
    storage = open_storage(Settings(data_folder=folder))
    try:
        text = Metrics().render(storage).decode()
    finally:
        storage.close()
    # each counter's creation time is reported as a separate gauge
    return "".join(line + "\n" for line in text.splitlines() if "_created" not in line)


def written(described: Any) -> str:
    return json.dumps(bare(described), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def bare(value: Any) -> Any:
    """Without the keys that no client relies on."""
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
    compare("interface.txt", interface(), pytestconfig)


def test_commands(pytestconfig: pytest.Config) -> None:
    compare("commands.txt", commands(), pytestconfig)


def test_settings(pytestconfig: pytest.Config) -> None:
    compare("settings.json", settings(), pytestconfig)


def test_metrics(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    compare("metrics.txt", metrics(tmp_path), pytestconfig)


def test_a_line_changes_with_each_fact() -> None:
    description = {"type": "integer", "maximum": 7}
    lines = {line("limit", description), line("limit", {**description, "maximum": 8})}
    assert len(lines) == 2
    assert line("limit", dict(reversed(description.items()))) in lines
