"""Say what is wrong with a plugin before it is called, and with what its hooks return.

pluggy never calls a hook whose name it does not know, awaits nothing, and runs no generator, so all of these would
look like a plugin that works. `docs/reference/plugin-errors.md` has every message.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from callboard import hookspec
from callboard.errors import PluginError

HOOKS = tuple(name for name in vars(hookspec) if name.startswith("callboard_"))
KINDS_HOOK = "callboard_task_kinds"
LISTING_HOOKS = (KINDS_HOOK, "callboard_migrations")

_MARK = f"{hookspec.PROJECT}_impl"
_ARGUMENTS = {name: list(inspect.signature(getattr(hookspec, name)).parameters) for name in HOOKS}


def made_from(source: Any) -> Any:
    """Return the plugin that an entry point names, or that a function or class of it makes.

    Raises:
        PluginError: it cannot be called without arguments, or gives nothing that could be a plugin.
    """
    if not inspect.isclass(source) and not inspect.isfunction(source):
        return _checked(source)
    try:
        inspect.signature(source).bind()
    except TypeError as error:
        raise PluginError(
            f"{source.__qualname__} is called without arguments to make the plugin, and takes some: {error}"
        ) from None
    except ValueError:  # written in C, without a signature
        pass
    return _checked(source())


def check_api(plugin: Any) -> None:
    """Refuse a plugin that needs another version of the plugin API.

    Raises:
        PluginError: says what it needs, what there is, and what to do.
    """
    wanted = getattr(plugin, "callboard_api", None)
    if wanted is None:
        return
    whole = isinstance(wanted, tuple) and len(wanted) == 2 and all(type(part) is int for part in wanted)
    if not whole:
        raise PluginError(f"callboard_api must be (major, minor), such as (1, 0), not {_short(wanted)}")
    major, minor = hookspec.API_VERSION
    if wanted[0] == major and wanted[1] <= minor:
        return
    newer = wanted > hookspec.API_VERSION
    raise PluginError(
        f"it needs version {wanted[0]}.{wanted[1]} of the plugin API, and this callboard has {major}.{minor};"
        + (" upgrade callboard" if newer else f" upgrade the plugin to one for version {major}")
    )


def check_hooks(plugin: Any) -> None:
    """Refuse a plugin with a hook that would never be called as its author means it.

    Raises:
        PluginError: names the hook.
    """
    found = False
    for name in dir(plugin):
        function = getattr(plugin, name)
        options = getattr(function, _MARK, None) if inspect.isroutine(function) else None
        if isinstance(options, dict):
            found = True
            _check_hook(options.get("specname") or name, function, options)
        elif name in HOOKS:
            raise PluginError(f"{name} must be a function that is marked with @hookimpl, not {_short(function)}")
    if not found:
        raise PluginError(
            f"{_short(plugin)} has no hook; mark at least one function with @hookimpl: {', '.join(HOOKS)}"
        )


def items_of(returned: Any, item: type[Any]) -> Iterable[Any]:
    """Return what one of `LISTING_HOOKS` returned, if objects like `item` can be taken out of it.

    Raises:
        PluginError: it is nothing of the sort.
    """
    if returned is None:
        return ()
    if isinstance(returned, item):
        raise PluginError(f"it must return a list, such as [{item.__name__}(...)], not one {item.__name__}")
    if isinstance(returned, (str, bytes, Mapping)) or not isinstance(returned, Iterable):
        _drop(returned)
        raise PluginError(f"it must return a list of {item.__name__}, not {_short(returned)}")
    return returned


def complaint_of(returned: Any) -> str | None:
    """Return what is wrong with what one of the other hooks returned; nobody reads it."""
    if returned is None:
        return None
    if is_undone(returned):
        return f"it must do its work itself and return None, not {_short(returned)}, which nobody runs"
    return f"it must return None, not {_short(returned)}, which nobody reads"


def is_undone(returned: Any) -> bool:
    """Return whether what a hook returned is its work, not yet done."""
    undone = inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned)
    _drop(returned)
    return undone


def _check_hook(hook: str, function: Any, options: Mapping[str, Any]) -> None:
    if hook not in HOOKS:
        near = difflib.get_close_matches(hook, HOOKS, 1)
        hint = f"did you mean {near[0]}?" if near else f"the hooks are {', '.join(HOOKS)}"
        raise PluginError(f"there is no hook {hook}; {hint}")
    if options.get("wrapper") or options.get("hookwrapper"):
        raise PluginError(
            f"{hook} must be a plain function, not a wrapper: each plugin's hook is called on its own, so there is"
            " nothing to wrap"
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise PluginError(f"{hook} must be a plain function, not an `async def`, which nobody awaits")
    if hook not in LISTING_HOOKS and inspect.isgeneratorfunction(function):
        raise PluginError(f"{hook} must be a plain function, not one with `yield`, which nobody runs")
    given = _ARGUMENTS[hook]
    taken = inspect.signature(function).parameters.values()
    odd = [str(each.replace(annotation=each.empty)) for each in taken if _is_missed(each, given)]
    if odd:
        raise PluginError(
            f"{hook} may take {' and '.join(given)}, by these names, in front of any `*` and without defaults; not"
            f" {', '.join(odd)}"
        )


def _is_missed(parameter: inspect.Parameter, given: list[str]) -> bool:
    """Return whether pluggy never passes a parameter that wants something."""
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return True
    if parameter.default is not inspect.Parameter.empty:
        return parameter.name in given
    return parameter.name not in given or parameter.kind is inspect.Parameter.KEYWORD_ONLY


def _checked(plugin: Any) -> Any:
    if plugin is None or inspect.iscoroutine(plugin):
        _drop(plugin)
        raise PluginError(
            f"its entry point must name a module, an object, or a function or class that makes one, not"
            f" {_short(plugin)}"
        )
    return plugin


def _drop(returned: Any) -> None:
    if inspect.iscoroutine(returned):
        returned.close()  # or Python warns that nobody awaited it


def _short(value: Any) -> str:
    if inspect.iscoroutine(value) or inspect.isgenerator(value):
        return f"a {type(value).__name__}"  # whose own text has an address in it
    if inspect.ismodule(value):
        return f"the module {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {getattr(value, '__name__', value)}"
    return f"{value!r:.80}"
