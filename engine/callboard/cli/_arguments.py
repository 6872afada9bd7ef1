"""Arguments and options that several commands share: ids, and which rows to list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from callboard._kinds import check_group_id

F = TypeVar("F", bound=Callable[..., Any])

_MAX_ID = 2**63 - 1  # SQL's largest integer
_MAX_ROWS = 1_000_000  # they are all in memory at once


class _RowId(click.IntRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is no ID: a whole number from 1 on, as the listings show it", param, ctx)


ROW_ID = _RowId(1, _MAX_ID)
"""The id of a row."""

limit_option = click.option(
    "--limit", type=click.IntRange(1, _MAX_ROWS), default=100, show_default=True, help="Rows at most."
)
kind_option = click.option("--kind", help="Only tasks of this kind.")
payload_option = click.option(
    "--payload", "with_payload", is_flag=True, help="Show the payload, decoded if its kind is known here."
)
id_argument = click.argument("row_id", type=ROW_ID, metavar="ID")


def as_group_id(_context: click.Context, _parameter: click.Parameter, digits: str | None) -> bytes | None:
    """Be the callback of a group's id, which is given in hex."""
    try:
        return None if digits is None else check_group_id(bytes.fromhex(digits))
    except ValueError as error:
        raise click.BadParameter(f"{digits!r} is no group id: 1 to 255 bytes in hex, such as 0a1b2c") from error


def page_options(command: F) -> F:
    """Add the options that say which tasks to list."""
    for option in (
        click.option(
            "--after", "after_id", type=click.IntRange(0, _MAX_ID), default=0, help="Only ids above this."
        ),
        limit_option,
        click.option("--group", "group_id", metavar="HEX", callback=as_group_id, help="Only tasks of this group."),
        kind_option,
    ):
        command = option(command)
    return command
