"""Draw the picture of the docs from what `--json` has kept: how many times as fast as each peer, on one scale.

Only ratios are drawn: an absolute figure says more of the machine than of who is measured.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from benchmarks.tables import CALLBOARD

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "callboard"  # the same picture from the same figures

from matplotlib import pyplot  # noqa: E402 - after the choice of what draws


class Panel(NamedTuple):
    """One table in the picture.

    Attributes:
        case: the case it is of.
        title: how the table's title begins.
        inverted: whether less is better, so that the ratio is turned over.
    """

    case: str
    title: str
    inverted: bool


PANELS = (
    Panel("drain", "drain, 100 groups, sqlite", False),
    Panel("drain", "drain, 100 groups, postgres", False),
    Panel("enqueue", "enqueue one by one, sqlite", False),
    Panel("enqueue", "enqueue one by one, postgres", False),
    Panel("pickup", "pick-up since the enqueue's return, p50, sqlite", True),
    Panel("pickup", "pick-up since the enqueue's return, p50, postgres", True),
)


def ratios(figures: dict[str, Any], panel: Panel) -> dict[str, float]:
    """Return how many times as good as each other row the subject of a table is."""
    for table in figures.get(panel.case, {}).get("tables", ()):
        if table["title"].startswith(panel.title):
            others = {row: float(ratio) for row, ratio in table["ratios"].items()}
            found = {row: ratio for row, ratio in others.items() if not row.startswith(CALLBOARD)}
            return {row: 1 / ratio if panel.inverted else ratio for row, ratio in found.items() if ratio}
    return {}


def draw(figures: dict[str, Any], file: Path) -> None:
    """Draw a panel for each table that is there."""
    found = [(panel, each) for panel in PANELS if (each := ratios(figures, panel))]
    if not found:
        raise SystemExit("the file has none of the cases drain, enqueue and pickup; run them with --json first")
    rows = (len(found) + 1) // 2
    canvas, grid = pyplot.subplots(rows, 2, figsize=(9, 2.2 * rows), squeeze=False, sharex=True)
    for axes, (panel, each) in zip(grid.flat, found, strict=False):
        names = sorted(each, key=lambda name: each[name])
        bars = axes.barh(names, [each[name] for name in names], color="#4c72b0")
        axes.bar_label(bars, labels=[f" {each[name]:,.3g} ×" for name in names], fontsize=8)
        axes.axvline(1, color="black", linewidth=1)
        axes.set_xscale("log")
        axes.margins(x=0.25)
        axes.set_title(panel.title, fontsize=9)
        axes.tick_params(labelsize=8)
    for axes in list(grid.flat)[len(found) :]:
        axes.set_axis_off()
    canvas.suptitle("How many times as fast as each: callboard, medians of one run (1: the same)", fontsize=10)
    canvas.tight_layout()
    canvas.savefig(file, metadata={"Date": None})


def main() -> None:
    """Read the figures, write the picture."""
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m benchmarks.plot FIGURES.json PICTURE.svg")
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
