"""Every snippet of the README and the docs is run: by a test of its page's own, or else here.

The own test of a how-to or a tutorial is the `tests/test_how_to_*.py` or `tests/test_tutorial_*.py` that names the
page, by its path or by its name alone; those of other pages are listed below. What is run here is run in order, in
a folder of the page's own. A snippet of Python whose first line names a file (`# service.py`) is written to that
file and run; any other one is a program of its own. `console` is for the shell, and holds commands only.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import pages

RUN = ("python", "console", "sh")
"""The languages of what can be run; for anything else that is shown there are others, such as `text`."""

OWN = {
    "README.md": "tests/test_readme.py",
    "docs/reference/isolation.md": "tests/test_isolation_documented.py",
    "docs/reference/command-line.md": "tests/test_command_line_documented.py",
    "plugins/mls/README.md": "tests/plugins/mls/test_readme.py",
}
"""The tests of pages elsewhere than in `docs/how-to` and `docs/tutorial`."""

PAGES = sorted(
    page.relative_to(pages.ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "plugins/*/*.md", "benchmarks/*.md")
    for page in pages.ROOT.glob(pattern)
)

TESTS = {
    module.relative_to(pages.ROOT).as_posix(): module.read_text(encoding="utf-8")
    for kind in ("how_to", "tutorial")
    for module in sorted((pages.ROOT / "tests").glob(f"test_{kind}_*.py"))
}


def own_test(page: str) -> str | None:
    """Return the test that runs a page's snippets, `None` if that is for this one to do."""
    if page.startswith(("docs/how-to/", "docs/tutorial/")):
        names = (f'"{page}"', f'"{Path(page).stem}"')
        return next((module for module, text in TESTS.items() if any(name in text for name in names)), None)
    return OWN.get(page)


SHOWING = [page for page in PAGES if pages.snippets(page, *RUN)]
ELSEWHERE = [page for page in SHOWING if own_test(page) is not None]


def test_there_is_no_own_test_of_a_page_without_snippets() -> None:
    assert set(OWN) <= set(ELSEWHERE)


@pytest.mark.parametrize("page", OWN)
def test_an_own_test_reads_its_page(page: str) -> None:
    assert f'"{page}"' in pages.read(OWN[page])


@pytest.mark.parametrize("page", [page for page in SHOWING if page not in ELSEWHERE])
def test_the_snippets_run_as_they_are_shown(page: str, tmp_path: Path) -> None:
    for snippet in pages.snippets(page, *RUN):
        if snippet.language != "python":
            pages.shell(snippet.source, tmp_path)
        elif snippet.file is not None:
            pages.write(snippet, tmp_path)
            pages.python(snippet.file, folder=tmp_path)
        else:
            pages.python("-c", snippet.source, folder=tmp_path)
