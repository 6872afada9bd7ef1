"""The promises of a plugin, one test each; `docs/reference/plugin-contract.md` has them in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from callboard import _pins
from callboard._codec import decode, encode
from callboard._databaseless import databaseless
from callboard._specimens import is_message, is_repeated, specimens
from callboard.errors import CallboardError
from callboard.testing.contract import _fault, _life
from callboard.testing.contract._fault import Fault, times
from callboard.testing.contract._messages import messages
from callboard.testing.contract._snapshot import not_made_again
from callboard.testing.contract._trials import Trials

_MOST_KILLS = 2
"""How often a process is killed at one point, of all the times that a run reaches it."""

_MOST_CALLS = 8
"""At how many calls of services, and readings of the clock, something goes wrong."""

_UNKNOWN = b"\xfa\xff\xff\xff\x0f\x05newer" + b"\xf0\xff\xff\xff\x0f\x07"
"""Two fields that no type has, of the highest two numbers: a text and a number."""


class PluginTests:
    """What is promised of the plugin as a whole."""

    def test_loads(self, callboard_contract: Trials) -> None:
        trials = callboard_contract
        trials.begin("loads")
        if trials.problems:
            trials.broken("; ".join(f"{where}: {problem}" for where, problem in trials.problems.items()))

    def test_pins(self, callboard_contract: Trials) -> None:
        trials = callboard_contract
        trials.begin("pins")
        if not trials.kinds:
            pytest.skip("the plugin brings no kind of task")
        if not trials.pins.exists():
            trials.broken(f"there is no {trials.pins}; `{trials.write_pins}` writes it, and then commit it")
        try:
            pins = _pins.read(trials.pins)
        except CallboardError as error:
            trials.broken(str(error))
        _, complaints = _pins.judged(pins, trials.kinds)
        if complaints:
            trials.broken("\n".join(complaints))
        missing = _pins.unpinned(pins, trials.kinds)
        if missing:
            names = ", ".join(map(str, missing))
            trials.broken(f"not pinned yet: {names}; `{trials.write_pins}` adds what is new")

    def test_reconcile_twice(self, callboard_contract: Trials) -> None:
        trials = callboard_contract
        trials.begin("reconcile_twice")
        found = self._reconciled(trials)
        more, less = found.twice - found.once, found.once - found.twice
        lines = [f"the second time added {row}" for row in more] + [f"the second time lost {row}" for row in less]
        lines += found.left_once.differences(found.left_twice)
        if lines:
            trials.broken("\n".join(["reconciling twice is not like reconciling once:", *lines]))

    def test_reconcile_recreates(self, callboard_contract: Trials) -> None:
        trials = callboard_contract
        trials.begin("reconcile_recreates")
        found = self._reconciled(trials)
        lost = not_made_again(found.made, found.once)
        if lost:
            rows = [f"  {row}" for row in lost]
            trials.broken(
                "\n".join(
                    ["tasks that events made, then lost, are not there after reconciling (or later):", *rows]
                )
            )

    @staticmethod
    def _reconciled(trials: Trials) -> _life.Reconciled:
        if trials.problems:
            pytest.skip("the plugin does not load")
        found: _life.Reconciled = trials.answer(_life.reconcile)
        if found.problems:
            trials.broken(f"a hook raised: {'; '.join(found.problems)}")
        return found


class EncodingTests:
    """What is promised of a kind's rows."""

    examples: int = 25

    def test_encoding(self, callboard_contract: Trials, kind: str) -> None:
        trials = callboard_contract
        trials.begin("encoding", kind)
        message_type = trials.kinds[kind].message_type
        payloads = [message.SerializeToString() for message in specimens(message_type).values()]
        payloads += [message.SerializeToString() for message in _made_up(message_type, self.examples)]
        for payload in payloads:
            message = message_type.FromString(payload)
            if decode(encode(message), kind, message_type) != message:
                trials.broken(f"a message does not come back from its row as it was: {message!r}")
        engine = databaseless([trials.given.plugin])
        own = [message_type.FromString(payload) for payload in payloads]
        here = [_life.as_row(engine, message) for message in (*own, *trials.given.samples())]
        there = trials.answer(_life.encoded, [(kind, payload) for payload in payloads])
        for one, other in zip(here, there, strict=True):
            if one != other:
                trials.broken(f"in another process the row of a message is another one: {one} and {other}")


