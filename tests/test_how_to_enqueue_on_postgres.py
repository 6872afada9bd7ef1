"""What the how-to shows is run here, on a real server and with the README's plugin."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from tests import pages
from tests.postgres import postgres_url, psycopg

__all__ = ["postgres_url"]

HOW_TO = pages.files("docs/how-to/enqueue-on-postgres.md")
SHOWN_URL = "postgresql://shop@db.example/shop"

RUN = """
import importlib
import sys

import django
from django.conf import settings
from django.db import connection
from psycopg.conninfo import conninfo_to_dict
from shop import URL, engine

given = conninfo_to_dict(URL)
database = {"ENGINE": "django.db.backends.postgresql", "NAME": given.pop("dbname"), "OPTIONS": given}
settings.configure(DATABASES={"default": database})
django.setup()
engine.migrate()
for name in sys.argv[1:]:
    importlib.import_module(name)
connection.close()
engine.run_due()
engine.stop()
"""


def test_each_library_runs_as_it_is_shown(postgres_url: str, tmp_path: Path) -> None:
    """Without what SQLAlchemy's asyncio needs, which there is not everywhere, all but that."""
    sources = {**pages.files("README.md"), **HOW_TO, "run.py": RUN}
    assert SHOWN_URL in sources["shop.py"]
    for name, source in sources.items():
        (tmp_path / name).write_text(source.replace(SHOWN_URL, postgres_url), encoding="utf-8")
    shown = [name.removesuffix(".py") for name in HOW_TO if name != "shop.py"]
    if importlib.util.find_spec("greenlet") is None:
        shown.remove("with_sqlalchemy_async")
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE orders (name TEXT)")

    done = subprocess.run(
        [sys.executable, "-W", "error", "run.py", *shown],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert (done.returncode, done.stderr) == (0, "")
    with psycopg.connect(postgres_url) as connection:
        orders = [name for (name,) in connection.execute("SELECT name FROM orders").fetchall()]
    assert len(orders) == len(shown) - 1
    assert len(HOW_TO) == 8
    assert sorted(done.stdout.splitlines()) == sorted(f"sent: {name}" for name in [*orders, "later"])
