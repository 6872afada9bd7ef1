"""The groups' ledger can fail: each of its checks catches a made-up wrong."""

import pytest
from tests.chaos.mls import witness

ADA, BEN, CLEO, LAPTOP = b"a", b"b", b"c", b"l"
OWNERS = {ADA: "ada-phone", BEN: "ben-phone", CLEO: "cleo-phone", LAPTOP: "cleo-laptop"}

TOGETHER = frozenset((ADA, BEN, CLEO))
WITHOUT_BEN = frozenset((ADA, CLEO))
WITH_LAPTOP = frozenset((ADA, CLEO, LAPTOP))


def found(history: list[frozenset[bytes]], *, left: set[str], expected: frozenset[bytes]) -> list[str]:
    return witness.violations("climbing", history, OWNERS, left, expected)


def test_a_group_that_lost_who_asked_and_got_a_device_is_right() -> None:
    history = [TOGETHER, WITHOUT_BEN, WITH_LAPTOP]

    assert found(history, left={"ben"}, expected=WITH_LAPTOP) == []


@pytest.mark.parametrize(
    ("history", "left", "expected", "told"),
    [
        ([TOGETHER, WITHOUT_BEN, WITHOUT_BEN], {"ben"}, WITHOUT_BEN, "commit 1 changed nothing"),
        (
            [TOGETHER, WITHOUT_BEN, TOGETHER, WITHOUT_BEN],
            {"ben"},
            WITHOUT_BEN,
            "ben-phone was evicted, and is back",
        ),
        ([TOGETHER, WITHOUT_BEN], set(), WITHOUT_BEN, "ben-phone was evicted by commit 0, but never asked"),
        ([TOGETHER], {"ben"}, WITHOUT_BEN, "ben-phone is still in it in the end"),
        ([TOGETHER, WITHOUT_BEN], {"ben"}, WITH_LAPTOP, "cleo-laptop is not in it in the end"),
    ],
)
def test_each_wrong_is_found_and_told(
    history: list[frozenset[bytes]], left: set[str], expected: frozenset[bytes], told: str
) -> None:
    [violation] = found(history, left=left, expected=expected)

    assert told in violation
