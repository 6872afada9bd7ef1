"""An MLS stack in memory: it keeps the promises of `Backend`, and fails where a test wants it to."""

from collections.abc import Callable, Collection, Mapping

from callboard.testing import FakeClock
from callboard_mls import (
    Backend,
    DirectoryBehindError,
    GroupNotFoundError,
    KeyPackageStatus,
    MalformedGroupIdError,
)

DAY_NS = 86_400 * 10**9
ROTATION_NS = 30 * DAY_NS
LIFETIME_NS = 365 * DAY_NS
GRACE_NS = DAY_NS


class FakeBackend(Backend):
    """The stack of installation `ann-1` of inbox `ann`.

    Attributes:
        groups: Who is in each group, by inbox.
        admins: The super-admins of every group.
        directory: The installations of each inbox that everybody can see.
        behind: Whether the directory lags.
        failures: Errors to raise, each by the next call of the method of that name, before it does anything.
        meanwhile: What happens to the world during the next call of the method of that name, when it is done.
        calls: Which method was called for which group.
        commits: What was published: `-inbox` for an eviction, `+installation` for an addition.
        published: When the key package that the network hands out ends; None if it lost it.
        problem: What is wrong with that key package.
        next_rotation: What `next_rotation_ns` answers.
        superseded: When the grace period of each superseded key package ends.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.groups: dict[bytes, dict[str, set[bytes]]] = {}
        self.admins = {"ann"}
        self.directory: dict[str, set[bytes]] = {}
        self.behind = False
        self.failures: dict[str, list[BaseException]] = {}
        self.meanwhile: dict[str, Callable[[], object]] = {}
        self.calls: list[tuple[str, bytes]] = []
        self.commits: list[str] = []
        self.published: int | None = clock.now_ns() + LIFETIME_NS
        self.problem: str | None = None
        self.next_rotation = clock.now_ns() + ROTATION_NS
        self.superseded: list[int] = []
        self.rotations = 0

    def found(self, group_id: bytes, *inbox_ids: str) -> None:
        """Make a group of these inboxes with one installation each, and of `ann`."""
        members = {inbox_id: {f"{inbox_id}-1".encode()} for inbox_id in ("ann", *inbox_ids)}
        self.groups[group_id] = members
        for inbox_id, installations in members.items():
            self.directory.setdefault(inbox_id, set()).update(installations)

    def own_inbox_id(self) -> str:
        return "ann"

    def own_installation_id(self) -> bytes:
        return b"ann-1"

    def members(self, group_id: bytes) -> Mapping[str, frozenset[bytes]]:
        answer = {inbox_id: frozenset(found) for inbox_id, found in self._group("members", group_id).items()}
        self._pass_time("members")
        return answer

    def super_admins(self, group_id: bytes) -> frozenset[str]:
        return frozenset(self.admins & self._group("super_admins", group_id).keys())

    def remove_members(self, group_id: bytes, inbox_ids: Collection[str]) -> frozenset[str]:
        if self.own_inbox_id() in inbox_ids:
            raise ValueError("nobody can commit their own removal")
        members = self._group("remove_members", group_id)
        removed = frozenset(inbox_ids) & members.keys()
        for inbox_id in sorted(removed):
            del members[inbox_id]
            self.commits.append(f"-{inbox_id}")
        self._pass_time("remove_members")
        return removed

    def add_missing_installations(self, group_id: bytes) -> frozenset[bytes]:
        members = self._group("add_missing_installations", group_id)
        missing = {
            (inbox_id, installation)
            for inbox_id, present in members.items()
            for installation in self.directory.get(inbox_id, set()) - present
        }
        for inbox_id, installation in sorted(missing):
            members[inbox_id].add(installation)
            self.commits.append(f"+{installation.decode()}")
        added = frozenset(installation for _, installation in missing)
        if self.behind:
            raise DirectoryBehindError("the directory has not caught up", added=added)
        return added

    def key_package_status(self) -> KeyPackageStatus:
        self._fail("key_package_status")
        problem = self.problem
        if self.published is not None and self.published <= self.clock.now_ns():
            problem = "it has expired"
        return KeyPackageStatus(self.published is not None, problem, self.published)

    def next_rotation_ns(self) -> int:
        return self.next_rotation

    def rotate_key_package(self) -> int:
        self._fail("rotate_key_package")
        now_ns = self.clock.now_ns()
        self.rotations += 1
        self.superseded.append(now_ns + GRACE_NS)
        self.published, self.problem = now_ns + LIFETIME_NS, None
        self.next_rotation = now_ns + ROTATION_NS
        self._pass_time("rotate_key_package")
        return self.next_rotation

    def delete_superseded_key_packages(self) -> int | None:
        self._fail("delete_superseded_key_packages")
        self.superseded = [ends_ns for ends_ns in self.superseded if ends_ns > self.clock.now_ns()]
        return min(self.superseded, default=None)

    def _group(self, method: str, group_id: bytes) -> dict[str, set[bytes]]:
        self.calls.append((method, group_id))
        self._fail(method)
        if group_id.startswith(b"malformed"):
            raise MalformedGroupIdError("it has the wrong length")
        if group_id not in self.groups:
            raise GroupNotFoundError("there is no such group here")
        return self.groups[group_id]

    def _fail(self, method: str) -> None:
        waiting = self.failures.get(method)
        if waiting:
            raise waiting.pop(0)

    def _pass_time(self, method: str) -> None:
        self.meanwhile.pop(method, lambda: None)()
