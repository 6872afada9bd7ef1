"""Surroundings that tests of the engine share."""

import os
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.engine.faults.disks import mount, unmount

import callboard

NOBODY = 65_534
"""The user without rights, by convention on Linux and the BSDs."""


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """Return a folder, and drop root's rights meanwhile, to whom no file is read-only."""
    is_root = os.geteuid() == 0
    version("callboard")  # imports what a start needs, in case that nobody else may read the standard library
    if is_root:
        os.seteuid(NOBODY)
    try:
        if is_root and not os.access(callboard.__file__, os.R_OK, effective_ids=True):
            pytest.skip("without root's rights this installation cannot be read")
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
            Path(folder).chmod(0o700)
    finally:
        if is_root:
            os.seteuid(0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a disk of two megabytes of its own."""
    folder = tmp_path / "disk"
    if not mount(folder, "2m"):
        pytest.skip("this user may not mount a disk")
    yield folder
    unmount(folder)
