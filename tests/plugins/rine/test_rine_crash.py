"""A process killed between any two steps of a commit is repaired by the next attempt, with one commit."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.plugins.rine.conftest import GROUP, Stage, assert_converged, epoch

from callboard_mls.backend import EpochRejectedError
from callboard_rine import CRASH_POINTS, Device, RineBackend

pytestmark = pytest.mark.slow

_CHILD = Path(__file__).with_name("crashing_process.py")


def crash(stage: Stage, device: Device, work: str, point: str) -> Device:
    """Let another process work on `device` until it is killed at `point`, and return the device reopened."""
    device.close()
    child = subprocess.run(
        [sys.executable, _CHILD, device.store, stage.network.path, GROUP.decode(), work, point],
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    return stage.device(device.credentials.inbox_id)


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_an_eviction_survives_a_crash(stage: Stage, point: str) -> None:
    ann, bob, bob2, cem = (
        stage.device("ann"),
        stage.device("bob"),
        stage.device("bob", "2"),
        stage.device("cem"),
    )
    stage.group(ann, bob, bob2, cem)
    commits = stage.commits()
    ann = crash(stage, ann, "evict", point)
    assert RineBackend(ann).remove_members(GROUP, ["bob"]) == {"bob"}
    assert stage.commits() == commits + 2  # one for each of bob's installations
    assert RineBackend(ann).members(GROUP).keys() == {"ann", "cem"}
    assert_converged(ann, cem)


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_an_addition_survives_a_crash(stage: Stage, point: str) -> None:
    ann, bob = stage.device("ann"), stage.device("bob")
    stage.group(ann, bob)
    bob2 = stage.device("bob", "2")
    commits = stage.commits()
    ann = crash(stage, ann, "add", point)
    assert RineBackend(ann).add_missing_installations(GROUP) == {bob2.installation_id}
    assert stage.commits() == commits + 1
    assert bob2.join_groups() == [GROUP]
    assert_converged(ann, bob, bob2)


@pytest.mark.parametrize("point", CRASH_POINTS[: CRASH_POINTS.index("rine.commit.published")])
def test_a_commit_that_lost_its_epoch_while_the_process_was_dead_is_undone(stage: Stage, point: str) -> None:
    ann, bob, cem = stage.device("ann"), stage.device("bob"), stage.device("cem")
    stage.group(ann, bob, cem)
    ann = crash(stage, ann, "evict", point)
    assert RineBackend(bob).remove_members(GROUP, ["cem"]) == {"cem"}
    assert RineBackend(ann).members(GROUP).keys() == {"ann", "bob"}
    assert_converged(ann, bob)
    assert RineBackend(ann).remove_members(GROUP, ["bob"]) == {"bob"}


def test_an_undo_that_was_interrupted_is_completed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    ann, bob = stage.device("ann"), stage.device("bob")
    backend = stage.group(ann, bob)
    before = epoch(ann)
    copytree = shutil.copytree

    def copy_unless_undoing(source: Path, *arguments: Any, **options: Any) -> Any:
        if "snapshots" in Path(source).parts:
            raise OSError("no space left")
        return copytree(source, *arguments, **options)

    stage.network.faults.reject_commit(GROUP)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
        patch.setattr(shutil, "copytree", copy_unless_undoing)
        backend.remove_members(GROUP, ["bob"])
    assert epoch(ann) == before
    assert_converged(ann, bob)


def test_a_stale_snapshot_is_never_restored(stage: Stage) -> None:
    ann, bob, cem = stage.device("ann"), stage.device("bob"), stage.device("cem")
    stage.group(ann, bob, cem)
    stage.network.faults.reject_commit(GROUP)
    with pytest.raises(EpochRejectedError):
        RineBackend(ann).remove_members(GROUP, ["bob"])
    assert RineBackend(bob).remove_members(GROUP, ["cem"]) == {"cem"}
    now = epoch(ann)
    ann = crash(stage, ann, "evict", "rine.commit.journalled")
    assert epoch(ann) == now
    assert_converged(ann, bob)
