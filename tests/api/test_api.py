"""The public API is a promise: it is listed as it is, and what it no longer keeps is in the changelog."""

from __future__ import annotations

from importlib import import_module
from importlib.resources import files
from pathlib import Path

import pytest
from tests.api.changes import Change, changes, entries, promise, unannounced, write_promise
from tests.api.page import PAGE, page
from tests.api.surface import Item, public_modules, surface

AGAIN = "write the reference anew: tox -e api"


def test_the_reference_lists_every_public_name_as_it_is() -> None:
    assert page(surface()) == PAGE.read_text(encoding="utf-8"), AGAIN


def test_what_is_not_as_it_was_promised_is_in_the_changelog() -> None:
    silent = unannounced(changes(promise(), surface()), entries())
    told = "\n".join(
        f"{each.name} {each.how}; name in an entry: {', '.join(sorted(each.words))}" for each in silent
    )
    assert silent == [], f"CHANGELOG.md or a fragment in newsfragments/ has to name what changed:\n{told}"


@pytest.mark.parametrize("name", public_modules())
def test_a_public_module_says_which_names_are_public(name: str) -> None:
    module = import_module(name)

    assert module.__all__
    assert [each for each in module.__all__ if each.startswith("_")] == []
    assert module.__doc__


@pytest.mark.parametrize("package", ["callboard", "callboard_mls", "callboard_rine"])
def test_a_distribution_says_that_it_is_typed(package: str) -> None:
    pytest.importorskip(package)
    assert (files(package) / "py.typed").is_file()


SEND = Item("method", ("text: str", "*", "to: str | None = None"), "bool")
PROMISED = {
    "acme.Mailer": Item("class", ("host: str",)),
    "acme.Mailer.send": SEND,
    "acme.post": Item("function", ()),
}


@pytest.mark.parametrize(
    ("now", "name", "words"),
    [
        ({"acme.post": None}, "acme.post", {"post"}),
        ({"acme.Mailer.send": None}, "acme.Mailer.send", {"mailer", "send"}),
        ({"acme.Mailer": None, "acme.Mailer.send": None}, "acme.Mailer", {"mailer"}),
        ({"acme.post": Item("async function", ())}, "acme.post", {"post"}),
        ({"acme.Mailer": Item("class", ("host: str", "port: int = 25"))}, "acme.Mailer", {"mailer", "port"}),
        (
            {"acme.Mailer.send": SEND._replace(takes=("text: bytes", "*", "whom: str"))},
            "acme.Mailer.send",
            {"mailer", "send", "text", "to", "whom"},
        ),
        (
            {"acme.Mailer.send": SEND._replace(takes=("*", "to: str | None = None", "text: str"))},
            "acme.Mailer.send",
            {"mailer", "send"},
        ),
    ],
)
def test_what_vanishes_or_changes_has_to_be_named(now: dict[str, Item | None], name: str, words: set[str]) -> None:
    present = {each: item for each, item in {**PROMISED, **now}.items() if item is not None}

    [change] = changes(PROMISED, present)

    assert change.name == name
    assert set(change.words) == words


def test_what_is_new_need_not_be() -> None:
    assert list(changes(PROMISED, {**PROMISED, "acme.Mailer.close": SEND})) == []


@pytest.mark.parametrize(
    ("said", "enough"),
    [
        (["`Mailer.send(to=...)` is gone."], True),
        (["`mailer.send()` takes no `to` any more."], True),
        (["`Mailer.send` is quicker.", "The option `to` is gone."], False),
        (["Mailer.send takes no to."], False),
        ([], False),
    ],
)
def test_one_entry_names_all_of_a_change_in_code(said: list[str], enough: bool) -> None:
    change = Change("acme.Mailer.send", "has changed", frozenset({"mailer", "send", "to"}))

    assert (unannounced([change], said) == []) is enough


def test_entries_are_those_of_the_next_release_and_the_fragments(tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n- x\n\n## Unreleased\n\n- `one`\n  goes on.\n- `two`\n\n## 0.1\n\n- `old`\n", "utf-8"
    )
    (tmp_path / "newsfragments").mkdir()
    (tmp_path / "newsfragments" / "12.removal.md").write_text("`three`\n", "utf-8")
    (tmp_path / "newsfragments" / "README.md").write_text("`four`\n", "utf-8")

    assert [each.split()[0] for each in entries(tmp_path)] == ["`one`", "`two`", "`three`"]


def test_a_promise_is_read_as_it_was_written(tmp_path: Path) -> None:
    present = surface()

    write_promise(present, tmp_path / "api.json")

    assert promise(tmp_path / "api.json") == present