class HandlerTests:
    """What is promised of a kind's handler: it leaves what one clean run leaves, whatever happens to it."""

    examples: int = 25

    def test_clean_run(self, callboard_contract: Trials, kind: str) -> None:
        trials = callboard_contract
        trials.begin("clean_run", kind)
        raised: list[str] = []
        for sample in trials.samples(kind):
            clean = trials.clean(sample)
            raised += clean.raised
            if sample.is_given and clean.raised:
                trials.broken(f"on a sample of yours the handler raised {clean.raised[0]}", sample)
            if clean.runs == 0:
                trials.broken("the handler was not called; is its task meant for later?", sample)
            trials.same(sample, _fault.NONE, clean, trials.play(sample))
        if raised:  # on a message that nobody has to be able to do
            pytest.skip(
                f"little of the handler is checked: on a made-up message it raised {raised[0]}; give messages that"
                " it can do, in samples()"
            )

    def test_timeout(self, callboard_contract: Trials, kind: str) -> None:
        trials = callboard_contract
        trials.begin("timeout", kind)
        for sample in trials.samples(kind):
            trials.clean(sample)

    def test_any_message(self, callboard_contract: Trials, kind: str) -> None:
        trials = callboard_contract
        trials.begin("any_message", kind)
        trials.samples(kind)
        made_up = _made_up(trials.kinds[kind].message_type, self.examples)
        trials.play_all(kind, [message.SerializeToString() for message in made_up])

    def test_run_twice(self, callboard_contract: Trials, kind: str) -> None:
        self._all(callboard_contract, "run_twice", kind, lambda passed: [Fault(_fault.LOST_OUTCOME)])

    def test_killed(self, callboard_contract: Trials, kind: str) -> None:
        self._all(callboard_contract, "killed", kind, lambda passed: passed.kills(_MOST_KILLS))

    def test_newer_message(self, callboard_contract: Trials, kind: str) -> None:
        trials = callboard_contract
        trials.begin("newer_message", kind)
        for sample in trials.samples(kind):
            newer = _newer(trials.kinds[kind].message_type.FromString(sample.payload))
            found = trials.play(sample, newer=newer.SerializeToString())
            if trials.kinds[kind].on_unknown_fields == "defer":
                if found.runs:
                    trials.broken("the kind defers unknown fields, and its handler was called", sample)
                continue
            trials.same(sample, _fault.NONE, trials.clean(sample), found)

    def test_missing_group(self, callboard_contract: Trials, kind: str) -> None:
        trials = callboard_contract
        trials.begin("missing_group", kind)
        grouped = [sample for sample in trials.samples(kind) if self._has_group(trials, kind, sample.payload)]
        if not grouped:
            pytest.skip("tasks of this kind belong to no group")
        for sample in grouped:
            found = trials.play(sample, groupless=True)
            if found.raised:
                trials.broken(
                    f"the group is not there, and the handler raised {found.raised[0]}; it is to end the task with"
                    " an outcome",
                    sample,
                )
            trials.same(
                sample, _fault.NONE, found, trials.play(sample, Fault(_fault.LOST_OUTCOME), groupless=True)
            )

    def test_failing_service(self, callboard_contract: Trials, kind: str) -> None:
        known = callboard_contract.kinds.get(kind)
        whats = [_fault.AWAY, _fault.LOST_ANSWER]
        if known is not None and known.max_attempts() > 1:  # else what is no outage is the end, and is meant to be
            whats.append(_fault.RAISES)

        def faults(passed: _fault.Passed) -> list[Fault]:
            return [Fault(what, nth=nth) for nth in times(passed.calls, _MOST_CALLS) for what in whats]

        self._all(callboard_contract, "failing_service", kind, faults)

    def test_cancelled(self, callboard_contract: Trials, kind: str) -> None:
        self._all(
            callboard_contract,
            "cancelled",
            kind,
            lambda passed: [Fault(_fault.CANCELLED, nth=nth) for nth in (0, *times(passed.calls, _MOST_CALLS))],
        )

    def test_clock_jumps(self, callboard_contract: Trials, kind: str) -> None:
        def faults(passed: _fault.Passed) -> list[Fault]:
            return [
                Fault(what, nth=nth)
                for nth in (0, *times(passed.readings, _MOST_CALLS))
                for what in (_fault.CLOCK_BACK, _fault.CLOCK_FORWARD)
            ]

        self._all(callboard_contract, "clock_jumps", kind, faults)

    @staticmethod
    def _all(trials: Trials, promise: str, kind: str, faults: Any) -> None:
        """Try each fault that a clean run shows a place for."""
        trials.begin(promise, kind)
        found = 0
        for sample in trials.samples(kind):
            for fault in trials.faults(faults(trials.clean(sample).passed)):
                found += 1
                trials.compare(sample, fault)
        if not found:
            pytest.skip("there is no place for this in a run")

    @staticmethod
    def _has_group(trials: Trials, kind: str, payload: bytes) -> bool:
        known = trials.kinds[kind]
        return known.group_of(known.message_type.FromString(payload)) is not None


def _made_up(message_type: type[Message], count: int) -> Sequence[Message]:
    """Return messages that Hypothesis makes up, the same ones each time."""
    found: list[Message] = []

    @settings(
        max_examples=1,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def collect(data: st.DataObject) -> None:
        found[:] = [data.draw(messages(message_type)) for _ in range(count)]

    collect()
    return found


def _newer(message: Message) -> Message:
    """Return a message as a newer version might write it: with further fields, inside it, too."""
    message.MergeFromString(_UNKNOWN)
    for field in message.DESCRIPTOR.fields:
        if is_message(field):
            inside: Any = getattr(message, field.name)
            for each in (
                inside if is_repeated(message, field) else [inside] if message.HasField(field.name) else ()
            ):
                _newer(each)
    return message
