"""The page of the reference that lists the public API, written from the code and its docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from tests.api.changes import ROOT
from tests.api.surface import Item, Surface, public_modules

PAGE = ROOT / "docs" / "reference" / "api.md"

_HEAD = """\
# The public API

Every name that hosts, plugins and stores may rely on, module by module. What is not here may change in any
release; [what is promised](api-promise.md) says how the names here may change. `tox -e api` writes this page.
"""

_VALUES = ("attribute", "property", "member", "field")
"""What a class shows beside its docstring; the rest has a heading of its own."""

_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):\n((?: +.*\n?|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+): ((?:.|\n {5,})+)", re.MULTILINE)
_MOST_COLUMNS = 100


def page(present: Surface) -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *(line for name in public_modules() for line in _module(name, present))])


def _module(module_name: str, present: Surface) -> Iterator[str]:
    module = import_module(module_name)
    yield f"## {module_name}\n"
    yield from _text(module)
    items = {name: present[f"{module_name}.{name}"] for name in sorted(module.__all__)}
    elsewhere = [item.sort.removeprefix("is ") for item in items.values() if item.sort.startswith("is ")]
    for name, item in items.items():
        if not item.sort.startswith("is "):
            yield from _name(f"{module_name}.{name}", getattr(module, name), present)
    if elsewhere:
        yield f"It also has {', '.join(f'`{name}`' for name in elsewhere)}.\n"


def _name(full_name: str, thing: Any, present: Surface) -> Iterator[str]:
    short, prefix = full_name.rpartition(".")[2], f"{full_name}."
    own = {name.removeprefix(prefix): item for name, item in present.items() if name.startswith(prefix)}
    values = [f"    {name}: {item.gives}" for name, item in own.items() if item.sort in _VALUES]
    yield f"### {short}\n"
    yield from _code(_signature(short, present[full_name]), *values)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        yield from _text(thing)
    if present[full_name].takes and "__init__" in vars(thing) and not hasattr(thing, "__dataclass_fields__"):
        yield from _text(thing.__init__)
    for name, item in own.items():
        if item.sort == "property":
            yield f"`{name}`: {inspect.getdoc(getattr(thing, name))}\n"
    for name, item in own.items():
        if item.sort not in _VALUES:
            yield f"#### {short}.{name}\n"
            yield from _code(_signature(name, item))
            yield from _text(getattr(thing, name))


def _signature(name: str, item: Item) -> str:
    """Return what somebody would write in Python to declare it, on several lines where one is too long."""
    sort, _, bases = item.sort.partition(" of ")
    gives = f" -> {item.gives}" if item.takes is not None and item.gives else f" {item.gives}".rstrip()
    if item.takes is None or bases == "NamedTuple":
        return f"{sort} {name}{f'({bases})' if bases else ''}{gives}"
    line = f"{sort} {name}({', '.join(item.takes)}){gives}"
    if len(line) <= _MOST_COLUMNS:
        return line
    return "\n".join([f"{sort} {name}(", *(f"    {each}," for each in item.takes), f"){gives}"])


def _code(*lines: str) -> Iterator[str]:
    yield "\n".join(["```text", *lines, "```", ""])


def _text(thing: Any) -> Iterator[str]:
    """Turn a docstring into Markdown: what is indented below `Args:` and the like becomes a list."""
    yield _SECTION.sub(_section, (inspect.getdoc(thing) or "") + "\n").rstrip() + "\n"


def _section(found: re.Match[str]) -> str:
    title, body = found.groups()
    entries = [f"- `{name}`: {' '.join(text.split())}" for name, text in _ENTRY.findall(body)]
    return "\n".join([f"{title}:\n", *(entries or [" ".join(body.split())]), "\n"])
