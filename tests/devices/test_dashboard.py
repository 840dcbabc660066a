"""The dashboard in a browser: signing in, a job whose curve grows, cancelling it, nothing from
elsewhere; and whether each page is for everybody, light and dark.

Chromium is Debian's, without its own sandbox, as it is run by root here. The tests read a page's
state from attributes: the policy of the pages forbids evaluating the expressions that a wait would
need.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_kill import small_model
from tests.devices.conftest import Service
from tests.devices.everybody import DESK, all_wrong, axe, findings
from tests.devices.packages import UnavailableError
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.target import known_targets
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Status, TuningRecord

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
OPTIONS += ("--disable-background-networking", "--disable-component-update", "--disable-sync")

PATIENCE = 120_000.0
"""Milliseconds that the page may take for a step, on a machine with other load."""

MANY = 100_000
"""More trials than any job completes before it is cancelled; the model has enough schedules."""

pytestmark = [
    pytest.mark.devices,
    pytest.mark.timeout(600),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium"),
]


@pytest.fixture
def worker(plain_service: Service, tmp_path: Path) -> Iterator[None]:
    """One on this machine."""
    command = [sys.executable, "-m", "tilewright.service.worker", "--name", "here", "--server"]
    command += [plain_service.url, "--token-file", str(tmp_path / "service/data/token")]
    command += ["--spool", str(tmp_path / "spool")]
    with (tmp_path / "worker.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    yield
    process.terminate()
    process.wait()


@pytest.fixture(scope="session")
def rules() -> Path:
    """The script that judges pages, fetched before anything is started."""
    try:
        return axe()
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def page(rules: Path, plain_service: Service) -> Iterator[playwright.Page]:
    """A page that logs no errors and contacts only the service; checked at the end."""
    troubles: list[str] = []

    def asked(request: playwright.Request) -> None:
        if not request.url.startswith(f"{plain_service.url}/"):
            troubles.append(f"asked {request.url}")

    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        context = browser.new_context(viewport=DESK)
        context.add_init_script(path=rules)
        shown = context.new_page()
        shown.set_default_timeout(PATIENCE)
        shown.on("request", asked)
        shown.on("pageerror", lambda error: troubles.append(str(error)))
        shown.on(
            "console",
            lambda said: troubles.append(said.text) if said.type in ("error", "warning") else None,
        )
        yield shown
        browser.close()
    assert not troubles


def test_a_job_is_followed_and_cancelled(
    plain_service: Service, worker: None, page: playwright.Page, tmp_path: Path
) -> None:
    model = tmp_path / "small.onnx"
    small_model(model)
    submit = ["job", "submit", str(model), "--trials", str(MANY), "--stop-gain", "0", "--detach"]
    (job,) = re.findall(r"^job (\w+)$", plain_service.run(*submit), re.MULTILINE)

    page.goto(plain_service.url)
    assert all_wrong(page) == []
    page.get_by_label("Token").fill(plain_service.token)
    page.keyboard.press("Enter")
    page.get_by_role("link", name="small.onnx").click()

    curve, trials = page.locator("#over-trials-plot"), page.locator("#trials")
    known = re.compile(r"^[1-9]\d*$")
    expect = playwright.expect
    expect(curve).to_have_attribute("data-until", known, timeout=PATIENCE)
    drawn, done = curve.get_attribute("data-until"), trials.get_attribute("data-trials")
    assert drawn is not None and done is not None
    # without being loaded again: by the stream, and by the part that the page then fetches
    expect(curve).not_to_have_attribute("data-until", drawn, timeout=PATIENCE)
    expect(trials).not_to_have_attribute("data-trials", done, timeout=PATIENCE)
    assert int(curve.get_attribute("data-until") or 0) > int(drawn)
    expect(curve.locator("canvas")).to_be_visible()
    page.get_by_label("over time").check()
    expect(page.locator("#over-seconds .u-legend")).to_contain_text("time, s")

    page.get_by_role("button", name="Cancel").click()
    assert findings(page) == []
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(page.locator("h1 .state")).to_have_text("cancelled", timeout=PATIENCE)
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)
    with plain_service.client() as client:
        assert client.job(job).state == "cancelled"

    for name in ("Devices", "Records", "Jobs"):
        page.get_by_role("navigation", name="Pages").get_by_role("link", name=name).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
    for place in places(plain_service, job):
        page.goto(f"{plain_service.url}/dashboard/{place}")
        if "/tasks/" in place:  # its code arrives automatically, out of a process that is limited
            page.get_by_text("Assembly").first.click()
            expect(page.get_by_label(re.compile("^Assembly, "))).to_contain_text("ret")
        assert all_wrong(page) == [], place
        if "graph" in place:
            texts_of_what_is_seen(page)
    page.get_by_label("Name").fill("another")
    page.get_by_role("button", name="Make").click()
    expect(page.locator("#secret")).to_be_visible()
    assert all_wrong(page) == []
    change_records_and_devices(page, plain_service)
    missing = page.context.new_page()  # whose console reports the missing page
    missing.goto(f"{plain_service.url}/dashboard/jobs/none")
    assert all_wrong(missing) == []
    missing.close()

    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    page.goto(f"{plain_service.url}/dashboard/jobs/{job}")
    expect(page.get_by_label("Token")).to_be_visible()


def texts_of_what_is_seen(page: playwright.Page) -> None:
    """Texts outside the frame of a graph are left out until they are scrolled into it."""
    drawing = page.locator("#drawing[data-ready]")
    for _ in range(5):
        page.get_by_role("button", name="Larger").click()
    expect = playwright.expect
    expect(drawing.locator(".away")).not_to_have_count(0)
    expect(drawing.locator(".away text").first).to_be_hidden()
    page.get_by_role("button", name="All", exact=True).click()
    expect(drawing.locator(".away")).to_have_count(0)
    expect(drawing.locator("text").first).to_be_visible()


def change_records_and_devices(page: playwright.Page, service: Service) -> None:
    """A record goes out and in and is taken back, and a device gets its QR code."""
    page.goto(f"{service.url}/dashboard/records")
    with page.expect_download() as coming:
        page.get_by_role("link", name="Export").click()
    page.get_by_label("Signed records").set_input_files(coming.value.path())
    page.get_by_role("button", name="Import").click()
    known = page.locator(".tiles div", has_text="Here before").locator("dd")
    playwright.expect(known).to_have_text("1")
    assert all_wrong(page) == []
    page.get_by_role("navigation", name="Place").get_by_role("link", name="Records").click()
    page.locator("tbody th a").last.click()
    page.get_by_label("Why").fill("a bad device")
    page.get_by_role("button", name="Withdraw").click()
    title = page.get_by_role("heading", level=1)
    playwright.expect(title).to_have_text("Withdrawn: a bad device")
    assert all_wrong(page) == []
    page.goto(f"{service.url}/dashboard/devices")
    page.get_by_label("Name").fill("phone")
    page.get_by_role("button", name="QR code").click()
    playwright.expect(page.get_by_role("img", name="QR code")).to_be_visible()
    assert all_wrong(page) == []


def places(service: Service, job: str) -> list[str]:
    """Every page, with something on it; the list of tokens is the last."""
    described = known_targets()["x86-64-v3"]
    target = described.key
    storage = service.storage()
    try:
        storage.workloads.put_target(target, described.name, described.to_json())
        task = storage.tasks.list(job, limit=1)[0].workload_key
        found = Measurement(Status.OK, samples_seconds=(1e-5, 1.1e-5), checks=3)
        schedule = Schedule.of("direct", tile_m=4, tile_n=16)
        storage.records.add_record(TuningRecord(RecordKey(task, target), schedule, found))
        (record,) = storage.ledger.list(workload_key=task, limit=1)
        for score in (0.6, 0.7):
            storage.cost_models.add(
                target,
                b"trees",
                feature_version=1,
                objective="rank",
                rows=9,
                tasks=2,
                trials=9,
                scores={"rank": score, "top 1": 0.2},
                chance={"rank": 0.5},
            )
    finally:
        storage.close()
    of_job = ("", "/graph?wait=true", f"/tasks/{task}")
    return [
        "jobs",
        *(f"jobs/{job}{place}" for place in of_job),
        f"compare?a={job}&b={job}",
        "devices",
        "records",
        f"records/{record.id}",
        "cost-models",
        "tokens",
    ]
