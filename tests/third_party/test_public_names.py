"""A stranger knows what is documented: the plugin and its tests use no name that begins with an underscore."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.plugins.test_public_api import imported_names, is_private

FOLDER = Path(__file__).parent / "callboard_vanish"
SOURCES = [
    path
    for part in ("src", "tests")  # and not what a build has left
    for path in sorted((FOLDER / part).rglob("*.py"))
    if not path.name.endswith("_pb2.py")
]


def private_attributes(source: str) -> Iterator[str]:
    """Return the private attributes of anything but the object's own."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            owner = ast.unparse(node.value)
            if owner != "self":
                yield f"{owner}.{node.attr}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_stranger_uses_only_public_names(path: Path) -> None:
    source = path.read_text(encoding="utf-8")

    assert [name for name in imported_names(source) if is_private(name) or name.startswith("tests")] == []
    assert list(private_attributes(source)) == []


def test_there_is_something_to_look_at() -> None:
    assert len(SOURCES) > 5
    assert list(private_attributes("engine._core.store; self._own; super().__init__()")) == ["engine._core"]
