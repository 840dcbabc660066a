"""Pagination of lists over HTTP.

`limit` bounds the size of a page. If more entries follow, the answer has a `Link` header with
`rel="next"` (RFC 8288), and its page token again as `X-Next-Page-Token`. The token is opaque to
clients. It contains the position after which the next page begins, and a digest of the list and
its filters. Another list, or the same list with other filters, rejects it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

from fastapi import Depends, Query, Request, Response

from tilewright.db.stores.pages import Page, Position
from tilewright.service.api.errors import ApiProblem

T = TypeVar("T")

NEXT_TOKEN = "X-Next-Page-Token"
MOST = 1000

_OWN = frozenset({"limit", "page_token"})


class Pages:
    """The page of a list that a request asks for.

    Attributes:
        limit: the maximum number of entries.
        after: the position after which the page begins, or None for the first page.
    """

    def __init__(self, request: Request, response: Response, limit: int, token: str | None) -> None:
        self._request = request
        self._response = response
        self.limit = limit
        self.after: Position | None = None if token is None else _position(token, self._list())

    @property
    def wanted(self) -> tuple[int, Position | None]:
        """The pair (`limit`, `after`), for the method `list` of a store."""
        return self.limit, self.after

    def linked(self, page: Page[T]) -> Page[T]:
        """Return the page unchanged.

        If another page follows, add its link to the response's headers.
        """
        if page.next is not None:
            token = _token(page.next, self._list())
            query = urlencode([*self._filters(), ("limit", self.limit), ("page_token", token)])
            self._response.headers["Link"] = f'<{self._request.url.path}?{query}>; rel="next"'
            self._response.headers[NEXT_TOKEN] = token
        return page

    def _filters(self) -> list[tuple[str, str]]:
        given = self._request.query_params.multi_items()
        return sorted((name, value) for name, value in given if name not in _OWN)

    def _list(self) -> str:
        """Return a digest of the list and its filters."""
        whole = json.dumps([self._request.url.path, self._filters()])
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


def _token(position: Position, name: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([name, *position]).encode()).decode().rstrip("=")


def _position(token: str, name: str) -> Position:
    """Return the position in a page token. Raises a 422 problem for an invalid token.

    The store checks the position against its columns.
    """
    try:
        found: Any = json.loads(base64.b64decode(token + "=" * (-len(token) % 4), b"-_", True))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not found or not isinstance(found[0], str):
        raise _wrong("this service did not issue this token")
    if found[0] != name:
        raise _wrong("it belongs to another list, or to other filters")
    return tuple(found[1:])


def _wrong(why: str) -> ApiProblem:
    return ApiProblem(422, "invalid-page-token", f"page_token: {why}")


async def get_pages(
    request: Request,
    response: Response,
    limit: Annotated[int, Query(ge=1, le=MOST, description="Most items in the answer")] = 100,
    page_token: Annotated[
        str | None,
        Query(max_length=4000, description="Of the header `X-Next-Page-Token` of the page before"),
    ] = None,
) -> Pages:
    return Pages(request, response, limit, page_token)


PagesDep = Annotated[Pages, Depends(get_pages)]
