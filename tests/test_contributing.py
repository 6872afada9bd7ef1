"""CONTRIBUTING and the release checklist name paths, modules, commands and tools; each of them is there."""

from __future__ import annotations

import re
import tomllib
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = (
    "CONTRIBUTING.md",
    "docs/how-to/release.md",
    "newsfragments/README.md",
    ".github/pull_request_template.md",
)
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
FENCED = [(page, code) for page, text in TEXTS.items() for code in dict.fromkeys(re.findall(r"`([^`\n]+)`", text))]
# What only an example has.
MADE_UP = {"0002_what_it_does.sql", "slow-disk.bugfix.md", "NAME.TYPE.md", "NAME-2"}


def codes(pattern: str) -> list[Any]:
    """Return what is written as code and matches, with its page."""
    return [pytest.param(code, id=f"{page}: {code}") for page, code in FENCED if re.fullmatch(pattern, code)]


@pytest.mark.parametrize("path", codes(r"\.?[\w./-]*(/[\w./-]*|\.(md|py|cfg|ini|toml|sql|proto|yaml))"))
def test_each_path_is_there(path: str) -> None:
    if path not in MADE_UP and not path.startswith(".tox/"):
        assert (ROOT / path).exists() or any(ROOT.rglob(path))


@pytest.mark.parametrize("name", codes(r"(callboard|callboard_mls|callboard_rine)(\.\w+)+(?<!\.db)"))
def test_each_name_of_the_code_is_there(name: str) -> None:
    if "postgres" in name:
        pytest.importorskip("psycopg")
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return
    raise AssertionError(f"nothing is named {name}")


def tox_commands() -> list[tuple[str, str, str]]:
    """Return each `tox -e`, as code or in a block, with its page and its arguments."""
    found = re.compile(r"tox -e ([\w-]+)(?: -- ([^`\n#]+))?")
    return [(page, *command) for page, text in TEXTS.items() for command in dict.fromkeys(found.findall(text))]


@pytest.mark.parametrize(("page", "environment", "arguments"), tox_commands())
def test_each_tox_environment_is_there(page: str, environment: str, arguments: str) -> None:
    tox = ConfigParser()
    tox.read(ROOT / "tox.ini")
    listed = tox["tox"]["env_list"].split(", ")
    factors = {"py311", "py312", "py313", "lowest", "sqlite", "postgres", "engine", "mls", "rine"}
    made_of_factors = "-" in environment and factors.issuperset(environment.split("-"))
    assert environment in listed or f"testenv:{environment}" in tox or made_of_factors
    for path in re.findall(r"tests/\S+", arguments):
        assert (ROOT / path).exists()


@pytest.mark.parametrize("fixture", codes(r"make_\w+"))
def test_each_fixture_is_there(fixture: str) -> None:
    source = (ROOT / "engine/callboard/testing/pytest_plugin.py").read_text(encoding="utf-8")
    assert f"def {fixture}(" in source


def test_the_pages_name_enough_to_be_checked() -> None:
    """Or the patterns above have ceased to find them."""
    assert len(codes(r"callboard(\.\w+)+")) > 25
    assert len(tox_commands()) > 20


def test_every_package_is_in_the_layout() -> None:
    layout = TEXTS["CONTRIBUTING.md"].partition("## Layout")[2].partition("\n## ")[0]
    folders = {f"engine/callboard/{name}/" for name in ("_actors", "_store", "cli", "testing")}
    folders |= {f"{path.parent.relative_to(ROOT).as_posix()}/" for path in ROOT.glob("plugins/*/setup.cfg")}
    assert all(f"`{folder}`" in layout for folder in folders)


def test_pre_commit_has_the_versions_of_tox() -> None:
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    lint = tox.partition("[testenv:lint]")[2].partition("\n[")[0]
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    pinned = set(re.findall(r"[\w-]+==[\d.]+", hooks))
    assert pinned == set(re.findall(r"[\w-]+==[\d.]+", lint))
    assert set(re.findall(r"entry: (\w+ \w+)", hooks)) == set(re.findall(r"^    (\w+ \w+)", lint, re.MULTILINE))


def test_the_types_of_fragments_are_those_that_the_readme_has() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
    listed = re.findall(r"^\| `(\w+)` \|", TEXTS["newsfragments/README.md"], re.MULTILINE)
    assert listed == [kind["directory"] for kind in config["type"]]
    assert config["start_string"] in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("distribution", [".", "plugins/mls", "plugins/rine"])
def test_the_distributions_have_one_version(distribution: str) -> None:
    versions = [ConfigParser(), ConfigParser()]
    versions[0].read(ROOT / "setup.cfg")
    versions[1].read(ROOT / distribution / "setup.cfg")
    assert versions[0]["metadata"]["version"] == versions[1]["metadata"]["version"]
    assert f"`{Path(distribution, 'setup.cfg').as_posix()}`" in TEXTS["docs/how-to/release.md"]
