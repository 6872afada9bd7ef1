"""The README's example is a program that works."""

import re
from pathlib import Path

import pytest
from tests.plugins.mls.fake_backend import FakeBackend

README = Path(__file__).parents[3] / "plugins" / "mls" / "README.md"


def test_the_example_evicts_and_adds(
    backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [example] = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    backend.found(b"group", "bob")
    backend.directory["ann"].add(b"ann-2")
    monkeypatch.chdir(tmp_path)
    wait = "    assert engine.wait_idle(timeout=10)\n"
    names = {"my_backend": backend, "group_id": b"group", "message_id": b"m1", "phone": b"ann-2"}
    exec(compile(example + wait, str(README), "exec"), names)
    assert sorted(backend.commits) == ["+ann-2", "-bob"]
