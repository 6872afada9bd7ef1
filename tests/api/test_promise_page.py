"""The pattern for what is to go away, as the reference shows it, warns whoever calls it."""

import re
import subprocess
import sys
from pathlib import Path

from tests import pages


def test_a_deprecated_function_warns_its_caller_and_does_what_it_did(tmp_path: Path) -> None:
    [pattern] = pages.snippets("docs/reference/api-promise.md", "python")
    pages.write(pattern, tmp_path)
    (tmp_path / "caller.py").write_text("import deprecated\nprint(deprecated.send_at('hello', 7))\n", "utf-8")

    done = subprocess.run(
        [sys.executable, "-W", "always", "caller.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stdout) == (0, "hello at 7\n")
    assert re.search(r"caller\.py:2: DeprecationWarning: send_at is deprecated since 0\.2", done.stderr)
