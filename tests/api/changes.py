"""What a change of the public API has to be announced with: an entry of the changelog that names what changed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.api.surface import Item, Surface

ROOT = Path(__file__).parent.parent.parent
PROMISE = ROOT / "docs" / "reference" / "api.json"
"""The API of the last release, which is what hosts and plugins rely on."""


class Change(NamedTuple):
    """A name that is not as it was promised.

    Attributes:
        name: its full name.
        how: what became of it.
        words: what an entry must name: the name's last part, the class that it belongs to, and each parameter
            that came, went or changed.
    """

    name: str
    how: str
    words: frozenset[str]


def changes(promised: Surface, present: Surface) -> Iterator[Change]:
    """Yield each name that has vanished or changed; a class that has vanished is one change, whatever it had."""
    for name, item in promised.items():
        if name in present and present[name] != item:
            yield _changed(name, item, present[name], promised)
        elif name not in present and (_owner(name) not in promised or _owner(name) in present):
            yield Change(name, "has vanished", _words(name, item, promised))


def unannounced(changed: Iterable[Change], entries: Iterable[str]) -> list[Change]:
    """Return the changes that no entry names; all the words of one stand in code in the same entry."""
    named = [_code_words(entry) for entry in entries]
    return [change for change in changed if not any(change.words <= words for words in named)]


def entries(root: Path = ROOT) -> list[str]:
    """Return what the changelog says of the next release, with the fragments that are not in it yet."""
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    [unreleased] = re.findall(r"^## Unreleased.*?(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL) or [""]
    fragments = sorted((root / "newsfragments").glob("*.*.md"))
    return [
        *re.split(r"^- ", unreleased, flags=re.MULTILINE)[1:],
        *(each.read_text("utf-8") for each in fragments),
    ]


def promise(path: Path = PROMISE) -> dict[str, Item]:
    """Return what was promised."""
    written = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: Item(item["is"], None if item.get("takes") is None else tuple(item["takes"]), item.get("gives", ""))
        for name, item in written.items()
    }


def write_promise(present: Surface, path: Path = PROMISE) -> None:
    """Promise what is there now."""
    written = {
        name: {"is": item.sort}
        | ({} if item.takes is None else {"takes": list(item.takes)})
        | ({"gives": item.gives} if item.gives else {})
        for name, item in present.items()
    }
    path.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def _changed(name: str, old: Item, new: Item, promised: Surface) -> Change:
    before, after = ({_parameter(text): text for text in item.takes or ()} for item in (old, new))
    concerned = {each.lower() for each in before.keys() | after.keys() if before.get(each) != after.get(each)}
    return Change(name, f"was {_shown(old)} and is {_shown(new)}", _words(name, old, promised) | concerned - {"*"})


def _shown(item: Item) -> str:
    """Return what is promised of a name in one line."""
    called = "" if item.takes is None else f"({', '.join(item.takes)})"
    return f"{item.sort}{called}" + (f" -> {item.gives}" if called else f" {item.gives}".rstrip())


def _parameter(text: str) -> str:
    [name] = re.findall(r"^\**(\w+)|^\*$", text)
    return name or text


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _words(name: str, item: Item, promised: Surface) -> frozenset[str]:
    owner, _, last = name.lower().rpartition(".")
    of_class = _owner(name) in promised
    return frozenset({last, owner.rpartition(".")[2]} if of_class or item.sort.startswith("is ") else {last})


def _code_words(entry: str) -> frozenset[str]:
    return frozenset(word.lower() for code in re.findall(r"`([^`]+)`", entry) for word in re.findall(r"\w+", code))
