"""Write docs/cli.md from the commands' own help, or check that it is up to date (`--check`)."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

import typer
from typer.testing import CliRunner

from holdfast.cli.program import app

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
HEAD = """\
# The command line

<!-- Written by `make docs` from the commands themselves: change those, not this page. -->

Every command takes `--url` and `--json`. The store comes from `--url`, then from `HOLDFAST_URL`, then from
`DATABASE_URL`; without any, a private PostgreSQL is started under `.holdfast/`. Everybody on a machine can
read its command lines: a URL with a password belongs into the environment.

Results go to stdout, messages to stderr.

| exit code | means |
|---|---|
| 0 | done |
| 1 | failed, refused or not found; for `check` and `demo`: something is wrong |
| 2 | wrong usage or input |
| 3 | the store did not answer |
| 130 | interrupted |
"""


def commands() -> Iterator[list[str]]:
    """The path of every command, in the order of the help page."""
    root = typer.main.get_command(app)
    for name, command in getattr(root, "commands", {}).items():
        below = getattr(command, "commands", None)
        yield from ([name, each] for each in below) if below else [[name]]


def help_page(path: list[str]) -> str:
    """What `--help` prints, at a fixed width."""
    answer = CliRunner().invoke(
        app, [*path, "--help"], prog_name="holdfast", env={"COLUMNS": "100", "TERM": "dumb"}
    )
    return "\n".join(line.rstrip() for line in answer.output.strip().splitlines())


def page() -> str:
    """The whole page."""
    sections = [f"## holdfast {' '.join(path)}\n\n```\n{help_page(path)}\n```\n" for path in commands()]
    return "\n".join([HEAD, f"```\n{help_page([])}\n```\n", *sections])


def main(arguments: list[str]) -> int:
    """Write the page, or say how it differs."""
    fresh = page()
    if arguments != ["--check"]:
        PAGE.write_text(fresh)
        return 0
    old = PAGE.read_text() if PAGE.exists() else ""
    drift = difflib.unified_diff(
        old.splitlines(), fresh.splitlines(), "docs/cli.md", "the commands", "", "", 1
    )
    if lines := list(drift):
        sys.stderr.write("\n".join([*lines, "docs/cli.md has drifted from the commands: run make docs", ""]))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
