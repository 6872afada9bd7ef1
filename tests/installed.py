"""Have Python find a distribution as if pip had installed it, without the time that takes."""

from __future__ import annotations

from pathlib import Path


def describe(site: Path, name: str, version: str = "1.0", **entry_points: str) -> None:
    """Write what pip writes of a distribution; its modules are the caller's.

    Args:
        site: a folder on Python's path.
        name: the distribution's name.
        version: its version.
        entry_points: the lines of each group, with `_` for `.` in the group's name.
    """
    information = site / f"{name.replace('-', '_')}-{version}.dist-info"
    information.mkdir(parents=True, exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (information / "METADATA").write_text(metadata, encoding="utf-8")
    groups = [f"[{group.replace('_', '.')}]\n{lines}\n" for group, lines in entry_points.items()]
    (information / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")
