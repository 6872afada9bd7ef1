"""The package's names are imported when they are asked for, and nobody can tell but by the time that it takes."""

from __future__ import annotations

import pickle
import pkgutil
import pydoc
import subprocess
import sys
from typing import Any

import pytest

import callboard
from callboard import _public


def python(code: str) -> str:
    """Return what a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_public_name_is_there() -> None:
    assert sorted(callboard.__all__) == sorted(set(callboard.__all__))
    for name in callboard.__all__:
        assert getattr(callboard, name) is getattr(_public, name)
    assert set(callboard.__all__) <= set(dir(callboard))


def test_every_public_module_is_an_attribute() -> None:
    modules = {module.name for module in pkgutil.iter_modules(callboard.__path__) if module.name[0] != "_"}
    assert modules <= set(dir(callboard))
    for name in sorted(modules):
        assert python(f"import callboard; print(callboard.{name}.__name__)") == f"callboard.{name}\n"


def test_a_star_import_gets_what_is_public() -> None:
    names = python("from callboard import *; print(*sorted(name for name in dir() if name[0] != '_'))").split()
    assert names == sorted(callboard.__all__)


@pytest.mark.parametrize("name", ["Engin", "_nothing", "__wrapped__"])
def test_a_name_that_is_none_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'callboard' has no attribute '{name}'"):
        getattr(callboard, name)


@pytest.mark.parametrize("module", ["_engine", "_plugins", "hookspec", "wire"])
def test_a_module_may_be_imported_before_any_name(module: str) -> None:
    """What it imports of the package must not ask for the names, whose modules import it."""
    python(f"import callboard.{module}; callboard.Engine")


def test_help_shows_the_classes() -> None:
    text = pydoc.plain(pydoc.render_doc(callboard))
    assert "class Engine(" in text
    assert "A durable task engine on one database." in text


def test_what_is_pickled_in_one_process_is_read_in_another() -> None:
    values: list[Any] = [callboard.Done(), callboard.TaskState.PENDING, callboard.RetryPolicy()]
    data = pickle.dumps(values)
    code = f"import pickle; print(repr(pickle.loads({data!r})))"
    assert python(code).strip() == repr(values)


LOG = (
    "import sys\nfrom loguru import logger\nlogger.remove()\nlogger.add(sys.stdout, format='{message}')\n"
    "log = compile('from callboard._log import logger; logger.error(text)', 'log', 'exec')\n"
    "def say(text): exec(log, {'__name__': 'callboard.x', 'text': text})\n"
)
"""Logs as a module of the engine does."""


def test_the_log_is_silent_until_the_host_asks() -> None:
    code = LOG + "import callboard\ncallboard.Engine\nsay('unheard')\nlogger.enable('callboard')\nsay('heard')\n"
    assert python(code) == "heard\n"


@pytest.mark.parametrize(
    "ask",
    [
        "logger.enable('callboard')\nimport callboard\n",
        "import callboard\nlogger.enable('callboard')\n",
        "from callboard.errors import CallboardError\nlogger.enable('callboard')\n",
    ],
    ids=["before the import", "before a name", "after a module"],
)
def test_what_is_imported_after_the_host_has_asked_makes_it_silent_no_more(ask: str) -> None:
    assert python(LOG + ask + "import callboard._engine\nsay('heard')\n") == "heard\n"


def test_help_needs_no_log() -> None:
    code = "import sys\nfrom callboard.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "print([name for name in ('loguru', 'asyncio', 'peewee') if name in sys.modules])\n"
    assert python(code).endswith("[]\n")
