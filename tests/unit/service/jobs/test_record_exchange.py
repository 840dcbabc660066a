"""Records that go from service to service: signed, checked, attributed, never worse than before."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from tests.graphs import Maker
from tests.kernels import as_workload
from tests.unit.service.jobs.test_schedule_reviews import TARGET, model
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.sizes import dynamic_size
from tilewright.compiler.sizes.ranges import parse_range
from tilewright.db.errors import StorageError, StorageKind
from tilewright.db.review_state import ReviewState
from tilewright.db.storage import Storage
from tilewright.db.stores.audit import Action
from tilewright.db.stores.claim_ledger import ClaimLedger
from tilewright.db.types import canonical_json
from tilewright.service.cli import run
from tilewright.service.jobs.knowledge import record_exchange
from tilewright.service.jobs.knowledge.record_exchange import (
    Imported,
    export_records,
    import_records,
)
from tilewright.service.jobs.knowledge.record_lines import (
    LONGEST_LINE,
    RecordLine,
    RecordLineError,
    read_line,
    write_line,
)
from tilewright.service.jobs.plan.planning import ModelRequest, Planned, plan_model
from tilewright.service.settings import Settings
from tilewright.service.signing import SigningKey, signing_key
from tilewright.tuner.protocol.measurement import (
    Measurement,
    RecordKey,
    SizeWeights,
    Status,
    TimesAt,
    TuningRecord,
)


@dataclass
class Site:
    """A service: its database and its key."""

    storage: Storage
    key: SigningKey

    def lines(self) -> list[str]:
        return list(export_records(self.storage, self.key))


@pytest.fixture(scope="module")
def planned() -> Planned:
    return plan_model(ModelRequest(model(), Mode(TARGET)))


@pytest.fixture
def here(storage: Storage, settings: Settings) -> Site:
    return Site(storage, signing_key(settings.signing_key_file))


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Site]:
    storage = Storage.open(f"sqlite:///{tmp_path}/there.db", tmp_path / "blobs")
    yield Site(storage, signing_key(tmp_path / "there.pem"))
    storage.close()


def add(site: Site, planned: Planned, seconds: float, tile: int = 1) -> TuningRecord:
    """A record of the model's only workload."""
    ((workload, _),) = planned.workloads
    site.storage.workloads.put_workloads({workload.key: workload.text()})
    site.storage.workloads.put_target(TARGET.key, TARGET.name, TARGET.to_json())
    measurement = Measurement(
        Status.OK,
        samples_seconds=(seconds, seconds * 1.1),
        object_digest="o" * 64,
        worker="board",
        device={"model": "a CPU", "governor": "performance", "microcode": "0x1"},
        checks=3,
    )
    key = RecordKey(workload.key, TARGET.key, 1, "fast")
    schedule = Schedule.of("direct", tile_n=tile)
    record = TuningRecord(key, schedule, measurement, f"trial {tile}", "4", "0.1")
    site.storage.records.add_record(record)
    return record


def test_a_record_arrives_whole_and_is_served(here: Site, there: Site, planned: Planned) -> None:
    sent = add(there, planned, 1e-3)
    done = import_records(there.lines(), here.storage, {there.key.public})
    assert (done.served, done.slower, done.known, done.refused) == (1, 0, 0, [])
    found = here.storage.records.best_record(sent.key)
    assert found is not None
    name = f"{there.key.public[:12]}/board"
    assert found == replace(sent, measurement=replace(sent.measurement, worker=name))
    (trial,) = here.storage.records.trials(sent.key)
    assert trial.origin == "imported" and trial.schedule == sent.schedule
    ((workload, _),) = planned.workloads
    assert here.storage.workloads.workload(sent.key.workload_key) == workload.text()
    assert here.storage.workloads.target(sent.key.target_key)[0] == TARGET.name


