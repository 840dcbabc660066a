"""Parsing and validation of HTML forms that browsers submit."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from tilewright.service.api.errors import ApiProblem, invalid

B = TypeVar("B", bound=BaseModel)

MOST_FIELDS = 20

FIELDS_TYPE, FILES_TYPE = b"application/x-www-form-urlencoded", b"multipart/form-data"
"""The content types of forms without and with files."""


async def form_fields(request: Request) -> dict[str, list[str]]:
    """Return the non-empty fields of a form: for each name, a list of values.

    Raises:
        ApiProblem: 422, if the form is malformed or contains files.
    """
    _check_type(request, FIELDS_TYPE)
    fields: dict[str, list[str]] = defaultdict(list)
    try:
        async with request.form(max_files=0, max_fields=MOST_FIELDS) as form:
            for name, value in form.multi_items():
                if isinstance(value, str) and value:
                    fields[name].append(value)
    except HTTPException as error:
        if error.status_code != 400:  # too large, or too slow
            raise
        raise invalid(
            "the form has files or too many fields: reload the page and send it again"
        ) from None
    except ValueError:
        raise _malformed() from None
    return dict(fields)


async def form_file(request: Request, name: str) -> bytes:
    """Return the contents of the file in a form's field, or b"" if the user selected no file.

    Raises:
        ApiProblem: 422, if the form is malformed or lacks the field.
    """
    _check_type(request, FILES_TYPE)
    try:
        async with request.form(max_files=1, max_fields=MOST_FIELDS) as form:
            file = form.get(name)
            if isinstance(file, UploadFile):
                return await file.read()
    except HTTPException as error:
        if error.status_code != 400:  # too large, or too slow
            raise
    except ValueError:
        raise _malformed() from None
    raise _no_file(name)


def checked_body(body: type[B], **fields: Any) -> B:
    """Return an instance of the REST request class `body` with the values of a form.

    Raises:
        ApiProblem: 422, which names the first invalid field.
    """
    try:
        return body.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise invalid(f"{where}: {first['msg']}") from None


def _check_type(request: Request, right: bytes) -> None:
    """Check that a form has the content type `right` and the charset UTF-8.

    Starlette would decode the fields in any charset that the request names. That is unsafe: the
    time of Python's punycode decoder grows with the square of the length, and it would block the
    event loop. Other decoders raise unexpected exceptions.

    Raises:
        ApiProblem: 422, if the content type or the charset differs.
    """
    # Starlette parses the header with the same function, and so finds the same charset.
    content_type, parameters = parse_options_header(request.headers.get("Content-Type"))
    if content_type not in (b"", right):  # without a content type, the form is empty
        raise invalid(f"the form's content type is not {right.decode()}")
    if parameters.get(b"charset", b"utf-8").lower() != b"utf-8":
        raise invalid("the form's charset is not utf-8")


def _malformed() -> ApiProblem:
    return invalid("the form is malformed")


def _no_file(name: str) -> ApiProblem:
    return invalid(f"the form has no file '{name}'")
