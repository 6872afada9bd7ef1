"""The first-party plugins take the route that a stranger's would: they import the public API only."""

import ast
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

import pytest


def modules(package: Traversable) -> Iterator[Traversable]:
    for entry in package.iterdir():
        if entry.is_dir():
            yield from modules(entry)
        elif entry.name.endswith(".py"):
            yield entry


def imported_names(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_private(name: str) -> bool:
    package, *rest = name.split(".")
    return package == "callboard" and any(part.startswith("_") for part in rest)


@pytest.mark.parametrize("package", ["callboard_mls", "callboard_rine"])
def test_plugins_import_only_the_public_api(package: str) -> None:
    sources = {str(module): module.read_text(encoding="utf-8") for module in modules(files(package))}
    private = {
        path: names
        for path, source in sources.items()
        if (names := [name for name in imported_names(source) if is_private(name)])
    }

    assert sources
    assert private == {}
