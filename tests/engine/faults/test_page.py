"""The operator's pages of faults: each section tells what happens, what one sees and what to do, and has tests."""

import ast
import re
from pathlib import Path

import pytest

ENGINE_TESTS = Path(__file__).parents[1]
TESTS = ENGINE_TESTS.parent
PAGES = sorted((TESTS.parent / "docs" / "reference").glob("faults*.md"))
TEXT = "".join(page.read_text(encoding="utf-8") for page in PAGES)
PARTS = ("**What happens.**", "**What you see.**", "**What to do.**", "*Tests:*")

SECTIONS = dict(
    section.split("\n", 1)
    for page in PAGES
    for section in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.M)[1:]
)


@pytest.mark.parametrize("title", SECTIONS)
def test_each_fault_has_its_parts_and_tests_that_exist(title: str) -> None:
    text = SECTIONS[title]
    found = [part for part in re.findall(r"^\*+[A-Z][a-z ]+[.:]\*+", text, flags=re.M)]
    assert found == list(PARTS)

    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    assert named
    for file, function in named:
        folder = TESTS if file.startswith("plugins/") else ENGINE_TESTS
        tree = ast.parse((folder / file).read_text(encoding="utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (file, function)


def test_each_test_of_a_fault_is_named() -> None:
    """So that the pages grow with them."""
    files = [*Path(__file__).parent.glob("test_*.py"), ENGINE_TESTS / "test_cli" / "test_run_faults.py"]
    for file in files:
        if file.name == Path(__file__).name:
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        tests = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and "test" in node.name[:4]]
        named = f"{file.relative_to(ENGINE_TESTS).as_posix()}::"
        assert [name for name in tests if f"{named}{name}`" not in TEXT] == []
