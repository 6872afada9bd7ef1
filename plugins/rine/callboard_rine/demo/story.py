"""What happens in the demo, act by act."""

import signal
from pathlib import Path
from time import monotonic

from callboard import Engine, Task, TaskState

from .calls_pb2 import RingMembers
from .host_process import HostProcess
from .ledger import Ledger
from .narrator import Narrator
from .result import Result, examine
from .world import (
    ADA,
    ADA_PHONE,
    BEN_PHONE,
    CLEO,
    CLEO_LAPTOP,
    CLIMBING,
    DAN_PHONE,
    FAMILY,
    GROUPS,
    PLUGINS,
    World,
    database_path,
    database_url,
)

_CRASH_AT = "rine.commit.saved:2"
"""The first commit evicts Dan; at the second, the process is killed between saving and publishing it."""

_ENDING_KINDS = ("process_pending_self_remove", "add_missing_installations")
"""The kinds whose tasks end; those that look after key packages stay in the table for ever."""


def play(folder: Path, narrator: Narrator) -> Result:
    """Play the whole story in `folder`, which is empty, and return how it came out.

    Raises:
        HostFailedError: The engine's process does not do its part.
        CallboardError: A database or the MLS stack cannot be used.
        OSError: The folder cannot be used.
    """
    began_s = monotonic()
    with World(folder) as world, Engine(database_url(folder), plugins=PLUGINS, execute=False) as engine:
        story = _Story(folder, narrator, world, engine)
        story.set_the_stage()
        with story.host(crash_at=_CRASH_AT) as host:
            story.engine_starts(host)
            story.dan_leaves(host)
            story.cleo_gets_a_laptop(host)
            story.ben_leaves_and_the_process_is_killed(host)
        with story.host() as host:
            story.another_process_finishes(host)
        return examine(world, engine, story.ledger, story.expired_key_package, story.crashes, began_s)


class _Story:
    """The acts, in order. The engine here only enqueues and lists; the host's process runs the tasks."""

    def __init__(self, folder: Path, narrator: Narrator, world: World, engine: Engine) -> None:
        self._folder = folder
        self._narrator = narrator
        self._world = world
        self._engine = engine
        self.ledger = Ledger(database_path(folder))
        self._failures_told: set[tuple[int, int | None]] = set()
        self.expired_key_package = b""
        self.crashes = 0

    def host(self, crash_at: str | None = None) -> HostProcess:
        return HostProcess(self._folder, self.ledger.done, self._watch, crash_at)

    def set_the_stage(self) -> None:
        self._world.begin()
        self.expired_key_package = self._world.expire_key_package(ADA_PHONE)
        self._world.close(ADA_PHONE)
        for group_id, inbox_ids in GROUPS.items():
            self._engine.group(group_id).created(ADA, members=inbox_ids, super_admins=[ADA], consent="allowed")
        self._engine.enqueue(RingMembers(group_id=FAMILY), allow_unknown=True)
        self._narrator.say(
            "The stage: three MLS groups, four people, five installations (Ben has two).",
            f"Real MLS (RFC 9420) in {self._folder}. Ada is super-admin; her phone's service embeds Callboard.",
        )

    def engine_starts(self, host: HostProcess) -> None:
        host.settle()
        self._narrator.say(
            "The engine starts, and finds Ada's key package in the directory expired: it is rotated.",
            "Nobody could have added Ada to a group, and nothing on her own phone would have told her.",
        )
        self._narrator.say(
            "A task of kind acme.calls.RingMembers is deferred: no plugin here knows it.",
            "It is kept for a build that does, and holds up nobody.",
        )

    def dan_leaves(self, host: HostProcess) -> None:
        self._world.devices[DAN_PHONE].request_leave(CLIMBING)
        host.push(mail=CLIMBING.hex())
        host.settle()
        self._narrator.say(
            "Dan asks to leave climbing, and is evicted.",
            "MLS lets nobody commit their own removal. The request and a task were written in one transaction,"
            " so it cannot be forgotten; the task made the commit.",
        )

    def cleo_gets_a_laptop(self, host: HostProcess) -> None:
        laptop = self._world.open(CLEO_LAPTOP)
        laptop.enroll()
        self._world.network.faults.hide_installation(laptop.installation_id, lookups=len(GROUPS))
        self._world.network.faults.reject_commit(FAMILY)
        self._narrator.say(
            "Cleo gets a laptop. It is missing from her three groups; the directory is slow to show it.",
            "One attempt that loses this race would leave the laptop deaf for ever. A task tries again:",
        )
        host.push(installation=[CLEO, laptop.installation_id.hex()])
        host.settle()

    def ben_leaves_and_the_process_is_killed(self, host: HostProcess) -> None:
        self._world.devices[BEN_PHONE].request_leave(CLIMBING)
        host.push(mail=CLIMBING.hex())
        host.expect_end(-signal.SIGKILL)
        self.crashes += 1
        self._narrator.say(
            "Ben asks to leave climbing, too, and SIGKILL ends the engine's process in the middle of it.",
            "The commit is saved on Ada's phone and published to nobody: the moment at which a group forks, or"
            " a member is evicted twice.",
        )

    def another_process_finishes(self, host: HostProcess) -> None:
        host.settle()
        self._narrator.say(
            "A second process takes over, and Ben is evicted by the very commit that was cut off.",
            "The task was in the table, the commit in the backend's journal. The laptop's tasks are there, too:",
        )
        host.wait(lambda: not any(self._engine.tasks(kind=kind) for kind in _ENDING_KINDS))
        host.stop()
        self._narrator.say("The laptop is in all three groups, and nothing is left to do.")

    def _watch(self) -> None:
        """Show the task table, and tell each failed attempt once."""
        tasks = self._engine.tasks()
        self._narrator.show(tasks)
        for task in tasks:
            attempt = (task.id, task.last_attempted_at_ns)
            if task.state != TaskState.RUNNING and task.last_error and attempt not in self._failures_told:
                self._failures_told.add(attempt)
                self._narrator.detail(_failure(task, task.last_error))


def _failure(task: Task, traceback: str) -> str:
    error, _, text = traceback.strip().rpartition("\n")[2].partition(": ")
    where = "" if task.group_id is None else f" in {task.group_id.decode()}"
    return f"{task.kind}{where} failed, to be tried again. {error.rpartition('.')[2]}: {text}"
