"""`callboard pins`: what is pinned stays pinned, and what would orphan rows is refused with one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engine.acting import Plugin, receipts, threads
from tests.engine.test_cli.invoking import callboard, printed

from callboard._databaseless import brought_by

RECEIPT, THREAD = "acme.receipts.SendReceipt", "acme.receipts.ReceiptThread"
HANDLER = receipts(lambda message, ctx: None)
FILE = Path("pins/acme.json")

Installed = Callable[..., None]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Installed:
    """Have a plugin `acme` installed that brings these kinds."""
    monkeypatch.chdir(tmp_path)

    def make(*kinds: Any, **hooks: Any) -> None:
        plugin = Plugin(*kinds, **hooks)
        monkeypatch.setattr("callboard.cli._pins.brought_by", lambda name: brought_by(plugin))

    make(HANDLER)
    return make


def edit(change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the file as another build would have written it."""
    document = json.loads(FILE.read_text(encoding="utf-8"))
    change(document["pins"])
    FILE.write_text(json.dumps(document), encoding="utf-8")


def fails(*arguments: str) -> str:
    result = callboard("pins", *arguments)
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert result.output.count("\n") == 1  # both streams; of one alone not every click tells
    return result.output


def test_what_was_written_holds() -> None:
    assert printed("pins", "write", "acme", "--json") == {"file": str(FILE), "kept": 0, "added": 2, "dropped": 0}
    assert callboard("pins", "check", "acme").output == f"{FILE}: 2 pins hold\n"
    assert callboard("pins", "write", "acme").output == f"{FILE}: kept 2, added 0, dropped 0\n"

    [empty, full] = json.loads(FILE.read_text(encoding="utf-8"))["pins"]
    assert (empty["kind"], empty["message"], full["sample"]) == (RECEIPT, {}, "every field")
    assert full["message"] == {"group_id": "Z3JvdXBfaWQ=", "text": "text"}
    assert bytes.fromhex(full["data"]).endswith(b"\x0a\x08group_id\x12\x04text")


def test_a_new_kind_is_added_and_nothing_else_is_touched(installed: Installed) -> None:
    callboard("pins", "write", "acme")
    edit(lambda pins: pins.reverse())
    installed(HANDLER, threads(lambda message, ctx: None))

    assert "ReceiptThread (every field): not pinned yet; `callboard pins write acme`" in fails("check", "acme")
    assert printed("pins", "write", "acme", "--json")["added"] == 2
    kinds = [pin["kind"] for pin in json.loads(FILE.read_text(encoding="utf-8"))["pins"]]
    assert kinds == [RECEIPT, RECEIPT, THREAD, THREAD]
    assert callboard("pins", "check", "acme").exit_code == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda pins: pins[1].update(kind="acme.receipts.OldName"),
            "the plugin brings no kind of that name any more",
        ),
        (lambda pins: pins[1]["message"].update(title="x"), "a field is gone, or has another name or type"),
        (lambda pins: pins[1].update(data="00" + pins[1]["data"]), "its bytes were 00"),
        (lambda pins: pins[1].update(sha256="00" * 32), "somebody edited the file"),
    ],
    ids=["a kind renamed", "a field removed", "other bytes", "another hash"],
)
def test_what_does_not_hold_is_refused(change: Any, says: str) -> None:
    callboard("pins", "write", "acme")
    edit(change)
    before = FILE.read_text(encoding="utf-8")

    assert says in fails("check", "acme")
    assert says in fails("write", "acme")
    assert FILE.read_text(encoding="utf-8") == before
    result = callboard("pins", "check", "acme", "--json")
    assert (result.exit_code, len(json.loads(result.output)["broken"])) == (1, 1)

    assert printed("pins", "write", "acme", "--replace", "--json")["dropped"] == 1
    assert callboard("pins", "check", "acme").exit_code == 0


def test_what_is_no_file_of_pins_is_named() -> None:
    assert "pins/acme.json" in fails("check", "acme")
    FILE.parent.mkdir()
    FILE.write_text("{}", encoding="utf-8")
    assert "holds no pins" in fails("check", "acme")
    assert "holds no pins" in fails("write", "acme")
    (FILE.parent / "acme.json.new").mkdir()
    FILE.unlink()
    assert "the pins cannot be written" in fails("write", "acme")


def test_a_file_of_another_name_is_used() -> None:
    assert printed("pins", "write", "acme", "--file", "elsewhere.json", "--json")["file"] == "elsewhere.json"
    assert callboard("pins", "check", "acme", "--file", "elsewhere.json").exit_code == 0


def test_a_plugin_that_does_not_work_is_named(installed: Installed) -> None:
    installed(HANDLER, group_events=lambda tx, event: None)
    assert "plugin 'acme': import failed" in fails("write", "acme")
    installed(startup=lambda engine: None)
    assert "plugin 'acme' brings no kind of task, so there is nothing to pin" in fails("write", "acme")


def test_a_plugin_that_is_not_installed_is_said_to_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert "no plugin 'nobodys' is installed" in fails("write", "nobodys")


def test_a_plugin_that_is_blocked_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_BLOCK_PLUGINS", "acme")
    assert "plugin 'acme' is blocked by CALLBOARD_BLOCK_PLUGINS; take it out" in fails("write", "acme")
