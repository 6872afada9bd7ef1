"""The README's example is a program that works."""

from pathlib import Path

import pytest
from tests import pages
from tests.plugins.mls.fake_backend import FakeBackend

README = "plugins/mls/README.md"


def test_the_example_evicts_and_adds(
    backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [example] = pages.snippets(README, "python")
    backend.found(b"group", "bob")
    backend.directory["ann"].add(b"ann-2")
    monkeypatch.chdir(tmp_path)
    wait = "    assert engine.wait_idle(timeout=10)\n"
    names = {"my_backend": backend, "group_id": b"group", "message_id": b"m1", "phone": b"ann-2"}
    exec(compile(example.source + wait, README, "exec"), names)
    assert sorted(backend.commits) == ["+ann-2", "-bob"]
