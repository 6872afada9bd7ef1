"""The command line called in this process."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from callboard.cli import main


def callboard(*arguments: str, answer: str | None = None) -> Result:
    """Call it with `arguments`; `answer` is what is typed."""
    return CliRunner().invoke(main, arguments, input=answer, prog_name="callboard")


def printed(*arguments: str) -> Any:
    """Return the JSON document that a call prints."""
    result = callboard(*arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)
