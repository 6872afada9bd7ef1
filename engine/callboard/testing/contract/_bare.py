"""The contract of a plugin that has no test file: `pytest --callboard-contract=NAME` collects this one."""

from __future__ import annotations

import pytest

from callboard.testing.contract import PluginContract


class TestContract(PluginContract):
    """The contract of the plugin that the option names."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Take the name from the option."""
        type(self).plugin = metafunc.config.getoption("callboard_contract")
        super().pytest_generate_tests(metafunc)
