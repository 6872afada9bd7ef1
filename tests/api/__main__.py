"""Write the reference of the public API, and, when a release is made, what it promises."""

from __future__ import annotations

import click
from tests.api.changes import PROMISE, changes, entries, promise, unannounced, write_promise
from tests.api.page import PAGE, page
from tests.api.surface import surface


@click.command()
@click.option("--release", is_flag=True, help="Promise what is there now; part of making a release.")
def main(release: bool) -> None:
    """Write docs/reference/api.md, and say what the changelog has yet to name."""
    present = surface()
    PAGE.write_text(page(present), encoding="utf-8")
    if release:
        write_promise(present)
    for change in unannounced(changes(promise(), present), entries()):
        click.echo(f"{change.name} {change.how}; an entry has to name {', '.join(sorted(change.words))}")
    click.echo(f"wrote {PAGE.name}" + (f" and {PROMISE.name}" if release else ""))


main()
