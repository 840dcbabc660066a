"""Export and import of tuning records between databases.

An export contains the served records, signed with the service's key. An import accepts lines that a
trusted key signed, and checks them. An imported record is served if no faster one is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from tilewright.compiler.targets.target import Target
from tilewright.db.review_state import ReviewState
from tilewright.db.storage import Storage
from tilewright.db.stores.pages import Position
from tilewright.service.jobs.knowledge.record_lines import (
    RecordLine,
    RecordLineError,
    read_line,
    write_line,
)
from tilewright.service.signing import SigningKey
from tilewright.tuner.protocol.measurement import Phase, Trial, TuningRecord

PAGE = 500

LONGEST_WORKER = 200
"""Characters of the name of a foreign worker that are kept."""

PORTION = 200
"""Lines imported per transaction: on SQLite, a transaction blocks all other writers."""


@dataclass(slots=True)
class Imported:
    """The result of an import: the numbers of lines, and the rejected lines.

    Attributes:
        served: new records that are the fastest known; they are served.
        slower: new records that are stored, but a faster one is served.
        known: records that were imported or measured before, including withdrawn ones.
        refused: the number of each rejected line, from 1, with a reason.
    """

    served: int = 0
    slower: int = 0
    known: int = 0
    refused: list[tuple[int, str]] = field(default_factory=list)

    def __add__(self, later: Imported) -> Imported:
        """Return the sum of two imports."""
        return Imported(
            self.served + later.served,
            self.slower + later.slower,
            self.known + later.known,
            self.refused + later.refused,
        )

    @property
    def counts(self) -> dict[str, int]:
        """The number of lines for each of the four results, by name."""
        return {
            "served": self.served,
            "slower": self.slower,
            "known": self.known,
            "refused": len(self.refused),
        }


def export_records(
    storage: Storage,
    key: SigningKey,
    *,
    target_key: str | None = None,
    threads: int | None = None,
    numerics: str | None = None,
) -> Iterator[str]:
    """Yield the served records as signed lines, the newest first.

    Args:
        storage: the database.
        key: the key that signs the lines.
        target_key: only records for this target; None for all targets.
        threads: only records for this number of threads.
        numerics: only records with these numerics.
    """
    targets: dict[str, Target] = {}
    after: Position | None = None
    while True:
        page = storage.ledger.list(
            target_key=target_key,
            threads=threads,
            numerics=numerics,
            state=ReviewState.CONFIRMED,
            limit=PAGE,
            after=after,
        )
        for stored in page:
            name = stored.record.key.target_key
            if name not in targets:
                targets[name] = Target.from_json(storage.workloads.target(name)[1])
            text = storage.workloads.workload(stored.record.key.workload_key)
            line = RecordLine(
                stored.record, text, targets[name], stored.confirmation, stored.stored_at
            )
            yield write_line(line, key)
        after = page.next
        if after is None:
            return


def checked_lines(
    lines: Iterable[str], trusted: Collection[str]
) -> Iterator[tuple[int, RecordLine | RecordLineError]]:
    """Yield the number of each line that is not blank, from 1, with its record.

    An invalid line, or a line signed by an untrusted key, yields the error instead.
    """
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = read_line(text)
            if line.signer not in trusted:
                raise RecordLineError(f"'{line.signer}' signed it, but is not trusted here")
        except RecordLineError as error:
            yield number, error
        else:
            yield number, line


def import_records(
    lines: Iterable[str],
    storage: Storage,
    trusted: Collection[str],
    note: Callable[[Imported], None] = lambda done: None,
) -> Imported:
    """Import signed records in batches of one transaction each.

    If the database fails, the earlier batches are stored. A second import of the same lines changes
    nothing. A record that was withdrawn in this database stays withdrawn.

    Args:
        lines: lines from `export_records`.
        storage: the database that receives the records.
        trusted: the public keys whose signatures are accepted.
        note: called with the counts of each batch, within its transaction.

    Raises:
        DatabaseError: if the database fails.
    """
    checked = checked_lines(lines, trusted)
    done = Imported()
    while True:
        portion = list(islice(checked, PORTION))
        if portion or done == Imported():
            done += _take_in(portion, storage, note)
        if len(portion) < PORTION:
            return done


def _take_in(
    portion: Sequence[tuple[int, RecordLine | RecordLineError]],
    storage: Storage,
    note: Callable[[Imported], None],
) -> Imported:
    """Import one batch of lines in one transaction; return their counts."""
    refused = [(number, str(line)) for number, line in portion if isinstance(line, RecordLineError)]
    good = [line for _, line in portion if isinstance(line, RecordLine)]
    both = [(_foreign(line), line) for line in good]
    texts = {record.key.workload_key: line.workload for record, line in both}
    targets = {record.key.target_key: line.target for record, line in both}
    with storage.ledger.adopting():
        storage.workloads.put_workloads(texts)
        for key, target in sorted(targets.items()):
            storage.workloads.put_target(key, target.name, target.to_json())
        storage.records.add_trials([_trial(record) for record, _ in both])
        new = [(record, line.confirmation) for record, line in both]
        states = Counter(storage.ledger.adopt(new))
        served, known = states[ReviewState.CONFIRMED], states[None]
        done = Imported(served, len(good) - served - known, known, refused)
        note(done)
    return done


def _foreign(line: RecordLine) -> TuningRecord:
    """Return the record with the signer's key prepended to the worker's name.

    The prefix distinguishes the worker from workers of this service. A long name is truncated,
    because it is part of an index.
    """
    measurement = line.record.measurement
    worker = f"{line.signer[:12]}/{measurement.worker[:LONGEST_WORKER]}"
    return replace(line.record, measurement=replace(measurement, worker=worker))


def _trial(record: TuningRecord) -> Trial:
    """Convert a record to a trial, from which the search of a later job starts."""
    return Trial(
        record.trial_id,
        record.key,
        record.schedule,
        record.measurement,
        Phase.FINAL,
        "",
        record.codegen_version,
        "imported",
    )
