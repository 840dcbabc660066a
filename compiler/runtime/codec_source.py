"""Generation and compilation of Python functions that convert dataclasses to and from JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any, cast

from tilewright.compiler.runtime.json_form import (
    JsonForm,
    MalformedError,
    Read,
    Write,
    expected,
    shown,
    within,
)


@dataclass(frozen=True, slots=True)
class Codec:
    """Reader and writer for values of one type annotation.

    Attributes:
        read: checks JSON data and returns the value.
        write: converts a value to JSON data; None if the value is already JSON data.
        is_own_form: Python source of a test, in which `$` stands for the data, such as `type($) is
            bool`. If the test is true, the data are the value, and `read` need not be called. Empty
            if there is no such test.
    """

    read: Read
    write: Write | None = None
    is_own_form: str = ""


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of a dataclass, with its name and options in JSON.

    Attributes:
        name: the attribute's name in the class.
        key: the entry's name in JSON.
        codec: the reader and writer of the field's value.
        default: returns the default value; None if the field is required in JSON.
        sparse: whether the writer omits the field if it has its default value.
    """

    name: str
    key: str
    codec: Codec
    default: Callable[[], Any] | None
    sparse: bool


class FunctionSource:
    """The source lines of a generated Python function, and the objects that its names refer to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.values: dict[str, Any] = {"within": within, "inf": math.inf}

    def name(self, value: Any, word: str) -> str:
        """Make an object available to the source under a new name, and return this name.

        The name is `word` with a number appended.
        """
        found = f"{word}{len(self.values)}"
        self.values[found] = value
        return found

    def reading(self, codec: Codec, value: str) -> str:
        """Return the source of an expression that converts JSON data to a value.

        `value` is the name of the variable with the data. The expression calls the reader only if
        the test `codec.is_own_form` is false.
        """
        call = f"{self.name(codec.read, 'read')}({value}, scope)"
        if not codec.is_own_form:
            return call
        return f"{value} if {codec.is_own_form.replace('$', value)} else {call}"

    def part(self, codec: Codec, value: str, place: str) -> list[str]:
        """Return source lines that replace JSON data in a variable by the converted value.

        `value` is the name of the variable. `place` is the path of the data in error messages, such
        as `[3]`.
        """
        if codec.is_own_form == "True":
            return []
        lines = [
            f"try: {value} = {self.name(codec.read, 'read')}({value}, scope)",
            f"except ValueError as error: raise within(error, {place!r}) from None",
        ]
        if codec.is_own_form:
            test = codec.is_own_form.replace("$", value)
            return [f"if not ({test}):", *(f"    {line}" for line in lines)]
        return lines

    def compiled(self, parameters: str, what: str) -> Any:
        """Compile the lines to a function, and return the function.

        `parameters` is the source of its parameter list, such as `data, scope`. `what` names it in
        tracebacks.

        The source is safe to execute: it consists of field names and text of this module, and
        contains no input data.
        """
        text = "\n    ".join([f"def made({parameters}):", *self.lines])
        exec(compile(text, f"<the JSON form of {what}>", "exec"), self.values)
        return self.values["made"]


def class_reader(kind: type, form: JsonForm, fields: Sequence[FormField]) -> Read:
    """Compile the function that reads instances of a dataclass from JSON data.

    For example, the generated source for a class with the fields `workload` and `threads` is

        def made(data, scope):
            if type(data) is not dict: data = opened(data)
            try:
                a0 = data["workload"]
                a1 = data["threads"]
            except KeyError as error: raise missing(error)
            count = 2
            if not (type(a0) is str):
                try: a0 = read0(a0, scope)
                except ValueError as error: raise within(error, "workload")
            ...
            if len(data) != count: check_keys(data)
            return kind(a0, a1)
    """
    source = FunctionSource()
    places = {each.name: f"a{n}" for n, each in enumerate(fields)}
    given = ", ".join(places[each.name] for each in dataclasses.fields(kind))
    if form.row:
        parts = [(each.codec, each.name) for each in fields]
        return row_reader(parts, f"{source.name(kind, 'kind')}({given})", source)
    known = {*form.constants, *(each.key for each in fields), *form.derived}
    source.values |= {
        "opened": opened,
        "missing": _missing,
        "absent": MISSING,
        "check_constant": _check_constant,
        "check_keys": lambda data: _check_keys(data, known),
    }
    required = [each for each in fields if each.default is None]
    lines = ["if type(data) is not dict: data = opened(data)", "try:", "    pass"]
    lines += [f"    {places[each.name]} = data[{each.key!r}]" for each in required]
    for key, value in form.constants.items():
        wrong = f"check_constant({key!r}, data[{key!r}], {value!r})"
        lines.append(f"    if data[{key!r}] != {value!r}: {wrong}")
    lines += [f"    data[{key!r}]" for key in form.derived]
    lines.append("except KeyError as error: raise missing(error) from None")
    lines.append(f"count = {len(required) + len(form.constants) + len(form.derived)}")
    parts_of = {}
    for each in fields:
        value = places[each.name]
        part = source.part(each.codec, value, each.key)
        if each.default is not None:
            part = [
                f"{value} = data.get({each.key!r}, absent)",
                f"if {value} is absent: {value} = {source.name(each.default, 'default')}()",
                "else:",
                "    count += 1",
                *(f"    {line}" for line in part),
            ]
        parts_of[each.name] = part
    if form.scope is not None:
        lines += [line for name in form.opens for line in parts_of.pop(name)]
        outer = ", ".join(["scope", *(places[name] for name in form.opens)])
        lines.append(f"scope = {source.name(form.scope, 'scope')}({outer})")
    lines += [line for part in parts_of.values() for line in part]
    lines.append("if len(data) != count: check_keys(data)")
    lines.append(f"value = {source.name(kind, 'kind')}({given})")
    if form.check is not None:
        lines.append(f"{source.name(form.check, 'check')}(value)")
    source.lines = [*lines, "return value"]
    return cast(Read, source.compiled("data, scope", kind.__name__))


def row_reader(parts: list[tuple[Codec, str]], made: str, source: FunctionSource) -> Read:
    """Compile the function that reads a JSON list of fixed length.

    Args:
        parts: the codec of each item, and the item's path in error messages.
        made: the Python source of the result, an expression over the items `a0`, `a1` and so on.
        source: the object to which the function's lines are added, with the objects that `made`
            names.
    """
    source.values |= {"expected": expected}
    wrong = f"raise expected('a list of {len(parts)}', data)"
    source.lines = [
        f"if type(data) not in (list, tuple) or len(data) != {len(parts)}: {wrong}",
        f"{', '.join(f'a{n}' for n in range(len(parts)))}, = data",
    ]
    for number, (codec, place) in enumerate(parts):
        source.lines += source.part(codec, f"a{number}", place)
    source.lines.append(f"return {made}")
    return cast(Read, source.compiled("data, scope", "a row"))


def class_writer(form: JsonForm, fields: Sequence[FormField], what: str) -> Write:
    """Compile the function that writes an instance of a dataclass as JSON data.

    The function returns a dictionary with `form.constants`, the fields, and the entries that
    `form.derive` computes. If `form.row` is true, it returns a list of the fields' values instead.
    `what` names the function in tracebacks.
    """
    source = FunctionSource()
    written = {each.name: f"value.{each.name}" for each in fields}
    for each in fields:
        if each.codec.write is not None:
            call = source.name(each.codec.write, "write")
            written[each.name] = f"{call}(value.{each.name})"
    if form.row:
        source.lines = [f"return [{', '.join(written.values())}]"]
        return cast(Write, source.compiled("value", what))
    entries, lines = [f"{key!r}: {value!r}" for key, value in form.constants.items()], []
    for each in fields:
        stated = written[each.name]
        if each.sparse and each.default is not None:
            default = source.name(each.default(), "default")
            lines.append(f"if value.{each.name} != {default}: out[{each.key!r}] = {stated}")
        elif lines:
            lines.append(f"out[{each.key!r}] = {stated}")
        else:
            entries.append(f"{each.key!r}: {stated}")
    if form.derived:
        places = ", ".join(f"out[{key!r}]" for key in form.derived)
        lines.append(f"{places}, = {source.name(form.derive, 'derive')}(value)")
    source.lines = [f"out = {{{', '.join(entries)}}}", *lines, "return out"]
    return cast(Write, source.compiled("value", what))


def opened(data: object) -> Mapping[str, Any]:
    """Check that JSON data are an object, and return them.

    Raises:
        MalformedError: if the data are not an object.
    """
    if not isinstance(data, Mapping):
        raise expected("an object", data)
    return data


def _missing(error: KeyError) -> MalformedError:
    return MalformedError("is missing", str(error.args[0]))


def _check_keys(data: Mapping[str, Any], known: set[str]) -> None:
    for key in data:
        if key not in known:
            raise MalformedError("is not known", shown(key))


def _check_constant(key: str, found: object, value: str) -> None:
    raise within(expected(f"'{value}'", found), key)
