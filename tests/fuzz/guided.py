"""What atheris runs: the pure harness, with the coverage of the modules that read a row."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["callboard"]):
    from tests.fuzz.checking import check_bytes
    from tests.fuzz.rows import row_of


def check(data: bytes) -> None:
    """Check one row, and name it when something is wrong."""
    try:
        check_bytes(data)
    except BaseException:
        print(f"--row {data.hex()}\n{row_of(data)}", file=sys.stderr)
        raise


if __name__ == "__main__":
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()
