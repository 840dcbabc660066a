"""Count elements of quantised models that are rounded differently from the ONNX reference: `python
-m benchmarks.rounding`.

It generates many random graphs of each kind as in the differential tests, and compares their
outputs with the ONNX reference. The reference evaluates float32 operations in another order, so a
value close to a rounding tie may become the next quantum. No element may differ by more than one
quantum, and sums of integers must be equal.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin, markdown_table, rows_json, write_data
from tests.differential.reference import evaluator
from tests.differential.test_quantised import KINDS, drawn
from tilewright.compiler.api import compile_model


@dataclass(frozen=True, slots=True)
class Rounded:
    """Counts over all random models of one kind, such as "qdq_conv".

    `elements` is the number of output elements. Of these, `apart` differ from the reference. The
    largest difference is `most` quantisation steps.
    """

    kind: str
    models: int
    elements: int
    apart: int
    most: int

    @property
    def share(self) -> float:
        return self.apart / self.elements if self.elements else 0.0


def count(kind: str, draws: int) -> Rounded:
    """Compare `draws` random quantised models of one kind with the ONNX reference.

    A kind is a type of subgraph, such as "qdq_conv". Returns how many elements of the outputs
    differ.
    """
    elements = apart = most = 0
    for number in range(draws):
        model = drawn(kind, number)
        proto = model.proto()
        (expected,) = evaluator(proto).run(None, model.feeds)
        (found,) = compile_model(proto, keep=False).run(model.feeds)
        off = np.abs(found.astype(np.int64) - expected.astype(np.int64))
        elements += off.size
        apart += int((off > 0).sum())
        most = max(most, int(off.max(initial=0)))
    return Rounded(kind, draws, elements, apart, most)


def report(rows: Sequence[Rounded], origin: Origin) -> str:
    """The benchmark's report in Markdown, with a row per kind."""
    table = markdown_table(
        ["graphs", "models", "elements", "another quantum", "share", "most quanta"],
        [
            [
                row.kind,
                f"{row.models}",
                f"{row.elements:,}",
                f"{row.apart:,}",
                f"{100 * row.share:.4f} %",
                f"{row.most}",
            ]
            for row in rows
        ],
        text=1,
    )
    return (
        f"# Ties of quantised graphs\n\n{origin.sentence()}\n\n"
        "Outputs of the drawn graphs of tests/differential/test_quantised.py beside "
        "onnx.reference: elements that became another quantum.\n\n" + table + "\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Count ties that fall the other way.")
    parser.add_argument("--draws", type=int, default=100, help="models of each kind")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--name", default="rounding", help="of the two files")
    parser.add_argument("--results", type=Path, default=RESULTS_FOLDER, help="folder for them")
    options = parser.parse_args(arguments)
    origin = Origin.of(options)
    rows = []
    for kind in options.kinds:
        rows.append(count(kind, options.draws))
        print(f"{kind}: {rows[-1].apart} of {rows[-1].elements} elements", flush=True)
    options.results.mkdir(parents=True, exist_ok=True)
    file = options.results / options.name
    file.with_suffix(".md").write_text(report(rows, origin), encoding="utf-8")
    write_data(
        file.with_suffix(".json.gz"),
        rows_json(asdict(origin), [{**asdict(row), "share": row.share} for row in rows]),
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
