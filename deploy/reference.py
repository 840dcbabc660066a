"""Generate the pages of docs/reference from the code: `python -m deploy.reference`.

`make reference` runs this module, and a test checks that the pages are up to date. The pages list
names, types and defaults. Handwritten pages such as docs/rest.md and docs/cli.md explain them.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- Generated from the code by `make reference`: change the code instead. -->"


def main() -> None:
    """Write all pages to docs/reference."""
    FOLDER.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text)
        print(path.relative_to(ROOT))


def pages() -> dict[Path, str]:
    """Return the text of every reference page, by its path."""
    made = {
        "rest": rest,
        "cli": command_line,
        "python": python,
        "settings": settings,
        "schema": schema,
        "metrics": metrics,
    }
    return {FOLDER / f"{name}.md": page() for name, page in made.items()}


def page(title: str, introduction: str, blocks: Iterable[str]) -> str:
    """Format a Markdown page with a title, an introduction, and further blocks of text."""
    return "\n\n".join([f"# {title}", NOTE, introduction, *blocks]) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table. Line breaks in cells become spaces."""
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(cell, row))} |" for row in rows)])


def cell(text: str) -> str:
    """Format a text as a cell of a Markdown table: escape `|`, and replace line breaks."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def code(value: object) -> str:
    """Format a value as inline code in Markdown. None and "" become an empty string."""
    return "" if value in (None, "") else f"`{value}`"


def prose(text: str | None) -> str:
    """Format a docstring or help text for Markdown; `<` is escaped, so that it starts no tag."""
    return inspect.cleandoc(text or "").replace("<", "&lt;").replace("::\n", ":\n")


# -- settings ---------------------------------------------------------------------------------


def settings() -> str:
    """Return the page of the service's settings with types, bounds and defaults."""
    from tilewright.service.settings import Settings

    described = Settings.model_json_schema()["properties"]
    prefix = Settings.model_config.get("env_prefix", "")
    rows = [
        [
            code(prefix + name.upper()),
            _type(schema, {}),
            code(schema.get("default")),
            schema["description"],
        ]
        for name, schema in described.items()
    ]
    return page(
        "Settings",
        "For those who run a service. At the end you know the name, type and default of each "
        "setting. Each is an environment variable of the api, the tuner and the client commands; "
        "a worker reads the variables that concern it. [The command line](../cli.md#settings) "
        "groups them.",
        [table(("variable", "type", "default", ""), rows)],
    )


# -- metrics ----------------------------------------------------------------------------------


def metrics() -> str:
    """Return the page of the Prometheus metrics with their types and labels."""
    from prometheus_client.metrics import MetricWrapperBase
    from prometheus_client.registry import CollectorRegistry

    from tilewright.service.api.metrics import Metrics

    def rows() -> Iterator[list[str]]:
        for collector in vars(Metrics()).values():
            if isinstance(collector, CollectorRegistry):
                continue
            # metrics of the library have several labels, counters in the database have one
            ours = not isinstance(collector, MetricWrapperBase)
            labels = [getattr(collector, "_label", "")] if ours else collector._labelnames
            for family in collector.collect() if ours else collector.describe():
                ending = "_total" if family.type == "counter" else ""
                names = " ".join(code(label) for label in labels)
                yield [code(family.name + ending), family.type, names, family.documentation]

    return page(
        "Metrics",
        "For those who monitor a service. At the end you know each metric with its labels. "
        "`GET /v1/metrics` answers tokens with the scope `read` in the text format of Prometheus. "
        "Queues are read from the database at each request; requests are those of the answering "
        "process. [Scaling](../scaling.md) says which metric shows a bottleneck.",
        [table(("metric", "kind", "labels", ""), sorted(rows()))],
    )


# -- database ---------------------------------------------------------------------------------


