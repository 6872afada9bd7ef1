"""Run the checks of one plugin, judge what came of them, and say which promise is broken and how to see it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
from google.protobuf import text_format
from google.protobuf.message import Message

from callboard._codec import kind_of
from callboard._databaseless import brought_by
from callboard._kinds import TaskKind
from callboard._specimens import specimens
from callboard.testing.contract import _fault, _life
from callboard.testing.contract._fault import Fault
from callboard.testing.contract._given import Given
from callboard.testing.contract._life import Part, Played
from callboard.testing.contract._processes import Ended, Processes

NO_KIND = "no kind"
"""What stands for the kinds of a plugin that brings none, or does not load."""

_OVERTIME = "Timeout ("  # what Python's watchdog says


class Sample(NamedTuple):
    """One message on which a handler is checked.

    Attributes:
        kind: its kind.
        number: which of the kind's samples it is.
        payload: its bytes.
        text: its fields, for the report.
        is_given: whether the author gave it.
    """

    kind: str
    number: int
    payload: bytes
    text: str
    is_given: bool

    @classmethod
    def of(cls, message: Message, number: int, *, is_given: bool) -> Sample:
        """Describe a message."""
        text = text_format.MessageToString(message, as_one_line=True)
        return cls(kind_of(type(message)), number, message.SerializeToString(), text, is_given)


def kinds_of(given: Given) -> tuple[dict[str, TaskKind[Any]], dict[str, str]]:
    """Return the kinds that the plugin brings, and what is wrong with it."""
    kinds, health = brought_by(given.plugin)
    return kinds, health.problems


class Trials:
    """The checks of one plugin in its surroundings.

    Attributes:
        given: the surroundings.
        kinds: what the plugin brings, by name.
        problems: what went wrong when it was loaded.
        pins: the file of its pins.
    """

    def __init__(
        self, given: Given, processes: Processes, folder: Path, pins: Path, only: Fault | None = None
    ) -> None:
        """Prepare nothing yet.

        Args:
            given: the surroundings.
            processes: where handlers are run.
            folder: an empty one.
            pins: where the pins are.
            only: the one fault to try, if it is not all of them.
        """
        self.given = given
        self.pins = pins
        self.kinds, self.problems = kinds_of(given)
        self._folder = folder
        self._only = only
        self._processes = processes
        self._promise = ""
        self._count = 0
        self._clean: dict[Sample, Played] = {}
        self._samples: dict[str, list[Sample]] | None = None
        self._given_services: frozenset[str] | None = None

    @property
    def write_pins(self) -> str:
        """The command that writes the pins."""
        return f"callboard pins write {self._name} --file {os.path.relpath(self.pins)}"

    @property
    def _name(self) -> str:
        return self.given.plugin if isinstance(self.given.plugin, str) else "this plugin"

    # What is checked

    def begin(self, promise: str, kind: str | None = None) -> None:
        """Check `promise` from here on; skip it if the plugin does not make it."""
        self._promise = promise
        for name in (promise, f"{promise}:{kind}"):
            if name in self.given.waived:
                reason = self.given.waived[name].strip()
                if not reason:
                    self.broken(f"waived[{name!r}] has no reason; say why the plugin cannot keep the promise")
                pytest.skip(f"waived: {reason}")
        if kind is not None and self.problems:
            pytest.skip("the plugin does not load")

    def samples(self, kind: str) -> list[Sample]:
        """Return the messages of a kind on which its handler is checked."""
        missing = [
            service.__name__ for service in self.kinds[kind].requires if _name(service) not in self._services()
        ]
        if missing:
            self.broken(
                f"{kind} requires {', '.join(missing)}, so its handler cannot run; give them in a subclass of"
                " PluginContract, in the method services()"
            )
        if self._samples is None:
            self._samples = {}
            for message in self.given.samples():
                of_kind = self._samples.setdefault(kind_of(type(message)), [])
                of_kind.append(Sample.of(message, len(of_kind) + 1, is_given=True))
            for name in self._samples.keys() - self.kinds.keys():
                self.broken(f"samples() gives a {name}, which is no kind of this plugin")
        if kind not in self._samples:
            made = specimens(self.kinds[kind].message_type)
            message = made.get("every field", made["no field"])
            self._samples[kind] = [Sample.of(message, 1, is_given=False)]
        return self._samples[kind]

    def faults(self, found: Sequence[Fault]) -> Sequence[Fault]:
        """Return those of `found` that are to be tried."""
        return found if self._only is None else [self._only] if self._only in found else []

    def _services(self) -> frozenset[str]:
        if self._given_services is None:
            self._given_services = frozenset(self.answer(_life.services_given))
        return self._given_services

    # How

    def call(self, function: Callable[..., Any], *arguments: Any) -> Ended:
        """Call a function in a process of its own."""
        if not hasattr(os, "fork"):
            pytest.skip("this system cannot fork, which the check needs")
        return self._processes.call(self.given, function, *arguments)

    def answer(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in a process of its own, on a copy of the surroundings; return its answer."""
        with self.surroundings() as folder:
            ended = self.call(function, folder, self.given.begins_at_ns, *arguments)
        return self._answer(ended, "it")

    def _answer(self, ended: Ended, what: str) -> Any:
        if ended.error is not None:
            self.broken(f"{what} raised:\n{ended.error}", log=ended.log)
        if ended.status:
            self.broken(f"the process of {what} {_said(ended)}", log=ended.log)
        return ended.answer

    @contextmanager
    def surroundings(self) -> Iterator[Path]:
        """Give a copy of the surroundings as `prepare` left them, which is removed afterwards."""
        prepared = self._folder / "prepared"
        if not prepared.exists():
            unfinished = self._new_folder()
            self._answer(self.call(_life.prepare, unfinished, self.given.begins_at_ns), "prepare()")
            unfinished.rename(prepared)
        copy = self._new_folder()
        shutil.copytree(prepared, copy, dirs_exist_ok=True)
        yield copy
        shutil.rmtree(copy, ignore_errors=True)  # there will be hundreds

    def _new_folder(self) -> Path:
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        return folder

    def play(self, sample: Sample, fault: Fault = _fault.NONE, **options: Any) -> Played:
        """Run a sample's handler with a fault; after a kill, run it again in another process."""
        part = Part(sample.kind, sample.payload, fault, **options)
        with self.surroundings() as folder:
            ended = self.call(_life.play, folder, self.given.begins_at_ns, part)
            if fault.what == _fault.KILLED and ended.status == -signal.SIGKILL:
                again = part._replace(fault=_fault.NONE, enqueued=True)
                ended = self.call(_life.play, folder, self.given.begins_at_ns, again)
        return self._judged(sample, fault, ended)

    def play_all(self, kind: str, payloads: Sequence[bytes]) -> Played:
        """Run one task of a kind for each of these messages, of which nobody knows what they will do."""
        with self.surroundings() as folder:
            ended = self.call(_life.play_all, folder, self.given.begins_at_ns, kind, payloads)
        return self._judged(Sample(kind, 0, b"", f"{len(payloads)} messages", False), _fault.NONE, ended)

    def clean(self, sample: Sample) -> Played:
        """Return what came of a run to which nothing was done."""
        if sample not in self._clean:
            self._clean[sample] = self.play(sample)
        return self._clean[sample]

    def compare(self, sample: Sample, fault: Fault) -> None:
        """Check that a fault leaves what a clean run leaves."""
        self.same(sample, fault, self.clean(sample), self.play(sample, fault))

    # What came of it

    def _judged(self, sample: Sample, fault: Fault, ended: Ended) -> Played:
        """Return what a process found, which let nothing out of the engine and stayed within the timeout."""
        if ended.error is not None:
            self.broken(
                f"the surroundings of the plugin, or the engine before the run, raised:\n{ended.error}",
                sample,
                fault,
                log=ended.log,
            )
        if _OVERTIME in ended.log and ended.status:
            timeout = self.kinds[sample.kind].timeout
            self.broken(
                f"a handler had not returned when its timeout was over (that of {sample.kind} is {timeout}); where"
                " it was stands in the log",
                sample,
                fault,
                log=ended.log,
            )
        if ended.status:
            self.broken(f"the process {_said(ended)}", sample, fault, log=ended.log)
        played: Played = ended.answer
        if played.escaped is not None:
            self.broken(f"an exception got out of the engine:\n{played.escaped}", sample, fault, log=ended.log)
        if played.problems:
            self.broken(f"a hook raised: {'; '.join(played.problems)}", sample, fault, log=ended.log)
        return played

    def same(self, sample: Sample, fault: Fault, expected: Played, found: Played) -> None:
        """Check that two runs left the same."""
        differences = expected.left.differences(found.left)
        if differences:
            raised = [f"the handler raised {error}" for error in dict.fromkeys(found.raised)]
            self.broken(
                "\n".join(["it did not leave what one clean run leaves:", *differences, *raised]), sample, fault
            )

    def broken(
        self, what: str, sample: Sample | None = None, fault: Fault = _fault.NONE, *, log: str = ""
    ) -> NoReturn:
        """Report a promise that is broken."""
        lines = [f"{self._name} breaks the promise `{self._promise}`"]
        if sample is not None:
            lines.append(f"sample {sample.number} of {sample.kind}: {sample.text or '(no field is set)'}")
            lines.append(f"what was done: {fault.said()}")
        lines += [
            what,
            f"see it again: {self._again(fault)}",
            "what it promises: docs/reference/plugin-contract.md",
        ]
        if log.strip():
            lines += ["the end of its log:", log.rstrip()]
        pytest.fail("\n".join(lines), pytrace=False)

    def _again(self, fault: Fault) -> str:
        """Return the command that shows this once more, and only this."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
        command = f"pytest '{test}'"
        if type(self.given).__module__.endswith("_bare"):
            words = " and ".join(test.rpartition("::")[2].rstrip("]").split("["))
            command = f"pytest --callboard-contract={self.given.plugin} -k '{words}'"
        return command if fault == _fault.NONE else f"{command} --callboard-contract-fault={fault}"


def _name(service: type[Any]) -> str:
    return f"{service.__module__}.{service.__qualname__}"


def _said(ended: Ended) -> str:
    if ended.status < 0:
        return f"was ended by {signal.Signals(-ended.status).name}"
    return f"ended itself with status {ended.status}"
