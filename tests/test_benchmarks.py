"""The benchmark suite: its arithmetic, its documentation, and one tiny case from end to end."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.apart import MeasurementFailed, apart
from benchmarks.cases import NAMES, case, imports
from benchmarks.peers import contestants
from benchmarks.peers.contract import Handler, TaskFailed, Unable
from benchmarks.tables import CALLBOARD, Table
from benchmarks.work import latencies_ms, percentiles

_ROOT = Path(__file__).parent.parent
_BENCHMARKS = _ROOT / "benchmarks"


def test_every_case_is_documented_and_registered() -> None:
    readme = (_BENCHMARKS / "README.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \|", readme, re.MULTILINE)
    assert documented == list(NAMES)
    modules = {path.stem for path in (_BENCHMARKS / "cases").glob("*.py")} - {"__init__"}
    assert modules == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_case_can_be_imported_without_the_peers(name: str) -> None:
    assert callable(case(name))


def test_every_contestant_has_its_module() -> None:
    for database in ("sqlite", "postgres"):
        for key in contestants(database):
            module, _, class_name = key.partition(".")
            source = (_BENCHMARKS / "peers" / f"{module}.py").read_text()
            assert f"\nclass {class_name}(" in source


def test_ratios_are_those_of_the_subjects_median_to_the_others() -> None:
    table = Table("drain", "tasks per second")
    for figure in (10.0, 90.0, 30.0):
        table.add(CALLBOARD, figure)
    for figure in (5.0, 4.0, 6.0):
        table.add("peer", figure)
    table.add("nothing", 0.0)
    assert table.ratios() == {"peer": 6.0}
    assert table.median(CALLBOARD) == 30.0


@pytest.mark.parametrize(
    ("ratio", "at_least", "at_most"), [(1.9, "MISSED", "met"), (2.0, "met", "met"), (2.1, "met", "MISSED")]
)
def test_a_target_is_met_at_its_bound(ratio: float, at_least: str, at_most: str) -> None:
    table = Table("drain", "tasks per second", figures={CALLBOARD: [ratio * 8], "a": [8.0], "b": [8.0]})
    table.ratio_at_least("a", 2)
    table.ratio_at_most("b", 2)
    table.median_at_least(CALLBOARD, 16)
    verdicts = {row: verdict.partition(":")[0] for row, verdict in table.verdicts().items()}
    assert verdicts == {"a": at_least, "b": at_most, CALLBOARD: at_least}


def test_a_row_without_figures_has_no_verdict_and_is_shown_as_a_dash() -> None:
    table = Table("drain", "tasks per second", figures={CALLBOARD: [1.0]})
    table.leave_out("peer", "has no workers")
    table.ratio_at_least("peer", 10, 14)
    assert table.verdicts() == {}
    assert table.lines()[-1].split() == ["peer", "-", "has", "no", "workers"]


def test_the_best_peer_is_the_one_with_the_least_median_of_those_that_have_one() -> None:
    table = Table("pick-up", "ms", figures={"slow": [9.0], "quick": [1.0, 2.0], "raw": [0.1]})
    assert table.best(["slow", "quick", "absent"]) == "quick"
    assert table.best([]) is None


def test_a_table_says_what_was_due_and_what_was_hoped_for() -> None:
    table = Table("drain", "tasks per second", figures={CALLBOARD: [50.0], "huey": [5.0]})
    table.ratio_at_least("huey", 10, 14)
    assert table.lines()[-1].endswith("ratio 10     met: at least 10, after 14")
    assert table.as_json()["targets"] == {"huey": "met: at least 10, after 14"}


def test_percentiles_and_latencies() -> None:
    from benchmarks.peers.contract import Enqueued

    assert percentiles([float(number) for number in range(100, 0, -1)]) == (51.0, 100.0)
    called, returned = latencies_ms([Enqueued(1.0, 1.5), Enqueued(2.0, 2.5)], [1.75, 2.25])
    assert called == [750.0, 250.0]
    assert returned == [250.0, 0.0]  # it had begun before the enqueue returned


def test_a_handler_fails_as_often_as_it_is_told() -> None:
    handler, begun = Handler(failures=2), []
    handler.expect(7, lambda: begun.append(True))
    for _ in range(2):
        with pytest.raises(TaskFailed):
            handler(7)
    assert not begun
    handler(7)
    assert begun == [True]
    assert list(handler.started_s) == [7]


def refuse() -> None:
    """Be unable, in another process."""
    raise Unable("it cannot")


def fail() -> None:
    """Fail, in another process."""
    raise ValueError("it broke")


def test_what_goes_wrong_in_a_process_is_told() -> None:
    with pytest.raises(Unable, match="it cannot"):
        apart(refuse)
    with pytest.raises(MeasurementFailed, match="ValueError: it broke"):
        apart(fail)


@pytest.mark.slow
def test_a_case_runs_from_end_to_end(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks", "leases", "--quick", "--repeat", "1", "--json", str(file)]
    environment = {"PYTHONPATH": str(_ROOT), "PATH": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "with leases and fencing" in done.stdout
    [table] = json.loads(file.read_text())["leases"]["tables"]
    assert {row: len(figures) for row, figures in table["figures"].items()} == {
        "with leases and fencing": 1,
        "without": 1,
    }
    assert table["unit"] == "tasks per second"
    assert list(tmp_path.iterdir()) == [file]  # its databases are gone


def test_what_is_imported_is_measured_and_not_only_promised() -> None:
    """`import callboard` alone imports nothing of the engine."""
    dependencies = imports.python(imports._DEPENDENCIES)
    assert {"peewee", "pluggy", "pykka"} <= set(dependencies)
