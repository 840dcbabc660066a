"""The pages of devices and records, whatever workers and other services wrote there."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from tests.unit.db.test_records import CRASH, GOOD, trial
from tests.unit.service.jobs.test_record_exchange import TARGET, Site, add, model
from tests.unit.service.pages import HOSTILE, ORIGIN, opened, sign_in
from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.errors import StorageError, StorageKind
from tilewright.db.storage import Storage
from tilewright.db.stores.shapes import ShapeStore
from tilewright.db.stores.tokens import Scope
from tilewright.db.stores.workers import Health, Quarantine, RegisteredWorker, WorkerStore
from tilewright.service.jobs.plan.planning import ModelRequest, plan_model
from tilewright.service.settings import Settings
from tilewright.service.signing import signing_key
from tilewright.tuner.protocol.measurement import Status


@pytest.fixture
def browser(anonymous: TestClient, owner: str) -> TestClient:
    """A client that is signed in."""
    assert sign_in(anonymous, owner).status_code == 303
    return anonymous


def worker(storage: Storage, name: str = "rack-3") -> RegisteredWorker:
    key = resolve_target("x86-64-v3").key
    return storage.workers.register(name, [key], {"model": HOSTILE})


def test_without_devices_the_page_says_how_to_add_one(browser: TestClient) -> None:
    text = opened(browser, "/dashboard/devices").text
    assert "No device is connected" in text
    assert "tilewright-worker --server http://testserver --token-file token" in text
    assert "tilewright device link" in text


def test_what_workers_say_of_themselves_stays_text(browser: TestClient, storage: Storage) -> None:
    found = worker(storage, HOSTILE)
    speed = {"arithmetic_seconds": 1.0, "memory_seconds": 1.0, "arithmetic_ratio": 1.5,
             "memory_ratio": 1e300, "disturbed": True, "throttled": True}  # fmt: skip
    condition = {"temperature_celsius": 61.0, "load": 3.2, "clock_ratio": 0.85, "governor": HOSTILE}
    storage.workers.heartbeat(found.id, speed=speed, condition=condition)
    text = opened(browser, "/dashboard/devices").text
    assert text.count(HOSTILE) >= 3, "its name, its model and its governor"
    for said in ("x86-64-v3", "61 °C", "clock 85 %", "0.67x", "throttled", "0 s ago"):
        assert said in text, said


def test_a_worker_is_drained_and_used_again_by_who_may(
    browser: TestClient, storage: Storage
) -> None:
    found = worker(storage)
    for change, button in (("drain", "Use again"), ("use", "Drain")):
        answer = browser.post(f"/dashboard/devices/{found.id}/{change}", headers=ORIGIN)
        assert answer.url.path == "/dashboard/devices" and f">{button}<" in answer.text
        assert storage.workers.get(found.id).draining is (change == "drain")
    assert [entry.actor_name for entry in storage.audit.list()] == ["owner", "owner"]
    assert browser.post("/dashboard/devices/none/drain", headers=ORIGIN).status_code == 404
    secret, _ = storage.tokens.create("reader", [Scope.READ])
    sign_in(browser, secret)
    assert "Drain" not in opened(browser, "/dashboard/devices").text.replace("drained", "")
    answer = browser.post(f"/dashboard/devices/{found.id}/drain", headers=ORIGIN)
    assert answer.status_code == 403


def test_failed_trials_are_told_by_kind(browser: TestClient, storage: Storage) -> None:
    ill = worker(storage, "ill")
    bad = [trial(number, replace(CRASH, worker=ill.id)) for number in range(2)]
    wrong = replace(CRASH, worker=ill.id, status=Status.WRONG_ANSWER)
    good = [trial(10 + number, replace(GOOD, worker=ill.id)) for number in range(1200)]
    storage.records.add_trials([*bad, trial(5, wrong), *good])
    text = opened(browser, "/dashboard/devices").text
    assert "3 of 1,203" in text and "2 crash, 1 wrong answer" in text


def test_a_quarantine_is_told_and_ended(
    browser: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = worker(storage)
    ill = Quarantine(HOSTILE, 1.0, float("1e300"))
    listed = WorkerStore.list

    def with_quarantine(self: WorkerStore, **more: object) -> object:
        page = listed(self, **more)  # type: ignore[arg-type]
        page[:] = [replace(each, quarantine=ill, health=Health.QUARANTINED) for each in page]
        return page

    monkeypatch.setattr(WorkerStore, "list", with_quarantine)
    text = opened(browser, "/dashboard/devices").text
    assert f"{HOSTILE} tries again at -" in text and "Release" in text
    answer = browser.post(f"/dashboard/devices/{found.id}/use", headers=ORIGIN)
    assert answer.status_code == 200


def test_who_said_good_bye_is_shown_when_asked_for(browser: TestClient, storage: Storage) -> None:
    storage.workers.leave(worker(storage, "departed").id)
    text = opened(browser, "/dashboard/devices").text
    assert "1 left:" in text and "departed" not in text
    assert "departed" in opened(browser, "/dashboard/devices?gone=true").text


def test_a_page_of_workers_that_left_says_what_it_is_and_stays(
    browser: TestClient, storage: Storage
) -> None:
    storage.workers.leave(worker(storage, "departed").id)
    worker(storage, "measuring")
    first = opened(browser, "/dashboard/devices?limit=1")
    assert "No device is connected" not in first.text and "All workers on this page" in first.text
    (later,) = (str(a["href"]) for a in first.named("a") if a.get("rel") == "next")
    second = opened(browser, f"/dashboard/devices{later}")
    (again,) = (str(a["hx-get"]) for _, a in second.found if "hx-get" in a)
    assert "measuring" in opened(browser, again).text, "not the first page in place of this one"


def test_records_are_shown_beside_a_full_disk(
    browser: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise StorageError("no space is left", StorageKind.FULL)

    monkeypatch.setattr(ShapeStore, "index", full)
    assert "No records yet" in opened(browser, "/dashboard/records").text


def test_without_records_the_page_says_so(browser: TestClient) -> None:
    assert "No records yet" in opened(browser, "/dashboard/records").text
    assert "No record matches" in opened(browser, "/dashboard/records?named=conv").text
    assert browser.get("/dashboard/records/none").status_code == 404
    assert browser.get(f"/dashboard/records?named={'x' * 201}").status_code == 422


def test_records_are_covered_searched_and_shown(
    browser: TestClient, storage: Storage, settings: Settings
) -> None:
    record = add(Site(storage, signing_key(settings.signing_key_file)),
                 plan_model(ModelRequest(model(), Mode(TARGET))), 1e-3)  # fmt: skip
    storage.workloads.put_workloads({"0" * 64: HOSTILE})
    seen = opened(browser, "/dashboard/records")
    (stored,) = storage.ledger.list()
    assert f"{TARGET.name}, 1 thread" in seen.text and "1,000.0" in seen.text
    (covered,) = storage.shapes.coverage()
    assert (covered.workloads, covered.target_key) == (1, TARGET.key) and covered.operator
    found = opened(browser, f"/dashboard/records?named={covered.operator}&target={TARGET.name}")
    links = [str(link["href"]) for link in found.named("a")]
    assert f"/dashboard/records/{quote(stored.id)}" in links
    assert f"/dashboard/records?named={covered.operator}" in links
    shouted = opened(browser, f"/dashboard/records?named={covered.operator.upper()}")
    assert f"/dashboard/records/{quote(stored.id)}" in {a.get("href") for a in shouted.named("a")}
    for wrong in ("named=100%25", "named=nothing", "state=withdrawn", "target=cortex-a72"):
        assert "No record matches" in opened(browser, f"/dashboard/records?{wrong}").text
    one = opened(browser, f"/dashboard/records/{stored.id}")
    assert record.key.workload_key in one.text and "tile_n=1" in one.text
    assert "a CPU" in one.text, "its certificate says on what"
    matched = browser.get(f"/dashboard/records/{stored.id}", headers={"If-None-Match": "*"})
    assert matched.status_code == 200


def test_a_withdrawn_record_says_why(
    browser: TestClient, storage: Storage, settings: Settings
) -> None:
    add(Site(storage, signing_key(settings.signing_key_file)),
        plan_model(ModelRequest(model(), Mode(TARGET))), 1e-3)  # fmt: skip
    (stored,) = storage.ledger.list()
    storage.ledger.withdraw(HOSTILE, record_ids=[stored.id])
    seen = opened(browser, f"/dashboard/records/{stored.id}")
    assert HOSTILE in seen.text and "This record is not served" in seen.text
    listed = opened(browser, "/dashboard/records?state=withdrawn").text
    assert "withdrawn" in listed and "Coverage" not in listed