def schema() -> str:
    """Return the page of the database tables with their columns, constraints and indexes."""
    import sqlalchemy as sa

    from tilewright.db.models import Base

    blocks = []
    for mapper in sorted(Base.registry.mappers, key=lambda mapper: str(mapper.local_table)):
        described = mapper.local_table
        assert isinstance(described, sa.Table)
        comments = _comments(mapper.class_)
        rows = []
        for column in described.columns:
            marks = ["key"] if column.primary_key else []
            marks += [f"of `{key.target_fullname}`" for key in column.foreign_keys]
            kind = str(column.type) + ("" if not column.nullable else ", or NULL")
            rows.append([code(column.name), kind, ", ".join(marks), comments.get(column.key, "")])
        blocks += [f"## {described.name}", prose(mapper.class_.__dict__.get("__doc__"))]
        blocks.append(table(("column", "type", "", ""), rows))
        unique = [
            f"unique ({', '.join(column.name for column in constraint.columns)})"
            for constraint in described.constraints
            if isinstance(constraint, sa.UniqueConstraint)
        ]
        indexed = [
            f"{'unique ' if index.unique else ''}index "
            f"({', '.join(str(getattr(e, 'name', e)) for e in index.expressions)})"
            f"{_where(index)}"
            for index in described.indexes
        ]
        if unique or indexed:
            blocks.append("; ".join(sorted(unique) + sorted(indexed)) + ".")
    return page(
        "Database schema",
        "For those who query or change the database. At the end you know each table and column. "
        "These are the tables of a new database, for SQLite and PostgreSQL alike. Times are "
        "seconds since 1970, keys and digests SHA-256 in hexadecimal. "
        "[The database](../database.md) explains states and transactions.",
        [block for block in blocks if block],
    )


def _where(index: Any) -> str:
    """Format the condition of a partial index as ` where CONDITION`; "" for other indexes.

    The condition for SQLite is used, because it is the same for all databases.
    """
    condition = index.dialect_options["sqlite"]["where"]
    return "" if condition is None else f" where {condition}"


def _comments(model: type) -> dict[str, str]:
    """Return the comment after or above the declaration of each column, by the column's name.

    `model` is the class of the table.
    """
    found: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(model).splitlines():
        declared = re.match(r"\s+(\w+): Mapped\[.*?(?:  # (.*))?$", line)
        if declared and (declared[2] or above):
            found[declared[1]] = declared[2] or " ".join(above)
        alone = re.match(r"\s+# (.*)", line)
        above = [*above, alone[1]] if alone else []
    return found


# -- command line -----------------------------------------------------------------------------


def command_line() -> str:
    """Return the page of the command line: every command with its arguments and options."""
    import typer.main

    from tilewright.service.cli import app

    group: Any = typer.main.get_command(app)
    blocks: list[str] = []
    for name in sorted(group.commands):
        blocks += _command(group.commands[name], f"tilewright {name}", "##")
    return page(
        "Command line",
        "For users of the command line. At the end you know every command with its arguments and "
        "options, as in `tilewright COMMAND --help`. [The command line](../cli.md) explains their "
        "output.",
        blocks,
    )


def _command(command: Any, name: str, marks: str) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    usage = [name, *(_argument(argument) for argument in arguments)]
    yield f"{marks} {name}"
    inner = getattr(command, "commands", {})
    if not inner or command.invoke_without_command:
        yield f"```\n{' '.join(usage)}{' [OPTIONS]' if options else ''}\n```"
    text, _, example = prose(command.help).partition("\nExample: ")
    yield re.sub(r"(?<!\n)\n(?!\n)", " ", text.strip())
    if example:
        yield f"```sh\n{example.strip()}\n```"
    rows = [
        [
            " ".join(code(each) for each in [*p.opts, *p.secondary_opts])
            if p.param_type_name == "option"
            else code(_argument(p)),
            _values(p),
            "required" if p.required else code(_default(p)),
            prose(p.help),
        ]
        for p in [*arguments, *options]
    ]
    if rows:
        yield table(("", "value", "default", ""), rows)
    for each in sorted(inner):
        yield from _command(inner[each], f"{name} {each}", marks + "#")


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    name += "..." if parameter.nargs < 0 else ""
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def _values(parameter: Any) -> str:
    if getattr(parameter, "is_flag", False):
        return ""
    kind = parameter.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(code(each.value) for each in kind)
    if parameter.metavar and parameter.param_type_name == "option":
        return code(parameter.metavar)
    name = {int: "integer", float: "number"}.get(kind, "")
    bounds = [f">= {parameter.min}"] if parameter.min is not None else []
    bounds += [f"<= {parameter.max}"] if parameter.max is not None else []
    return f"{name} ({', '.join(bounds)})" if bounds else name


def _default(parameter: Any) -> str:
    value = parameter.default
    if value is None or value is False or value == [] or callable(value):
        return ""
    return str(value.value if isinstance(value, Enum) else value)


# -- REST -------------------------------------------------------------------------------------