def test_importing_again_changes_nothing(here: Site, there: Site, planned: Planned) -> None:
    add(there, planned, 1e-3)
    lines = [*there.lines(), "", *there.lines()]
    first = import_records(lines, here.storage, {there.key.public})
    again = import_records(lines, here.storage, {there.key.public})
    assert (first.served, first.known) == (1, 1) and (again.served, again.known) == (0, 2)
    assert len(here.storage.ledger.list()) == 1


def test_lines_are_taken_in_by_portions_each_whole_or_not_at_all(
    here: Site, there: Site, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so are the notes on them."""
    monkeypatch.setattr(record_exchange, "PORTION", 2)
    for tile in range(5):
        add(there, planned, 1e-3 / (1 + tile), tile)
    lines = list(reversed(stored(there)))
    noted: list[int] = []
    adopt, adopted = ClaimLedger.adopt, 0

    def failing(ledger: ClaimLedger, *arguments: Any) -> Any:
        nonlocal adopted
        adopted += 1
        if adopted == 2:
            raise StorageError("the disk is full", StorageKind.FULL)
        return adopt(ledger, *arguments)

    def note(done: Imported) -> None:
        noted.append(sum(done.counts.values()))
        here.storage.audit.add(Action.RECORDS_IMPORTED, "lines", actor="", actor_name="", origin="")

    monkeypatch.setattr(ClaimLedger, "adopt", failing)
    with pytest.raises(StorageError):
        import_records(lines, here.storage, {there.key.public}, note)
    (sent,) = {record.record.key for record in there.storage.ledger.list()}
    assert (len(here.storage.ledger.list()), len(here.storage.records.trials(sent))) == (2, 2)
    assert noted == [2] and len(here.storage.audit.list()) == 1
    done = import_records([*lines, "no record"], here.storage, {there.key.public}, note)
    assert (done.served, done.known, len(done.refused)) == (3, 2, 1)
    assert noted == [2, 2, 2, 2] and len(here.storage.ledger.list()) == 5
    assert import_records([], here.storage, set(), note) == Imported()
    assert noted[-1] == 0, "that somebody came with nothing is noted, too"


def test_a_portion_takes_as_many_statements_as_a_line(
    here: Site, there: Site, planned: Planned
) -> None:
    """No other process writes meanwhile."""
    own = add(here, planned, 1e-3)
    for tile in range(12):
        add(there, planned, 2e-3 / (1 + tile), tile)
    lines = list(reversed(stored(there)))

    def statements(some: list[str]) -> int:
        asked: list[str] = []
        note = lambda _c, _cu, statement, *_: asked.append(statement)  # noqa: E731
        sa.event.listen(here.storage.engine, "before_cursor_execute", note)
        try:
            import_records(some, here.storage, {there.key.public})
        finally:
            sa.event.remove(here.storage.engine, "before_cursor_execute", note)
        return len(asked)

    assert statements(lines[2:3]) == statements([*lines[3:], lines[3]])
    found = here.storage.ledger.list()
    assert [one.record.run_seconds for one in found[:9]] == [2e-3 / n for n in range(12, 3, -1)]
    assert [one.state for one in found] == [ReviewState.CONFIRMED, *[ReviewState.SUPERSEDED] * 10]
    best = here.storage.records.best_record(own.key)
    assert best is not None and best.run_seconds == 2e-3 / 12


def stored(site: Site) -> list[str]:
    """Lines of all records, as if each were served."""
    lines = []
    for one in site.storage.ledger.list():
        text = site.storage.workloads.workload(one.record.key.workload_key)
        line = RecordLine(one.record, text, TARGET, one.confirmation, one.stored_at)
        lines.append(write_line(line, site.key))
    return lines


def test_a_faster_record_stays(here: Site, there: Site, planned: Planned) -> None:
    own = add(here, planned, 1e-3)
    slower, faster = add(there, planned, 2e-3, tile=2), None
    assert import_records(there.lines(), here.storage, {there.key.public}).slower == 1
    assert here.storage.records.best_record(own.key) == own
    faster = add(there, planned, 5e-4, tile=3)
    assert import_records(there.lines(), here.storage, {there.key.public}).served == 1
    best = here.storage.records.best_record(slower.key)
    assert best is not None and best.schedule == faster.schedule


def test_what_was_withdrawn_here_does_not_come_back(
    here: Site, there: Site, planned: Planned
) -> None:
    sent = add(there, planned, 1e-3)
    import_records(there.lines(), here.storage, {there.key.public})
    (stored,) = here.storage.ledger.list()
    here.storage.ledger.withdraw("it lies", record_ids=[stored.id])
    assert import_records(there.lines(), here.storage, {there.key.public}).known == 1
    assert here.storage.records.best_record(sent.key) is None


def test_strangers_are_refused_by_line(here: Site, there: Site, planned: Planned) -> None:
    add(there, planned, 1e-3)
    done = import_records(["", *there.lines()], here.storage, {here.key.public})
    ((number, reason),) = done.refused
    assert number == 2 and there.key.public in reason and "is not trusted here" in reason
    assert here.storage.ledger.list() == []


def changed(line: str, key: SigningKey | None, change: Callable[[dict[str, Any]], None]) -> str:
    """A line with another content, signed anew if there is a key."""
    data = json.loads(line)
    change(data["record"])
    if key is not None:
        data["signer"] = key.public
        data["signature"] = key.sign(canonical_json(data["record"]).encode())
    return json.dumps(data)


def set_to(value: Any, *path: Any) -> Callable[[dict[str, Any]], None]:
    def change(record: dict[str, Any]) -> None:
        place: Any = record
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value

    return change


def test_a_changed_line_is_noticed(there: Site, planned: Planned) -> None:
    add(there, planned, 1e-3)
    (line,) = there.lines()
    faster = changed(line, None, set_to([1e-9, 1e-9], "measurement", "samples_seconds"))
    with pytest.raises(RecordLineError, match="it does not match the signature of"):
        read_line(faster)
    assert read_line(line).record.run_seconds == 1e-3


@pytest.mark.parametrize(
    "change",
    [
        set_to([-1.0], "measurement", "samples_seconds"),
        set_to([0.0], "measurement", "samples_seconds"),
        set_to(["NaN"], "measurement", "samples_seconds"),
        set_to(["Infinity"], "measurement", "samples_seconds"),
        set_to([], "measurement", "samples_seconds"),
        set_to(0, "measurement", "checks"),
        set_to("crash", "measurement", "status"),
        set_to("no status", "measurement", "status"),
        set_to(None, "measurement"),
        set_to("workload\nnonsense", "workload"),
        set_to({}, "workload"),
        set_to({"name": "x"}, "target"),
        set_to(0, "threads"),
        set_to(True, "threads"),
        set_to(10**30, "threads"),
        set_to("quick", "numerics"),
        set_to([], "schedule"),
        set_to("x" * 300, "trial_id"),
        set_to(7, "codegen_version"),
        set_to({}, "stored_at"),
        set_to(2, "format"),
        set_to({"status": "no"}, "confirmation"),
        lambda record: record.pop("compiler_version"),
    ],
)
def test_a_trusted_signer_may_be_wrong_too(
    here: Site, there: Site, planned: Planned, change: Callable[[dict[str, Any]], None]
) -> None:
    add(there, planned, 1e-3)
    (line,) = there.lines()
    bad = changed(line, there.key, change)
    done = import_records([bad, line], here.storage, {there.key.public})
    assert [number for number, _ in done.refused] == [1] and done.served == 1


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "null", '{"record": 1}', '{"record": {}}', "[" * 100_000, "é" * (LONGEST_LINE + 1)],
    ids=["half", "list", "null", "number", "unsigned", "deep", "long"],
)
def test_what_is_no_record_is_refused(here: Site, line: str) -> None:
    done = import_records([line], here.storage, {here.key.public})
    assert [number for number, _ in done.refused] == [1]


def test_over_http(
    client: TestClient, here: Site, there: Site, planned: Planned, settings: Settings
) -> None:
    own = add(here, planned, 1e-3)
    assert client.get("/v1/signing-key").json() == {"public_key": here.key.public}
    exported = client.get("/v1/records:export")
    assert exported.headers["content-type"].startswith("application/x-ndjson")
    assert exported.text.splitlines() == here.lines()
    assert client.get("/v1/records:export", params={"threads": 2}).text == ""

    back = client.post("/v1/records:import", content=exported.content)
    assert back.json() == {"served": 0, "slower": 0, "known": 1, "refused": []}
    add(there, planned, 1e-4, tile=2)
    strange = client.post("/v1/records:import", content="\n".join(there.lines()))
    assert strange.json()["refused"][0]["line"] == 1
    refused, known = client.get("/v1/audit", params={"action": "records.imported"}).json()
    assert (refused["detail"]["refused"], known["detail"]["known"]) == (1, 1)

    (listed,) = client.get("/v1/records").json()
    assert listed["state"] == "confirmed" and listed["worker"] == "board"
    assert listed["record"]["workload_key"] == own.key.workload_key
    assert client.get(f"/v1/records/{listed['id']}").json() == listed
    assert client.get("/v1/records", params={"state": "disputed"}).json() == []
    assert client.get("/v1/records/nothing").status_code == 404

    taken = client.post("/v1/records:withdraw", json={"reason": "hot", "workers": ["board"]})
    (entry,) = client.get("/v1/audit", params={"action": "records.withdrawn"}).json()
    assert (entry["subject"], entry["detail"]["reason"]) == ("board", "hot")
    assert taken.json()["records"] == [listed["id"]]
    assert here.storage.records.best_record(own.key) is None
    begins = {"reason": "cold", "records": [listed["id"][:8]]}
    assert client.post("/v1/records:withdraw", json=begins).status_code == 200
    entries = client.get("/v1/audit", params={"action": "records.withdrawn"}).json()
    assert entries[0]["subject"] == listed["id"], "the whole id, of which the beginning was given"
    for body in ({"reason": "x"}, {"reason": "", "workers": ["board"]}):
        assert client.post("/v1/records:withdraw", json=body).status_code == 422
    absent = client.post("/v1/records:withdraw", json={"reason": "x", "workers": ["nobody"]})
    assert absent.status_code == 404


def test_on_the_command_line(
    here: Site, there: Site, planned: Planned, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = add(here, planned, 1e-3)
    file, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    assert run(["record", "export", "--json"]) == 1, "--json is about the file"
    assert run(["record", "export", "-o", str(file)]) == 0
    assert file.read_text().splitlines() == here.lines()
    assert run(["record", "verify", str(file)]) == 0
    assert "1 of 1 records hold" in capsys.readouterr().out
    assert run(["record", "key"]) == 0
    assert capsys.readouterr().out.strip() == here.key.public

    add(there, planned, 1e-4, tile=2)
    theirs.write_text("\n".join(there.lines()) + "\n")
    assert run(["record", "import", str(theirs)]) == 1
    told = capsys.readouterr()
    assert "theirs.jsonl:1: " in told.err and "1 were refused" in told.out
    assert run(["record", "verify", str(theirs)]) == 1
    assert f"{theirs}:1: " in capsys.readouterr().err
    assert run(["record", "verify", str(theirs), "--trust", "nonsense"]) == 1
    assert "'nonsense' is not a public key" in capsys.readouterr().err
    assert run(["record", "import", str(theirs), "--trust", there.key.public]) == 0
    best = here.storage.records.best_record(own.key)
    assert best is not None and best.run_seconds == 1e-4

    assert run(["record", "list"]) == 0
    listed = capsys.readouterr().out
    assert "confirmed" in listed and "superseded" in listed and "one-worker" not in listed
    assert run(["record", "list", "--worker", f"{there.key.public[:12]}/board"]) == 0
    of_theirs = capsys.readouterr().out
    assert "confirmed" in of_theirs and "superseded" not in of_theirs
    alone = replace(best, trial_id="of one worker")
    here.storage.ledger.propose(alone, "job")
    (waiting,) = here.storage.ledger.provisional("job")
    here.storage.ledger.confirm(waiting.id, best.measurement.to_json(), best.measurement.worker)
    assert run(["record", "list"]) == 0
    assert "one-worker" in capsys.readouterr().out
    here.storage.ledger.withdraw("a test's", record_ids=[here.storage.ledger.list()[0].id])
    assert run(["record", "list", "--state", "bad"]) == 1
    assert run(["record", "withdraw"]) == 1
    assert run(["record", "withdraw", "--worker", f"{there.key.public[:12]}/board"]) == 0
    assert "1 earlier records are served again" in capsys.readouterr().out
    assert here.storage.records.best_record(own.key) == own
    assert here.storage.ledger.list(state=ReviewState.WITHDRAWN)
    withdrawn, taken, refused = here.storage.audit.list()
    assert {entry.actor for entry in (withdrawn, taken, refused)} == {""}
    assert (withdrawn.action, withdrawn.actor_name) == (
        "records.withdrawn",
        "tilewright record withdraw",
    )
    assert withdrawn.subject == f"{there.key.public[:12]}/board"
    assert withdrawn.detail["records"] and withdrawn.detail["trials"] == 1
    for entry, counts in ((taken, (1, 0)), (refused, (0, 1))):
        assert (entry.action, entry.subject) == ("records.imported", theirs.name)
        served, refusals = counts
        expected = {"served": served, "slower": 0, "known": 0, "refused": refusals}
        assert entry.detail == expected


def line_of_a_range(
    site: Site, distribution: SizeWeights, trial: str = "t", seconds: float = 1e-6
) -> str:
    make = Maker()
    rows = dynamic_size(parse_range("s0", "1..64"))
    workload = as_workload(make.graph(make("relu", make.input("x", rows, 8))))
    at_sizes = tuple(TimesAt(sizes, weight, (seconds,)) for sizes, weight in distribution)
    total = sum(weight for _, weight in distribution) * seconds or seconds
    measured = Measurement(Status.OK, samples_seconds=(total,), checks=99, at_sizes=at_sizes)
    key = RecordKey(workload.key, TARGET.key, 1, "fast")
    record = TuningRecord(key, Schedule.of("map", unroll=4), measured, trial, "4", "0.1")
    return write_line(RecordLine(record, workload.text(), TARGET, None, 1.7e9), site.key)


def test_records_of_ranges_travel_with_their_times_at_each_size(here: Site) -> None:
    distribution = (((("s0", 7),), 2.0), ((("s0", 60),), 0.5))
    found = read_line(line_of_a_range(here, distribution)).record.measurement
    assert found.distribution == distribution and found.run_seconds == pytest.approx(2.5e-6)
    for wrong in ((), (((("s0", 65),), 1.0),), (((("s1", 7),), 1.0),), (((("s0", 7),), -1.0),)):
        with pytest.raises(RecordLineError):
            read_line(line_of_a_range(here, wrong))


def test_a_record_at_smaller_sizes_is_not_the_faster_one(here: Site, there: Site) -> None:
    """Its times are of other work."""
    trusted = {there.key.public}
    first = line_of_a_range(there, (((("s0", 60),), 2.0),))
    small = line_of_a_range(there, (((("s0", 1),), 0.1),), "u")
    same = line_of_a_range(there, (((("s0", 60),), 2.0),), "v", 5e-7)
    for line, served in ((first, 1), (small, 0), (same, 1)):
        assert import_records([line], here.storage, trusted).served == served
    (best,) = here.storage.ledger.list(state=ReviewState.CONFIRMED)
    assert best.record.trial_id == "v"
