"""A few thousand of the rows that `tox -e fuzz` tries a million of."""

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.checking import check_bytes
from tests.fuzz.mutating import mutated, seeds
from tests.fuzz.rows import CHOICES
from tests.fuzz.tables import check_file

pytestmark = pytest.mark.campaign

VERDICTS = {"run", "defer", "expired", "exhausted", "malformed"}


def test_ordinary_rows_of_every_sort_get_the_verdicts_that_they_should() -> None:
    verdicts = [check_bytes(data) for data in seeds()]

    assert Counter(verdicts) == {"run": 8, "defer": 3}  # three of kinds that nobody knows


@given(choices=st.binary(min_size=CHOICES, max_size=CHOICES), payload=st.binary(max_size=200))
@settings(max_examples=1_000)
def test_any_row_gets_a_verdict(choices: bytes, payload: bytes) -> None:
    assert check_bytes(choices + payload) in VERDICTS


def test_rows_that_are_nearly_right_get_every_verdict() -> None:
    chance = random.Random(1)

    assert {check_bytes(mutated(chance)) for _ in range(5_000)} == VERDICTS


@pytest.mark.parametrize("seed", range(4))
def test_no_row_in_a_file_vanishes_or_stops_the_engine(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)

    fates = check_file(tmp_path / "fuzz.db", [mutated(chance) for _ in range(150)], chance)

    assert {"done", "malformed", "deferred"} <= set(fates)
