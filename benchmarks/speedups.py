"""Generate the README's bar chart from a stored race report: `python -m benchmarks.speedups`.

For each model it shows the speed-up over the other engines: their time divided by that of the
untuned program, all measured alternately in one run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.report import read_data

RESULTS = Path(__file__).parent / "results"
PICTURE = Path(__file__).parents[1] / "docs" / "speedups.svg"
RACE = "race-1-thread"
OURS = "untuned"
PEERS = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
COLOURS = {"onnxruntime": "#2f6fdf", "openvino": "#e08b2c"}


def speedups(race: Path) -> dict[str, dict[str, float]]:
    """Speed-ups by model and engine from a report of `benchmarks.race`, in descending order."""
    ratios: dict[str, dict[str, float]] = {}
    for row in read_data(race)["rows"]:
        if not row["error"]:
            ratios.setdefault(row["model"], {})[row["engine"]] = row["ratio"]
    found = {
        model: {peer: of[peer] / of[OURS] for peer in PEERS if peer in of}
        for model, of in ratios.items()
    }
    return dict(sorted(found.items(), key=lambda each: -max(each[1].values())))


def label(speedup: float) -> str:
    """Label of a bar, such as `1.47x`."""
    return f"{speedup:.2f}x"


def draw(found: dict[str, dict[str, float]], picture: Path) -> None:
    """Draw an SVG bar chart with a bar per model and engine; texts are stored as text."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    height = 0.4
    style = {"svg.fonttype": "none", "svg.hashsalt": RACE, "font.size": 9}
    with mpl.rc_context(style):
        figure = Figure(figsize=(9, 0.36 * len(found) + 0.9), layout="constrained")
        axes = figure.subplots()
        for position, peer in enumerate(PEERS):
            rows = [(n, of[peer]) for n, of in enumerate(found.values()) if peer in of]
            bars = axes.barh(
                [n + (position - 0.5) * height for n, _ in rows],
                [speedup for _, speedup in rows],
                height,
                color=COLOURS[peer],
                label=f"over {PEERS[peer]}",
            )
            axes.bar_label(bars, [label(speedup) for _, speedup in rows], padding=2, fontsize=7)
        axes.axvline(1.0, color="#444444", linewidth=1)
        axes.set_yticks(range(len(found)), list(found))
        axes.invert_yaxis()
        axes.set_xlabel("speed-up: the other engine's time divided by ours; one thread, batch 1")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="lower right", frameon=False)
        figure.savefig(picture, metadata={"Date": None})


def main() -> int:
    """Command line: generate docs/speedups.svg from the stored report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, default=PICTURE)
    draw(speedups(RESULTS / f"{RACE}.json.gz"), parser.parse_args().output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