def rest() -> str:
    """Return the page of the REST interface: all operations, then all schemas of their data."""
    from tilewright.service.api.app import create_app
    from tilewright.service.settings import Settings

    described = create_app(Settings()).openapi()
    schemas = described["components"]["schemas"]
    blocks = ["## Operations"]
    for path in sorted(described["paths"]):
        for verb, operation in sorted(described["paths"][path].items()):
            blocks += _operation(f"{verb.upper()} {path}", operation, schemas)
    blocks.append("## Objects")
    for name, schema in sorted(schemas.items()):
        rows = [
            [
                code(field),
                _type(facts, schemas),
                "required"
                if name.endswith("Request") and field in schema.get("required", ())
                else code(_plain(facts.get("default"))),
                prose(facts.get("description")),
            ]
            for field, facts in schema.get("properties", {}).items()
        ]
        blocks += [f"### {name}", prose(schema.get("description"))]
        blocks.append(table(("field", "type", "default", ""), rows) if rows else _type(schema, {}))
    return page(
        "REST interface",
        "For those who write a program against the service. At the end you know the fields of "
        "every operation, as in `/openapi.json`, which also has examples. "
        "[The REST interface](../rest.md) explains scopes, pages of lists, problems, and repeated "
        "requests.",
        [block for block in blocks if block],
    )


def _operation(
    name: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]
) -> Iterator[str]:
    yield f"### {code(name)}"
    yield prose(operation.get("description"))
    rows = [
        [
            code(parameter["name"]),
            parameter["in"],
            _type(parameter["schema"], schemas),
            "required"
            if parameter["required"]
            else code(_plain(parameter["schema"].get("default"))),
            prose(parameter.get("description")),
        ]
        for parameter in operation.get("parameters", ())
    ]
    if rows:
        yield table(("parameter", "in", "type", "default", ""), rows)
    said = []
    for content in operation.get("requestBody", {}).get("content", {}).items():
        said.append(f"Takes {_content(content, schemas)}.")
    for status, answer in operation["responses"].items():
        if status < "300":
            held = [_content(content, schemas) for content in answer.get("content", {}).items()]
            said.append(f"Answers {status}{': ' + ' or '.join(held) if held else ''}.")
    refused = [status for status in operation["responses"] if status >= "400"]
    if refused:
        said.append(f"Refuses with {', '.join(refused)}.")
    yield " ".join(said)


def _content(content: tuple[str, Mapping[str, Any]], schemas: Mapping[str, Any]) -> str:
    media, held = content
    kind = _type(held.get("schema", {}), schemas)
    return kind if media == "application/json" and kind else code(media)


def _number(value: float) -> str:
    """Format a bound without loss of precision, such as `9007199254740993` or `0.1`."""
    return f"{value:.19g}" if value == int(value) else repr(value)


def _type(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """Describe a JSON schema in a few words, such as `integer (>= 1)` or `list of text`.

    Names of schemas in `schemas` become links, because the page describes these schemas.
    """
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})" if name in schemas else name
    if "anyOf" in schema:
        kinds = [_type(each, schemas) for each in schema["anyOf"]]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(code(each) for each in schema["enum"])
    if "const" in schema:
        return code(schema["const"])
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {_number(schema[key])}" for key, sign in signs.items() if key in schema]
    match schema.get("type"):
        case "array":
            inner = _type(schema["items"], schemas) if "items" in schema else ""
            return f"list of {inner}" if inner else "list"
        case "object":
            values = schema.get("additionalProperties")
            held = _type(values, schemas) if isinstance(values, dict) else ""
            return f"object of {held}" if held else "object"
        case "string":
            return {"path": "path", "binary": "bytes"}.get(schema.get("format", ""), "text")
        case "null":
            return "null"
        case None:
            return ""
        case kind:
            return f"{kind} ({', '.join(bounds)})" if bounds else str(kind)


def _plain(value: Any) -> Any:
    """Prepare a default value for the page.

    Booleans become "true" or "false". Empty values, such as "" and [], become None.
    """
    if value in (None, "", [], {}):
        return None
    return str(value).lower() if isinstance(value, bool) else value


# -- Python -----------------------------------------------------------------------------------


