"""What strangers wrote is tested in `tox -e third-party`, where it is installed, under its own settings."""

collect_ignore = ["callboard_vanish"]
