"""The other process of `run_until_crash`: load a file as the module that it was there, and call its function.

Which function is a line of JSON on stdin; its arguments follow, pickled.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
import sys


def main() -> None:
    """Call the function that stdin names."""
    find = json.loads(sys.stdin.buffer.readline())
    spec = importlib.util.spec_from_file_location(find["module"], find["path"])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # before its arguments are unpickled, whose classes may be its own
    spec.loader.exec_module(module)
    getattr(module, find["function"])(*pickle.loads(sys.stdin.buffer.read()))
