"""A handful of kills for each `tox`; `tox -e chaos` makes it hundreds. And the ledger finds what is wrong."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.chaos.__main__ import main
from tests.chaos.conductor import Round
from tests.chaos.database import POSTGRES, SORTS
from tests.chaos.mls.conductor import MlsRound

pytestmark = pytest.mark.campaign


@pytest.mark.parametrize("on", SORTS)
def test_killed_engines_lose_nothing(tmp_path: Path, on: str) -> None:
    """By the command that `tox -e chaos` runs, and `tox -e chaos-postgres`."""
    if on == POSTGRES:
        pytest.importorskip("tests.postgres").server_url()
    ran = CliRunner().invoke(
        main, ["--kills=4", f"--database={on}", "--seed=1", "--json", f"--folder={tmp_path / 'files'}"]
    )

    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["violations"] == []
    assert sum(told["engine"]["kills"].values()) >= 4
    assert told["engine"]["runs"] > 0
    assert not (tmp_path / "files").exists()


def test_the_ledger_finds_a_node_on_postgres_that_commits_effects_before_outcomes(tmp_path: Path) -> None:
    pytest.importorskip("tests.postgres").server_url()
    manners = ["callboard.settle.begun"] * 2
    played = Round(tmp_path, "teeth", manners, sabotage="effects", sorts=("effect",), on=POSTGRES)

    played.play()

    assert any("was done 2 times for 1 requests" in violation for violation in played.violations)


@pytest.mark.parametrize("on", SORTS)
def test_killed_hosts_keep_their_groups_in_order(tmp_path: Path, on: str) -> None:
    if on == POSTGRES:
        pytest.importorskip("tests.postgres").server_url()
    manners = ["rine.commit.saved", "random", "rine.commit.published"]

    (played := MlsRound(tmp_path, "handful", manners, on=on)).play()

    assert played.violations == []
    assert played.figures.kills.total() >= len(manners)
    assert played.figures.commits > 0


def test_the_ledger_finds_an_engine_that_commits_effects_before_outcomes(tmp_path: Path) -> None:
    played = Round(tmp_path, "teeth", ["callboard.settle.begun"] * 2, sabotage="effects", sorts=("effect",))

    played.play()

    assert any("was done 2 times for 1 requests" in violation for violation in played.violations)
