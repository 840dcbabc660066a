"""What browsers send with forms."""

from __future__ import annotations

import re
from typing import Any, TypeVar
from urllib.parse import parse_qs

from fastapi import Request
from pydantic import BaseModel, ValidationError

from tilewright.service.api.errors import ApiProblem, invalid

B = TypeVar("B", bound=BaseModel)

_BOUNDARY = re.compile(r'multipart/form-data;.*?\bboundary="?([^";,]{1,70})"?', re.IGNORECASE)

LONGEST_HEAD = 4096
"""Bytes of what stands before a file: its name, its type."""


async def form_fields(request: Request) -> dict[str, list[str]]:
    """The fields of a form without files. Raises a 422 problem."""
    try:
        return parse_qs((await request.body()).decode("utf-8"), max_num_fields=20)
    except ValueError:
        raise invalid("the form has fields that it should not have") from None


async def form_file(request: Request, name: str) -> bytes:
    """The file that a field of a form has; empty if nobody chose one.

    Raises:
        ApiProblem: 422 if there is no such field.
    """
    found = _BOUNDARY.match(request.headers.get("content-type", ""))
    if found is None:
        raise _no_file(name)
    border = b"\r\n--" + found[1].encode("latin-1", "replace")
    body = b"\r\n" + await request.body()
    wanted = f'; name="{name}"'.encode()
    start = body.find(border)
    while start >= 0 and not body.startswith(b"--", start + len(border)):
        start += len(border)
        end = body.find(border, start)
        if end < 0:  # cut off on the way
            break
        head = body.find(b"\r\n\r\n", start, min(end, start + LONGEST_HEAD))
        if head >= 0 and wanted in body[start:head]:
            return body[head + 4 : end]
        start = end
    raise _no_file(name)


def checked_body(body: type[B], **fields: Any) -> B:
    """What a form asks for, as REST would be asked. Raises a 422 problem that names the first field
    that is wrong."""
    try:
        return body.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise invalid(f"{where}: {first['msg']}") from None


def _no_file(name: str) -> ApiProblem:
    return invalid(f"the form has no file '{name}'")
