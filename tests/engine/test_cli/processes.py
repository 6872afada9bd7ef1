"""What tests do with a process of `callboard run`, and the plugin that it serves."""

from __future__ import annotations

import json
from subprocess import Popen
from typing import Any

PLUGIN = """
    import sys
    from google.protobuf.wrappers_pb2 import BytesValue, StringValue
    from callboard import TaskKind, hookimpl

    class Mailer:
        pass

    def say(line):
        sys.stdout.write(line + "\\n")  # at once: print writes the end by itself, after what others say meanwhile
        sys.stdout.flush()

    def wait(message, ctx):
        say("handler started")
        open(message.value).close()  # a FIFO: goes on when the test opens it, too
        say("handler ended")

    @hookimpl
    def callboard_task_kinds():
        return [TaskKind(StringValue, wait), TaskKind(BytesValue, wait, requires=(Mailer,))]
"""


def lines_until(process: Popen[str], *texts: str) -> str:
    """Return what the process says until it has said all of `texts`, in any order."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if all(text in said for text in texts):
            return said
    raise AssertionError(f"ended without {texts}: {said}")


def tasks(script: Any, database: str) -> list[dict[str, Any]]:
    """Return the live tasks of the test's own kind."""
    listing = script.run("tasks", "list", database, "--kind", "google.protobuf.StringValue", "--json")
    listed: list[dict[str, Any]] = json.loads(listing.stdout)["tasks"]
    return listed
