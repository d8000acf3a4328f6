"""Logs on stderr: lines for people at a terminal, JSON for everything else. They carry no payloads."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import orjson

from holdfast.cli.output import safe


class JsonLines(logging.Formatter):
    """One JSON object per record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line; JSON escapes whatever a message contains."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return orjson.dumps(entry, default=str).decode()


class Lines(logging.Formatter):
    """One line per record, without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a person reads it."""
        return safe(super().format(record))


def configure(*, as_json: bool) -> None:
    """Send logs from INFO on to stderr."""
    people = sys.stderr.isatty() and not as_json
    handler = logging.StreamHandler()
    handler.setFormatter(Lines("%(asctime)s %(levelname)s %(message)s") if people else JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
