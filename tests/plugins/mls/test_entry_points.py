"""The distribution as a host installs it: found by entry point, silent, and each job can be left out."""

from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.resources import files

import pytest
from tests.plugins.mls.fake_backend import FakeBackend

import callboard_mls
from callboard import Engine, InstallationAdded

GROUP = b"group"
KINDS = {
    "process_pending_self_remove": {"process_pending_self_remove"},
    "add_missing_installations": {"add_missing_installations"},
    "kp_liveness": {"kp_liveness", "kp_rotation", "kp_deletion"},
    "pull_in_deadline": {"pull_in_deadline"},
}


def kinds(engine: Engine) -> dict[str, set[str]]:
    return {plugin.name: set(plugin.kinds) for plugin in engine.health().plugins}


def live_through_everything(engine: Engine, backend: FakeBackend) -> None:
    """Have a group created, a member leave it and another get a device, with a key package that is lost."""
    backend.found(GROUP, "bob", "cid")
    backend.directory["cid"].add(b"cid-2")
    backend.published = None
    engine.group(GROUP).created("ann", members=["bob", "cid"], super_admins=["ann"])
    engine.group(GROUP).leave_requested("bob", b"m1")
    engine.publish(InstallationAdded("cid", b"cid-2"))
    engine.run_due()


def test_each_job_is_an_entry_point_of_its_own() -> None:
    installed = {point.name: point.dist.name for point in entry_points(group="callboard") if point.dist}
    assert {name: installed.get(name) for name in KINDS} == dict.fromkeys(KINDS, "callboard-mls")


def test_an_engine_finds_all_that_is_installed(mls_engine: Callable[..., Engine], backend: FakeBackend) -> None:
    engine = mls_engine(plugins=None)
    live_through_everything(engine, backend)
    assert KINDS.items() <= kinds(engine).items()
    assert set(backend.commits) == {"-bob", "+cid-2"}
    assert backend.rotations == 1


@pytest.mark.parametrize("left_out", KINDS)
def test_leaving_one_out_leaves_the_rest_working(
    mls_engine: Callable[..., Engine], backend: FakeBackend, left_out: str
) -> None:
    engine = mls_engine(*(name for name in KINDS if name != left_out))
    live_through_everything(engine, backend)
    assert kinds(engine) == {name: brought for name, brought in KINDS.items() if name != left_out}
    assert all(plugin.loaded and not plugin.problems for plugin in engine.health().plugins)
    assert ("-bob" in backend.commits) == (left_out != "process_pending_self_remove")
    assert ("+cid-2" in backend.commits) == (left_out != "add_missing_installations")
    assert backend.rotations == (left_out != "kp_liveness")
    assert engine.dead_tasks() == []


def test_what_a_host_asked_to_hear_names_no_group(
    mls_engine: Callable[..., Engine], backend: FakeBackend, log: list[str]
) -> None:
    live_through_everything(mls_engine(*KINDS), backend)
    assert log == [
        "INFO a new installation: adding it to groups, 0 tasks scheduled",
        "WARNING this installation's key package needs replacing: none is published",
    ]


def test_a_host_that_asked_for_nothing_hears_nothing(
    mls_engine: Callable[..., Engine], backend: FakeBackend, capfd: pytest.CaptureFixture[str]
) -> None:
    live_through_everything(mls_engine(*KINDS), backend)
    assert capfd.readouterr() == ("", "")


def test_the_package_is_typed_and_names_what_is_public() -> None:
    assert files(callboard_mls).joinpath("py.typed").is_file()
    assert all(hasattr(callboard_mls, name) for name in callboard_mls.__all__)
