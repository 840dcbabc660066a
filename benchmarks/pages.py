"""Measure how long each dashboard page and each list of the API takes on a large database.

`python -m benchmarks.pages` fills a database with a million trials, serves it, and requests every
page and every list several times, one request at a time. The routes are enumerated from the
application; a route whose path parameter has no known value is reported as not requested. `first`
is the time of the first request after the service started. A page that takes longer than `GOAL` is
marked.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from fastapi.routing import APIRoute

from benchmarks.pages_database import Known, Size, fill
from benchmarks.report import Origin, markdown_table, write_result
from benchmarks.service_load_server import serve_service, serving
from tilewright.service.api.app import route_modules
from tilewright.service.dashboard.app import PATH, ROUTERS
from tilewright.service.dashboard.session import COOKIE

GOAL = 0.2
"""Maximum time of a page in seconds."""

START_SECONDS = 60.0
LATE = 20
"""Number of the page of a list that is timed in addition to the first page."""

NOT_ASKED = {
    "/v1/jobs/{job_id}/events": "a stream, which ends with its job",
    "/dashboard/jobs/{job_id}/events": "a stream, which ends with its job",
    "/v1/jobs/{job_id}/artifact": "a file, which no job here has",
    "/dashboard/jobs/{job_id}/artifact": "a file, which no job here has",
    "/v1/blobs/{digest}": "a file",
    "/dashboard/records/export": "a file with all records",
    "/v1/records:export": "a file with all records",
}

QUERIES: Mapping[str, Sequence[str]] = {
    "/dashboard/jobs": ("", "state=failed", "state=paused"),
    "/dashboard/jobs/{job_id}": ("", "rows=1000"),
    "/dashboard/compare": ("", "a={job_id}&b={small_job}"),
    "/dashboard/devices": ("", "gone=true"),
    "/dashboard/records": ("", "named=conv", "named=nothing", "target=x86-64-v3", "state=disputed"),
    "/v1/jobs": ("", "state=paused", "limit=1000"),
    "/v1/tasks": ("", "job={job_id}", "workload={workload}", "status=failed"),
    "/v1/trials": (
        "job={job_id}",
        "job={job_id}&limit=1000",
        "job={job_id}&workload={workload}",
        "job={job_id}&workload={workload}&limit=1000",
        "job={job_id}&status=cancelled",
        "job={job_id}&origin=nobody",
        "job={job_id}&worker=nobody",
        "job={small_job}&workload={workload}",
        "workload={workload}",
        "workload={workload}&target=x86-64-v2",
        "workload={workload}&status=cancelled",
        "workload={workload}&worker=nobody",
    ),
    "/v1/records": (
        "",
        "limit=1000",
        "named=nothing",
        "named=conv",
        "state=disputed",
        "worker=nobody",
        "threads=7",
        "target=x86-64-v3&state=superseded",
    ),
    "/v1/schedules": ("workload={tuned_workload}&target=x86-64-v3",),
    "/v1/schedules:explain": (
        "workload={tuned_workload}&target=x86-64-v3",
        "workload={workload}&target=x86-64-v3",
        "workload={unknown_workload}&target=x86-64-v3",
    ),
    "/v1/workers": ("", "alive=true"),
    "/v1/audit": ("", "limit=1000"),
}
"""Query strings to request, by route."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Times of requests for a page or list on one database, in seconds: first, median and worst."""

    database: str
    place: str
    status: int
    bytes: int
    first: float
    median: float
    worst: float

    @property
    def late(self) -> bool:
        return self.worst > GOAL


def routes() -> Iterator[str]:
    """Yield the path templates that GET serves: dashboard pages, and API lists and items."""
    found = [(PATH, route) for router in ROUTERS for route in router.routes]
    found += [("/v1", route) for module in route_modules() for route in module.routes]
    for prefix, route in found:
        if isinstance(route, APIRoute) and "GET" in (route.methods or ()):
            yield prefix + route.path


def places(known: Known) -> tuple[list[str], dict[str, str]]:
    """The URL paths to request, and the routes that are not requested with the reason for each.

    `known` has the identifiers that replace path parameters, such as a job's id.
    """
    values = {**asdict(known), "number": "0", "key": known.workload, "digest": known.model}
    asked: list[str] = []
    left = dict(NOT_ASKED)
    for path in routes():
        if path in NOT_ASKED:
            continue
        missing = [name for name in re.findall(r"{(\w+)}", path) if name not in values]
        if missing:
            left[path] = f"no {', '.join(missing)} is known here"
            continue
        for query in QUERIES.get(path, ("",)):
            asked.append((path + (f"?{query}" if query else "")).format(**values))
    return asked, left


