"""How the demo came out: counted from what the groups, the directory and the tables say, and compared."""

from dataclasses import dataclass
from time import monotonic

from callboard import Engine, TaskState

from ..backend import RineBackend
from ..device import Device
from .calls_pb2 import RingMembers
from .convergence import is_converged, keeps_out
from .ledger import Ledger
from .world import ADA_PHONE, BEN, CLEO, CLEO_LAPTOP, CLIMBING, DAN, GROUPS, World

_LEFT = {CLIMBING: (BEN, DAN)}
"""Who asked to leave which group."""

_NEEDED_COMMITS = 2 * len(GROUPS) + 3
"""For each group its founding and the laptop; one to evict Dan, two for Ben's two installations."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it.

    Attributes:
        evicted: Members who asked to leave a group and are out of it.
        installations_added: Groups that the new installation was missing from and is in.
        key_packages_rotated: Expired key packages in the directory that were replaced by usable ones.
        unknown_deferred: Tasks of a kind that nobody here knows, and that wait.
        crashes_survived: Killed processes whose work another one finished.
        accepted: Tasks that the engine accepted, whoever enqueued them.
        lost: Accepted tasks that are neither done, live nor in the dead-task table.
        surplus_commits: Commits beyond those that the changes needed, such as a second eviction of somebody.
        converged: Each group's members are at one epoch and read each other, and the evicted do not.
        seconds: How long it took.
    """

    evicted: int
    installations_added: int
    key_packages_rotated: int
    unknown_deferred: int
    crashes_survived: int
    accepted: int
    lost: int
    surplus_commits: int
    converged: bool
    seconds: float

    def checks(self) -> list[tuple[bool, str]]:
        """Return for each promise whether it was kept, in words."""
        return [
            (self.evicted == 2, f"{self.evicted} of 2 members who asked to leave are out"),
            (self.installations_added == 3, f"the new installation is in {self.installations_added} of 3 groups"),
            (self.key_packages_rotated == 1, f"{self.key_packages_rotated} of 1 expired key package was rotated"),
            (self.unknown_deferred == 1, f"{self.unknown_deferred} of 1 task of an unknown kind is deferred"),
            (self.crashes_survived == 1, f"{self.crashes_survived} of 1 crash was survived"),
            (self.lost == 0, f"{self.lost} of {self.accepted} accepted tasks were lost"),
            (self.surplus_commits == 0, f"{self.surplus_commits} commits were made twice"),
            (self.converged, "all members are at one epoch and read each other; who left reads nothing"),
        ]

    def is_good(self) -> bool:
        """Tell whether every promise was kept."""
        return all(kept for kept, _ in self.checks())


def examine(
    world: World, engine: Engine, ledger: Ledger, expired_key_package: bytes, crashes: int, began_s: float
) -> Result:
    """Look at everything once the host's processes have ended; opens Ada's phone.

    Args:
        world: Everybody, at most one step behind.
        engine: The engine whose tables to count.
        ledger: What it accepted.
        expired_key_package: What the directory had for Ada's phone at first.
        crashes: How many processes were killed before the one that ended well.
        began_s: When it began, on the monotonic clock.
    """
    ada = world.open(ADA_PHONE)
    backend = RineBackend(ada)
    members = {group_id: backend.members(group_id) for group_id in GROUPS}
    laptop = world.devices[CLEO_LAPTOP]
    # Before the evicted have heard of it, so that it is the keys that keep them out.
    kept_out = all(keeps_out(group_id, ada, world.installations_of(*left)) for group_id, left in _LEFT.items())
    laptop.join_groups()
    converged = all(is_converged(group_id, _remaining(world, group_id)) for group_id in GROUPS)
    rotated = world.network.directory.key_package(ada.installation_id) != expired_key_package
    lost = ledger.lost(
        live=(task.id for task in engine.tasks()), dead=(dead.task_id for dead in engine.dead_tasks())
    )
    return Result(
        evicted=sum(inbox_id not in members[group_id] for group_id, left in _LEFT.items() for inbox_id in left),
        installations_added=sum(laptop.installation_id in members[group_id][CLEO] for group_id in GROUPS),
        key_packages_rotated=int(rotated and backend.key_package_status().usable),
        unknown_deferred=len(engine.tasks(kind=RingMembers.DESCRIPTOR.full_name, state=TaskState.DEFERRED)),
        crashes_survived=crashes,
        accepted=len(ledger.accepted()),
        lost=len(lost),
        surplus_commits=sum(map(world.commits, GROUPS)) - _NEEDED_COMMITS,
        converged=kept_out and converged,
        seconds=round(monotonic() - began_s, 3),
    )


def _remaining(world: World, group_id: bytes) -> list[Device]:
    left = _LEFT.get(group_id, ())
    return world.installations_of(*(inbox_id for inbox_id in GROUPS[group_id] if inbox_id not in left))
