"""Install a plugin from its own checkout beside this engine, and run its tests: `tox -e downstream -- PATH`.

It shows before a release what the engine as it is would do to a plugin, and its author what is to come.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

import click

_LEFT_OUT = shutil.ignore_patterns(".git", ".tox", ".venv", "build", "dist", "*.egg-info", "__pycache__")


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("plugin")
@click.argument("pytest_arguments", nargs=-1, type=click.UNPROCESSED)
def main(plugin: str, pytest_arguments: tuple[str, ...]) -> None:
    """Test PLUGIN, a folder as pip takes it, such as `../plugin` or `../plugin[test]` with an extra of its own."""
    path, extras = re.findall(r"^(.*?)(\[[^\]]*\])?/?$", plugin)[0]
    checkout = Path(path)
    if not any((checkout / name).is_file() for name in ("pyproject.toml", "setup.cfg", "setup.py")):
        raise click.UsageError(f"{path} is no checkout of a plugin: it has neither pyproject.toml nor setup.py")
    with tempfile.TemporaryDirectory(prefix="callboard-downstream-") as folder:
        copy = Path(folder) / checkout.resolve().name
        shutil.copytree(checkout, copy, ignore=_LEFT_OUT)  # so that building it leaves nothing behind
        constraints = Path(folder) / "constraints.txt"
        ours = _ours()
        constraints.write_text("".join(f"{line}\n" for line in ours), encoding="utf-8")
        if _python("-m", "pip", "install", "--quiet", "--constraint", constraints, f"{copy}{extras}"):
            raise click.ClickException(f"{path} cannot be installed beside {', '.join(ours)}; pip says why")
        sys.exit(_python("-P", "-m", "pytest", "-p", "no:cacheprovider", *pytest_arguments, folder=copy))


def _ours() -> list[str]:
    """Return what must not be replaced by a published version: this engine, and our plugins."""
    installed = {found.name: found.version for found in distributions() if found.name.startswith("callboard")}
    return sorted(f"{name}=={version}" for name, version in installed.items())


def _python(*arguments: str | Path, folder: Path | None = None) -> int:
    return subprocess.run([sys.executable, *arguments], cwd=folder, check=False).returncode


main()
