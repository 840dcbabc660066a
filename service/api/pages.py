"""Pagination of lists over HTTP.

`limit` bounds the number of entries of a page. If more entries follow, the response has a `Link`
header with `rel="next"` (RFC 8288), and the header `X-Next-Page-Token` with the page token of that
link. The token is opaque to clients. It contains the position after which the next page begins, and
a digest of the list and its filters. So it is rejected by another list, or with other filters.
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
    """The page of a list that a request asks for, and the link to the next page.

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
        """Return (`limit`, `after`), the arguments of a store's method `list`."""
        return self.limit, self.after

    def linked(self, page: Page[T]) -> Page[T]:
        """Add a link to the next page, if one follows, to the response's headers.

        Return `page` unchanged.
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
        """Return a digest of the list and its filters: path and query without paging."""
        whole = json.dumps([self._request.url.path, self._filters()])
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


def _token(position: Position, name: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([name, *position]).encode()).decode().rstrip("=")


def _position(token: str, name: str) -> Position:
    """Decode a page token, and return the position after which the page begins.

    The values of the position are not checked here; the store that lists the page checks them.

    Args:
        token: the page token.
        name: the digest of the requested list and its filters.

    Raises:
        ApiProblem: 422, if the token is malformed, or belongs to another list or other filters.
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
