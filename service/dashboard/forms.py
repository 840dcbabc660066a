"""Reading of submitted forms."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from tilewright.service.api.errors import ApiProblem, invalid

B = TypeVar("B", bound=BaseModel)

MOST_FIELDS = 20


async def form_fields(request: Request) -> dict[str, list[str]]:
    """Return the filled fields of a form without files. Raises a 422 problem."""
    fields: dict[str, list[str]] = defaultdict(list)
    try:
        async with request.form(max_files=0, max_fields=MOST_FIELDS) as form:
            for name, value in form.multi_items():
                if isinstance(value, str) and value:
                    fields[name].append(value)
    except HTTPException as error:
        if error.status_code != 400:  # too large, or too slow
            raise
        raise invalid("the form has fields that it should not have") from None
    return dict(fields)


async def form_file(request: Request, name: str) -> bytes:
    """Return the file of a form's field, or b"" if the user chose no file.

    Raises:
        ApiProblem: 422, if the form lacks the field.
    """
    try:
        async with request.form(max_files=1, max_fields=MOST_FIELDS) as form:
            file = form.get(name)
            if isinstance(file, UploadFile):
                return await file.read()
    except HTTPException as error:
        if error.status_code != 400:  # too large, or too slow
            raise
    raise _no_file(name)


def checked_body(body: type[B], **fields: Any) -> B:
    """Return the REST body with the values of a form.

    Raises:
        ApiProblem: 422, which names the first invalid field.
    """
    try:
        return body.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise invalid(f"{where}: {first['msg']}") from None


def _no_file(name: str) -> ApiProblem:
    return invalid(f"the form has no file '{name}'")
