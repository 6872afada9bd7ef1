"""One set of tests that every plugin passes: subclass `PluginContract`, or `pytest --callboard-contract=NAME`.

NAME is the plugin's entry point. It needs pytest and Hypothesis, which `pip install 'callboard[testing]'` brings.
"""

from __future__ import annotations

try:
    import hypothesis  # noqa: F401
    import pytest
except ImportError as error:
    raise ImportError(
        "the plugin contract needs pytest and Hypothesis: pip install 'callboard[testing]'"
    ) from error

from callboard.errors import PluginError
from callboard.testing.contract._given import Given
from callboard.testing.contract._promises import EncodingTests, HandlerTests, PluginTests
from callboard.testing.contract._trials import NO_KIND, kinds_of

__all__ = ["PluginContract"]


class PluginContract(Given, PluginTests, EncodingTests, HandlerTests):
    """What a plugin promises, with the surroundings in which it is checked.

    A subclass in a test module names the plugin and overrides what it needs of `samples`, `services`, `prepare`,
    `effects`, `events` and `lose_group`, whose docstrings say when they are called.

    Attributes:
        plugin: the name of the plugin's entry point; or a module or object, if it has none yet.
        pins: the file that `callboard pins write` wrote; `pins/NAME.json` in pytest's root directory by default.
        begins_at_ns: where the clock stands at first, in nanoseconds since the epoch.
        volatile: columns of tables, as `table.column`, that may differ from run to run, such as times.
        waived: promises that the plugin does not make, each with the reason: `promise` or `promise:kind`.
        examples: how many messages of each kind Hypothesis makes up; the same ones in each run.
    """

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run the tests of a kind for each kind of the plugin."""
        if "kind" in metafunc.fixturenames:
            try:
                kinds, _ = kinds_of(self)
            except PluginError as error:  # there is none of that name
                raise pytest.UsageError(str(error)) from error
            skipped = pytest.param(NO_KIND, marks=pytest.mark.skip("the plugin brings no kind of task"))
            metafunc.parametrize("kind", sorted(kinds) or [skipped])
