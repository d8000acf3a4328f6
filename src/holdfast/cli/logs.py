"""Logs: lines for people, JSON for everything else; on stderr or in a file. They carry no payloads."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.output import safe, say
from holdfast.correlation import ids
from holdfast.wiring import home

if TYPE_CHECKING:
    from holdfast.config.config import Config

LONG = 16 << 20


class JsonLines(logging.Formatter):
    """One JSON object per record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of ASCII: JSON escapes whatever a message contains, also half characters."""
        entry = {
            **ids(),
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry)


class Lines(logging.Formatter):
    """One line per record, without control characters; a traceback's lines follow it."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a person reads it."""
        return safe(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class' name
        """A message cannot begin a line that looks like another record."""
        return " ".join(super().formatMessage(record).splitlines())


def configure(form: str, *, as_json: bool, file: Path | None = None) -> None:
    """Send logs from INFO on to stderr, or to a file that is put aside when it is long.

    As `lines`, as `json`, or by `auto` as suits who reads them.
    """
    to_people = file is not None or (sys.stderr.isatty() and not as_json)
    people = form == "lines" or (form == "auto" and to_people)
    handler = logging.StreamHandler() if file is None else _file_handler(file)
    handler.setFormatter(Lines("%(asctime)s %(levelname)s %(message)s") if people else JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def configure_driver(command: str, form: str | None, config: Config, *, as_json: bool) -> None:
    """A driver's logs: where a person looks on, from INFO on into `COMMAND.log`, and only warnings to the
    terminal; otherwise, and where a form is asked for, as `configure`."""
    if form is not None or not sys.stderr.isatty():
        configure(form or config.log_format, as_json=as_json)
        return
    folder = home() / "logs" if config.log_folder is None else Path(config.log_folder)
    file = folder / f"{command}.log"
    configure(config.log_format, as_json=as_json, file=file)
    people = logging.StreamHandler()
    people.setLevel(logging.WARNING)
    people.setFormatter(Lines("%(levelname)s %(message)s"))
    logging.getLogger().addHandler(people)
    say(f"log: {file}")


def _file_handler(file: Path) -> logging.Handler:
    file.parent.mkdir(parents=True, exist_ok=True)
    return RotatingFileHandler(file, maxBytes=LONG, backupCount=1, encoding="utf-8")