def python() -> str:
    """Return the page of the public Python interface: names, signatures and docstrings."""
    import tilewright
    from tilewright.compiler.bindings import onnx_backend, ort
    from tilewright.compiler.runtime.model import Model
    from tilewright.compiler.runtime.session import Session
    from tilewright.service import client
    from tilewright.service.jobs.knowledge.known_model import KnownModel

    blocks = ["## tilewright", prose(tilewright.__doc__)]
    blocks += _members(tilewright, ("compile_model", "load_artifact", "tune", "bind_workers"))
    blocks += _class("Model", Model)
    blocks += _class("Session", Session)
    blocks += ["### Errors", _errors(tilewright)]
    blocks += ["## tilewright.compiler.bindings.ort", prose(ort.__doc__)]
    blocks += _members(ort, ort.__all__)
    blocks += ["## tilewright.compiler.bindings.onnx_backend", prose(onnx_backend.__doc__)]
    blocks += ["## tilewright.service.client", prose(client.__doc__)]
    blocks += _members(client, ("Client", "Tuned", "Curve"))
    blocks += ["### Errors of the client", _errors(client)]
    blocks += [
        "## tilewright.service.jobs.knowledge.known_model",
        *_class("KnownModel", KnownModel),
    ]
    return page(
        "Python",
        "For those who use Tilewright from Python. At the end you know every public name with its "
        "signature. [The runtime](../runtime.md) and [the client](../client.md) have examples.",
        [block for block in blocks if block],
    )


def _members(module: ModuleType, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        member = getattr(module, name)
        if inspect.isclass(member):
            yield from _class(name, member)
        elif callable(member):
            yield from _function(f"### {name}", name, member)


def _class(name: str, kind: type) -> Iterator[str]:
    yield f"### {name}"
    # a dataclass without a docstring has its signature as `__doc__`
    written = not (kind.__doc__ or "").startswith(f"{kind.__name__}(")
    yield _sections(prose(kind.__doc__)) if written else ""
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("tilewright."):
            continue
        for member, value in vars(base).items():
            found = inspect.unwrap(getattr(value, "__func__", value))
            if member.startswith("_") or not inspect.isfunction(found) or not found.__doc__:
                continue
            if vars(kind).get(member, value) is value:
                yield from _function("", f"{name}.{member}", found)


def _function(head: str, name: str, function: Callable[..., Any]) -> Iterator[str]:
    yield head
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    inner = list(_parameters(own))
    answer = signature.return_annotation
    end = "" if answer is inspect.Signature.empty else f" -> {_annotation(answer)}"
    text = f"{name}({', '.join(inner)}){end}"
    if len(text) > 96:
        text = "\n".join([f"{name}(", *(f"    {each}," for each in inner), f"){end}"])
    yield f"```python\n{text}\n```"
    yield _sections(prose(function.__doc__))


def _parameters(parameters: Sequence[inspect.Parameter]) -> Iterator[str]:
    keywords = False
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not keywords:
            yield "*"
        keywords |= each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(each.kind.name, "")
        text = stars + each.name
        if each.annotation is not each.empty:
            text += f": {_annotation(each.annotation)}"
        if each.default is not each.empty:
            default = each.default.value if isinstance(each.default, Enum) else each.default
            text += " = ..." if callable(default) else f" = {default!r}"
        yield text


def _annotation(annotation: object) -> str:
    """Format a type annotation as it is written in the source.

    In most modules, annotations are strings already, because their evaluation is postponed.
    """
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _sections(text: str) -> str:
    """Convert the sections of a docstring in Google's style, such as `Args:`, to Markdown lists."""

    def entry(match: re.Match[str]) -> str:
        return f"- `{match[1]}`: {' '.join(match[2].split())}"

    parts = re.split(r"^(Args|Attributes|Raises|Returns|Yields):\n", text, flags=re.MULTILINE)
    made = [parts[0].strip()]
    for head, body in zip(parts[1::2], parts[2::2], strict=True):
        entries = textwrap.dedent(body.strip("\n"))
        listed = re.sub(
            r"^([\w*., ]+?): ((?:.*)(?:\n(?:[ \t]+.*|$))*)", entry, entries, flags=re.MULTILINE
        )
        made.append(f"{head}:\n\n{listed}")
    return "\n\n".join(made)


def _errors(module: ModuleType) -> str:
    kinds = [getattr(module, name) for name in module.__all__ if name.endswith("Error")]
    rows = [
        [code(kind.__name__), code(kind.__base__.__name__), prose(kind.__doc__).split("\n\n")[0]]
        for kind in kinds
    ]
    return table(("error", "is a", ""), rows)


if __name__ == "__main__":
    main()
