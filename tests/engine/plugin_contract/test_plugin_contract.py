"""A sound plugin passes the contract, and for each check there is a plugin that fails it for its one flaw."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.engine.acting import RECEIPT
from tests.engine.messages import SendReceipt
from tests.engine.plugin_contract import broken
from tests.engine.plugin_contract.sound import PINS, Outbox, Sound, enter, plugin

from callboard import TaskContext
from callboard.testing import FakeClock
from callboard.testing.contract import PluginContract, _fault
from callboard.testing.contract._fault import Fault, parsed
from callboard.testing.contract._life import Part, play
from callboard.testing.contract._processes import Processes
from callboard.testing.contract._trials import Trials


class TestSound(Sound):
    """It keeps every promise."""


async def coroutine(message: SendReceipt, ctx: TaskContext) -> None:
    await ctx.service(AsyncOutbox).asend(ctx.task.data_hash.hex(), message.text)
    await asyncio.sleep(0)
    enter(message, ctx)


class AsyncOutbox(Outbox):
    async def asend(self, key: str, text: str) -> None:
        self.send(key, text)


@pytest.mark.exhaustive
class TestCoroutine(Sound):
    """So does one whose handler is a coroutine."""

    plugin = plugin(coroutine)

    def services(self, folder: Path, clock: FakeClock) -> Mapping[type[Any], Any]:
        outbox = AsyncOutbox(folder / "sent")
        return {AsyncOutbox: outbox, Outbox: outbox}


class Deferring(Sound):
    """A kind that leaves messages of newer versions to newer builds."""

    plugin = plugin(on_unknown_fields="defer")


class Flaw(NamedTuple):
    """A broken plugin, the promise that it breaks, and what the report says of it."""

    plugin: type[PluginContract]
    promise: str
    says: str


FLAWS = [
    Flaw(broken.MisspeltHook, "loads", "callboard_group_events"),
    Flaw(broken.OtherPins, "pins", "rows of it would not be recognised"),
    Flaw(broken.GroupFromHash, "encoding", "in another process the row of a message is another one"),
    Flaw(broken.OtherTable, "clean_run", "table receipt: too many"),
    Flaw(broken.BadSample, "clean_run", "on a sample of yours the handler raised ValueError: a field"),
    Flaw(broken.NoService, "clean_run", "requires Outbox, so its handler cannot run; give them"),
    Flaw(broken.NeverReturns, "timeout", "its timeout was over (that of acme.receipts.SendReceipt is 0:00:02"),
    Flaw(broken.WaivedWithoutReason, "timeout", "waived['timeout'] has no reason"),
    Flaw(broken.Exits, "any_message", "ended itself with status 3"),
    Flaw(broken.SendsAgain, "run_twice", "effects(): expected"),
    Flaw(broken.MarksFirst, "killed", "--callboard-contract-fault=killed:contract."),
    Flaw(broken.RefusesNewer, "newer_message", "the handler raised ValueError: a field"),
    Flaw(broken.NeedsGroup, "missing_group", "raised AttributeError"),
    Flaw(broken.Swallows, "failing_service", "of a service raised ServiceUnavailable before it did"),
    Flaw(broken.LeavesMark, "cancelled", "--callboard-contract-fault=cancelled:0"),
    Flaw(broken.TrustsClock, "clock_jumps", "the clock was set back by an hour"),
    Flaw(broken.ReconcilesAnew, "reconcile_twice", "the second time added"),
    Flaw(broken.NeverReconciles, "reconcile_recreates", "are not there after reconciling"),
]


def report_of(flaw: Flaw, trials: Trials) -> str:
    """Run the test of a promise as pytest would, and return what it reports."""
    test = getattr(trials.given, f"test_{flaw.promise}")
    kind = [RECEIPT] if "kind" in test.__code__.co_varnames[: test.__code__.co_argcount] else []
    with pytest.raises(pytest.fail.Exception) as failed:
        test(trials, *kind)
    return str(failed.value)


@pytest.mark.campaign
@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.plugin.__name__)
def test_the_contract_tells_of(flaw: Flaw, callboard_contract_processes: Processes, tmp_path: Path) -> None:
    trials = Trials(flaw.plugin(), callboard_contract_processes, tmp_path, Path(str(flaw.plugin.pins)))

    report = report_of(flaw, trials)

    assert report.startswith(f"this plugin breaks the promise `{flaw.promise}`\n")
    assert flaw.says in report
    assert "\nsee it again: pytest '" in report


def find_receipt(message: SendReceipt, ctx: TaskContext) -> None:
    raise LookupError(message.text)


class MadeUp(Sound):
    """Its handler raises, on a message that nobody says it can do."""

    plugin = plugin(find_receipt)

    def samples(self) -> list[SendReceipt]:
        return []


def test_a_handler_that_cannot_do_what_is_made_up_is_told_to_give_samples(
    callboard_contract_processes: Processes, tmp_path: Path
) -> None:
    trials = Trials(MadeUp(), callboard_contract_processes, tmp_path, PINS)

    with pytest.raises(pytest.skip.Exception, match=r"on a made-up message it raised LookupError.*samples\(\)"):
        MadeUp().test_clean_run(trials, RECEIPT)


@pytest.mark.parametrize(
    "point", ["callboard.settle.begun", "contract.send.after", "contract.commit.written", "acme.receipt.sent"]
)
def test_a_process_is_killed_at(point: str, callboard_contract_processes: Processes, tmp_path: Path) -> None:
    trials = Trials(Sound(), callboard_contract_processes, tmp_path, PINS)
    [sample] = trials.samples(RECEIPT)
    part = Part(RECEIPT, sample.payload, Fault(_fault.KILLED, point, 1))

    with trials.surroundings() as folder:
        ended = trials.call(play, folder, Sound.begins_at_ns, part)

    assert ended.status == -signal.SIGKILL


def test_a_kind_that_defers_is_not_called(callboard_contract_processes: Processes, tmp_path: Path) -> None:
    Deferring().test_newer_message(Trials(Deferring(), callboard_contract_processes, tmp_path, PINS), RECEIPT)


def test_there_is_a_flaw_for_each_promise() -> None:
    promises = {name.removeprefix("test_") for name in dir(PluginContract) if name.startswith("test_")}
    assert {flaw.promise for flaw in FLAWS} == promises


@pytest.mark.parametrize(
    "text", ["outcome-lost", "killed:callboard.settle.begun:1", "away:2", "cancelled:0", "clock-back:3"]
)
def test_a_fault_is_written_as_it_is_read(text: str) -> None:
    assert str(parsed(text)) == text


@pytest.mark.parametrize("text", ["", "killed", "killed:1", "away:x:1", "away:", "outcome-lost:1", "nonsense:1"])
def test_what_is_no_fault_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no fault; take it from a report"):
        parsed(text)


@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_the_contract_says_what_to_install(missing: str) -> None:
    source = f"import sys; sys.modules[{missing!r}] = None; import callboard.testing.contract"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert "the plugin contract needs pytest and Hypothesis: pip install 'callboard[testing]'" in done.stderr
