"""Export and import of tuning records between the databases of services.

An export contains the confirmed records, signed with the service's key. An import checks each line
and rejects lines that no trusted key has signed. Later jobs use an imported record if it is the
fastest one for its key.
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
"""Limit of the characters of an imported worker's name. The rest is cut off."""

PORTION = 200
"""Number of lines imported per transaction. On SQLite, a transaction blocks all other writers."""


@dataclass(slots=True)
class Imported:
    """The result of an import: the number of lines of each kind, and the rejected lines.

    Attributes:
        served: the number of new records that are the fastest for their key, so that jobs use them.
        slower: the number of new records that are stored, but slower than an existing record.
        known: the number of records that the database already had, including withdrawn ones.
        refused: for each rejected line, its position, counted from 1, and the reason.
    """

    served: int = 0
    slower: int = 0
    known: int = 0
    refused: list[tuple[int, str]] = field(default_factory=list)

    def __add__(self, later: Imported) -> Imported:
        """Return the combined result of two imports: added counts and joined lists."""
        return Imported(
            self.served + later.served,
            self.slower + later.slower,
            self.known + later.known,
            self.refused + later.refused,
        )

    @property
    def counts(self) -> dict[str, int]:
        """The number of lines that were `served`, `slower`, `known` and `refused`, by name."""
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
    """Yield the confirmed records of a database as signed lines of JSON, newest first.

    Args:
        storage: the database.
        key: the key that signs the lines.
        target_key: only records for this target; None for all targets.
        threads: only records for this number of threads; None for all.
        numerics: only records with these numerics, such as "strict"; None for all.
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
    """Read signed records; yield the number of each line, counted from 1, with its record.

    Blank lines are skipped. For an invalid line, or a line that no trusted key has signed, the
    error is yielded in place of the record.
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
    """Import signed records, in batches of one transaction each.

    If the database fails, the earlier batches remain stored. A second import of the same lines
    changes nothing. A record that was withdrawn in this database stays withdrawn.

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
    """Import one batch of lines in one transaction; return the result for this batch."""
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
    """Return the record of a line with the signer's key as a prefix of the worker's name.

    The prefix distinguishes the worker from workers of this service. A long name is truncated,
    because the name is in an index of the database, whose entries have a limited length.
    """
    measurement = line.record.measurement
    worker = f"{line.signer[:12]}/{measurement.worker[:LONGEST_WORKER]}"
    return replace(line.record, measurement=replace(measurement, worker=worker))


def _trial(record: TuningRecord) -> Trial:
    """Convert an imported record to a trial, so that searches of later jobs can start from it."""
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