class Browser:
    """A signed-in HTTP client that sends one request after the other over a single connection."""

    def __init__(self, port: int, secret: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._headers = {
            "Cookie": f"{COOKIE}={secret}",
            "Authorization": f"Bearer {secret}",
            "Accept": "text/html",
        }

    def get(self, place: str) -> tuple[float, int, bytes, str]:
        """Request a page; returns (seconds, status, body, URL of the list's next page or "")."""
        began = time.perf_counter()
        self._connection.request("GET", place, headers=self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        seconds = time.perf_counter() - began
        link = ""
        if found := re.search(r"<(.+?)>", answer.getheader("Link", "")):
            link = found[1]
        elif answer.getheader("Content-Type", "").startswith("text/html"):
            found = re.search(r'<a href="(\?[^"]*page_token=[^"]*)" rel="next"', body.decode())
            if found:
                link = place.partition("?")[0] + found[1].replace("&amp;", "&")
        return seconds, answer.status, body, link

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        self._connection.close()


def until_ready(browser: Browser) -> None:
    """Wait until the service is ready. Raises TimeoutError after 60 s."""
    ends = time.monotonic() + START_SECONDS
    while browser_status(browser) != 200:
        if time.monotonic() > ends:
            raise TimeoutError("the service does not answer")
        time.sleep(0.1)


def browser_status(browser: Browser) -> int:
    """HTTP status of /readyz; 0 if the service does not respond."""
    try:
        return browser.get("/readyz")[1]
    except OSError:
        browser.close()
        return 0


def timed(browser: Browser, database: str, place: str, rounds: int) -> Iterator[Timed]:
    """Time a page of the dashboard or API, and yield the times.

    If the page shows a list of at least LATE pages, page number LATE of the list is timed, too.
    `rounds` is the number of repeated requests.
    """
    link = yield from _timed(browser, database, place, place, rounds)
    for _ in range(LATE - 1):
        if not link:
            return
        late = link
        link = browser.get(late)[3]
    yield from _timed(browser, database, late, f"{place} (page {LATE})", rounds)


def _timed(
    browser: Browser, database: str, place: str, name: str, rounds: int
) -> Generator[Timed, None, str]:
    first, status, body, link = browser.get(place)
    times = [browser.get(place)[0] for _ in range(rounds)]
    yield Timed(database, name, status, len(body), first, median(times), max(times))
    return link


@contextmanager
def filled(database: str, kept: Path | None, size: Size) -> Iterator[tuple[str, Path, Known]]:
    """Context with a filled database: its URL, its folder, and identifiers of its contents.

    A database in the folder `kept` is filled only once, and remains there.
    """
    with tempfile.TemporaryDirectory(prefix="pages-") as own:
        folder = Path(own) if kept is None else kept
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            url = f"sqlite:///{folder}/tilewright.db"
            if database == "postgresql":
                from benchmarks.postgres import Postgres

                data = folder / "postgres"
                url = stack.enter_context(Postgres(data, keep=kept is not None)).url
            notes = folder / f"{database}.json"
            if notes.exists():
                yield url, folder, Known(**json.loads(notes.read_text()))
                return
            known = fill(url, folder, size)
            notes.write_text(json.dumps(asdict(known)))
            yield url, folder, known


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command-line options of the page benchmark."""
    size = Size()
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in asdict(size).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgresql"])
    parser.add_argument("--only", default="", help="a regular expression of what is asked")
    parser.add_argument("--folder", type=Path, help="kept, and not filled again if it is there")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/pages"))
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: measure and write the report.

    The exit code is 1 if a page is too slow or has an error status.
    """
    asked = options(arguments)
    size = Size(**{name: getattr(asked, name) for name in asdict(Size())})
    results: list[Timed] = []
    seconds: dict[str, float] = {}
    left: Mapping[str, str] = {}
    for database in asked.databases:
        began = time.monotonic()
        with filled(database, asked.folder, size) as (url, folder, known):
            seconds[database] = time.monotonic() - began
            print(f"{database}: filled in {seconds[database]:.0f} s", flush=True)
            wanted, left = places(known)
            with serving(serve_service, url, str(folder)) as port:
                browser = Browser(port, known.token)
                until_ready(browser)
                for place in wanted:
                    if re.search(asked.only, place):
                        for each in timed(browser, database, place, asked.rounds):
                            results.append(each)
                            print(*row(each), flush=True)
    origin = Origin.of(asked)
    data = {"filled_seconds": seconds, "results": [asdict(each) for each in results]}
    write_result(asked.output, origin, data, report(origin, size, seconds, results, left))
    return int(any(each.late or each.status >= 400 for each in results))


HEADER = ["database", "asked", "median ms", "worst ms", "first ms", "KB", ""]


def row(result: Timed) -> list[str]:
    """The cells of a result's row in the table, in the order of HEADER."""
    shown = re.sub(r"[0-9a-f]{32,}", lambda found: found[0][:6] + "...", result.place)
    times = (result.median, result.worst, result.first)
    refused = "" if result.status < 400 else str(result.status)
    marks = " ".join(filter(None, ("late" if result.late else "", refused)))
    numbers = [*(f"{each * 1e3:.1f}" for each in times), f"{result.bytes / 1e3:.0f}"]
    return [result.database, shown.replace("|", "\\|"), *numbers, marks]


def report(
    origin: Origin,
    size: Size,
    seconds: Mapping[str, float],
    results: Sequence[Timed],
    left: Mapping[str, str],
) -> str:
    """The benchmark's report in Markdown, with a row per request.

    `seconds` has the time to fill each database, and `left` the routes that were not requested.
    """
    numbers = ", ".join(f"{value:,} {name}" for name, value in asdict(size).items())
    fills = ", ".join(f"{name} in {each:.0f} s" for name, each in seconds.items())
    late = sum(each.late for each in results)
    return (
        f"# Pages on a large database\n\n{origin.sentence()}\n\n"
        f"{numbers}; filled {fills}. One request at a time over loopback, from a client on the\n"
        "same machine; `worst` and `median` of those after the `first`. The largest job has a\n"
        f"tenth of the trials. {late} of {len(results)} took longer than {GOAL * 1e3:.0f} ms once"
        " in the rounds.\n\n"
        f"{markdown_table(HEADER, [row(each) for each in results], text=2)}\n\n"
        "Not asked: " + "; ".join(f"`{path}` ({why})" for path, why in left.items()) + ".\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
