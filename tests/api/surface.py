"""What the public API is: every public name of `callboard`, described in words that are the same on every Python.

A module is public if no part of its name begins with an underscore, and its `__all__` says which names are.
"""

from __future__ import annotations

import contextlib
import inspect
import pkgutil
import re
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib import import_module
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

import callboard

UNLISTED = {
    "callboard.cli": "its commands and options are the API: docs/reference/command-line.md",
    "callboard.testing.pytest_plugin": "its fixtures are the API, which pytest finds by their names",
    "callboard.wire.task_pb2": "generated; `callboard.wire` has its messages",
}
"""Modules without an underscore that have no `__all__`, each with the reason."""


class Item(NamedTuple):
    """What is promised of a public name.

    Attributes:
        sort: what it is, such as `method`; for a name that another module has, too, that one.
        takes: its parameters, in order, each with annotation and default; `None` for what is not called.
        gives: what it returns or is: a type, a value, or nothing to speak of.
    """

    sort: str
    takes: tuple[str, ...] | None = None
    gives: str = ""


Surface = Mapping[str, Item]
"""The items by their full names, those of a class after it."""


def public_modules() -> list[str]:
    """Return the names of the modules that are public, the package first."""
    names = [found.name for found in pkgutil.walk_packages(callboard.__path__, "callboard.")]
    public = [name for name in names if "._" not in name and name.split(".")[1] != "cli"]
    return ["callboard", *(name for name in sorted(public) if name not in UNLISTED)]


def surface() -> dict[str, Item]:
    """Return the whole public API as it is now."""
    items: dict[str, Item] = {}
    homes: dict[int, str] = {}
    for module_name in public_modules():
        module = import_module(module_name)
        for name in sorted(module.__all__):
            thing = getattr(module, name)
            home = homes.setdefault(id(thing), f"{module_name}.{name}")
            if home != f"{module_name}.{name}":
                items[f"{module_name}.{name}"] = Item(f"is {home}")
                continue
            items[home] = described(thing)
            if inspect.isclass(thing):
                items.update({f"{home}.{member}": item for member, item in members(thing)})
    return items


def described(thing: Any) -> Item:
    """Describe what a module has."""
    if inspect.isclass(thing) and thing.__module__.split(".")[0] == "callboard":
        names: dict[type, str] = {object: "", tuple: "NamedTuple"}
        bases = ", ".join(filter(None, (names.get(base, base.__name__) for base in thing.__bases__)))
        return Item(f"class of {bases}" if bases else "class", _constructor(thing))
    if inspect.isfunction(thing):
        return _called("function", thing)
    if isinstance(thing, str | int):
        return Item("constant", None, f"{type(thing).__name__} {thing!r}")
    if isinstance(thing, frozenset | tuple):
        return Item("constant", None, f"{type(thing).__name__} of {', '.join(map(repr, sorted(thing)))}")
    if inspect.isclass(thing) or typing.get_origin(thing) is not None:
        return Item("type", None, _text_of(thing))
    return Item(f"object of {type(thing).__name__}")


def members(owner: type) -> Iterator[tuple[str, Item]]:
    """Describe what a class of ours has, with what it inherits from other classes of ours."""
    if issubclass(owner, Message):
        for field in owner.DESCRIPTOR.fields:
            yield field.name, Item("field", None, f"{field.number}, {_field_type(field)}")
        return
    ours = [each for each in owner.__mro__ if each.__module__.split(".")[0] == "callboard"]
    found: dict[str, Item] = {}
    for each in reversed(ours):
        for name, annotation in inspect.get_annotations(each).items():
            found[name] = Item("attribute", None, _text_of(annotation))
        for name, raw in vars(each).items():
            item = _member(raw)
            if item is not None:
                found[name] = item
    yield from ((name, item) for name, item in found.items() if not name.startswith(("_", "test_")))


def _member(raw: Any) -> Item | None:
    if isinstance(raw, property):
        return Item("property", None, _text_of(inspect.get_annotations(raw.fget)["return"]))  # type: ignore[arg-type]
    if isinstance(raw, classmethod):
        return _called("class method", raw.__func__, skip=1)
    if isinstance(raw, staticmethod):
        return _called("static method", raw.__func__)
    if isinstance(raw, Enum):
        return Item("member", None, repr(raw.value))
    if inspect.isfunction(raw):
        return _called("method", raw, skip=1)
    return None


def _constructor(owner: type) -> tuple[str, ...] | None:
    """Return what a class is made with, or `None` where nobody makes one, or not by a constructor of ours."""
    init = vars(owner).get("__init__")
    if issubclass(owner, Enum | Message) or getattr(owner, "_is_protocol", False):
        return None
    if init is None and issubclass(owner, BaseException):
        return None
    if "the engine makes these" in (getattr(init, "__doc__", None) or ""):
        return None
    return _parameters(inspect.signature(owner))


def _called(sort: str, function: Any, skip: int = 0) -> Item:
    if inspect.iscoroutinefunction(function):
        sort = f"async {sort}"
    elif function.__code__.co_filename == contextlib.__file__:
        sort = f"{sort}, a context manager"
    signature = inspect.signature(function)
    return Item(sort, _parameters(signature)[skip:], _text_of(signature.return_annotation))


def _parameters(signature: inspect.Signature) -> tuple[str, ...]:
    texts: list[str] = []
    named_only = False
    for each in signature.parameters.values():
        if each.kind == each.KEYWORD_ONLY and not named_only:
            texts.append("*")
        named_only = named_only or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        stars = "*" * (each.kind == each.VAR_POSITIONAL) + "**" * (each.kind == each.VAR_KEYWORD)
        annotation = "" if each.annotation is each.empty else f": {_text_of(each.annotation)}"
        default = "" if each.default is each.empty else f" = {_text_of(each.default, repr)}"
        texts.append(f"{stars}{each.name}{annotation}{default}")
    return tuple(texts)


def _text_of(thing: Any, otherwise: Any = str) -> str:
    """Return an annotation or a default as somebody would write it."""
    if isinstance(thing, typing.ForwardRef):
        return thing.__forward_arg__
    if isinstance(thing, str):
        return thing if otherwise is str else repr(thing)
    if thing is inspect.Signature.empty:
        return ""
    if inspect.isclass(thing) and typing.get_origin(thing) is None:
        return "None" if thing is type(None) else thing.__qualname__
    return re.sub(r"\b(?:typing|callboard|collections\.abc|datetime)\.(?:\w+\.)*(?=\w)", "", otherwise(thing))


def _field_type(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        return str(field.message_type.full_name)
    types = {number: name for name, number in vars(FieldDescriptor).items() if name.startswith("TYPE_")}
    return types[field.type].removeprefix("TYPE_").lower()
