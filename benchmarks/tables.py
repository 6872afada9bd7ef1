"""The figures: rows of measurements, of which one is the subject, and the others what it is compared with.

Machines are noisy, so no figure stands alone: a table compares medians, and shows how far the figures spread. A
missed target is printed and is no failure, since a slow machine is none.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CALLBOARD = "callboard"


@dataclass(frozen=True, slots=True)
class Target:
    """What a ratio or a median should be.

    Attributes:
        due: what is to be reached.
        after: what is hoped for.
        at_least: whether more is better.
    """

    due: float
    after: float | None
    at_least: bool

    def is_met(self, value: float) -> bool:
        """Return whether a value reaches what is due."""
        return value >= self.due if self.at_least else value <= self.due

    def verdict(self, value: float) -> str:
        """Say it in words."""
        wish = "" if self.after is None else f", after {self.after:,g}"
        word = "met" if self.is_met(value) else "MISSED"
        return f"{word}: at {'least' if self.at_least else 'most'} {self.due:,g}{wish}"


@dataclass
class Table:
    """Figures of one thing that was measured, by who or what was measured.

    Attributes:
        title: what was measured.
        unit: in what.
        subject: the row whose ratios to the others are shown.
        figures: by row, in the order in which they were measured.
        unable: by row, why it has no figures.
    """

    title: str
    unit: str
    subject: str = CALLBOARD
    figures: dict[str, list[float]] = field(default_factory=dict)
    unable: dict[str, str] = field(default_factory=dict)
    _of_ratios: dict[str, Target] = field(default_factory=dict)
    _of_medians: dict[str, Target] = field(default_factory=dict)

    def add(self, row: str, figure: float) -> None:
        """Add a figure."""
        self.figures.setdefault(row, []).append(figure)

    def leave_out(self, row: str, why: str) -> None:
        """Show "-" for a row."""
        self.unable[row] = why

    def ratio_at_least(self, row: str, due: float, after: float | None = None) -> None:
        """State what the subject's ratio to a row should not fall below."""
        self._of_ratios[row] = Target(due, after, at_least=True)

    def ratio_at_most(self, row: str, due: float, after: float | None = None) -> None:
        """State what the subject's ratio to a row should not exceed."""
        self._of_ratios[row] = Target(due, after, at_least=False)

    def median_at_least(self, row: str, due: float, after: float | None = None) -> None:
        """State what a row's median should not fall below."""
        self._of_medians[row] = Target(due, after, at_least=True)

    def median_at_most(self, row: str, due: float, after: float | None = None) -> None:
        """State what a row's median should not exceed."""
        self._of_medians[row] = Target(due, after, at_least=False)

    def median(self, row: str) -> float:
        """Return the median of a row."""
        return statistics.median(self.figures[row])

    def best(self, rows: Sequence[str]) -> str | None:
        """Return which of these rows has the least median, of those that have one."""
        return min((row for row in rows if row in self.figures), key=self.median, default=None)

    def ratio(self, row: str) -> float | None:
        """Return the ratio of the subject's median to a row's, if both are there and the row's is not 0."""
        if row == self.subject or row not in self.figures or self.subject not in self.figures:
            return None
        median = self.median(row)
        return self.median(self.subject) / median if median else None

    def ratios(self) -> dict[str, float]:
        """Return all ratios of the subject to the other rows."""
        found = {row: self.ratio(row) for row in self.figures}
        return {row: ratio for row, ratio in found.items() if ratio is not None}

    def verdicts(self) -> dict[str, str]:
        """Return which targets were met, by row; those of rows without figures are left out."""
        found = {row: target.verdict(ratio) for row, target, ratio in self._ratio_targets()}
        for row, target in self._of_medians.items():
            if row in self.figures:
                found[row] = target.verdict(self.median(row))
        return found

    def _ratio_targets(self) -> list[tuple[str, Target, float]]:
        ratios = self.ratios()
        return [(row, target, ratios[row]) for row, target in self._of_ratios.items() if row in ratios]

    def lines(self) -> list[str]:
        """Return the table as text."""
        verdicts = self.verdicts()
        lines = [f"{self.title}, {self.unit}"]
        for row in [*self.figures, *self.unable]:
            if row not in self.figures:
                lines.append(f"  {row:<44} {'-':>13}  {self.unable[row]}")
                continue
            values, ratio = self.figures[row], self.ratio(row)
            spread = f"({min(values):,.6g} to {max(values):,.6g}, n={len(values)})"
            against = "" if ratio is None else f"ratio {ratio:,.3g}"
            line = f"  {row:<44} {self.median(row):>13,.6g}  {spread:<32} {against:<12} {verdicts.get(row, '')}"
            lines.append(line.rstrip())
        return lines

    def as_json(self) -> Mapping[str, Any]:
        """Return everything, the raw figures included."""
        return {
            "title": self.title,
            "unit": self.unit,
            "subject": self.subject,
            "figures": self.figures,
            "unable": self.unable,
            "medians": {row: self.median(row) for row in self.figures},
            "ratios": self.ratios(),
            "targets": self.verdicts(),
        }
