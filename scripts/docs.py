"""Write the generated pages from their sources, or check that they are up to date (`--check`)."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from holdfast.cli.program import app
from holdfast.config.fields import Row, sections
from holdfast.upkeep.announcements import ALL, Announcement

DOCS = Path(__file__).parent.parent / "docs"
COMMANDS = """\
# The command line

<!-- Written by `make docs` from the commands themselves: change those, not this page. -->

Every command that connects takes `--url`, `--config` and `--json`. The store comes from `--url`, then from
`HOLDFAST_URL`, then from [the configuration](configuration.md), then from `DATABASE_URL`; without any, a
private PostgreSQL is started under `.holdfast/`. Everybody on a machine can read its command lines: a URL
with a password belongs into the environment.

Results go to stdout, messages to stderr.

| exit code | means |
|---|---|
| 0 | done |
| 1 | failed, refused or not found; for `check` and `demo`: something is wrong |
| 2 | wrong usage or input |
| 3 | the store did not answer |
| 130 | interrupted |
"""

CONFIGURATION = """\
# Configuration

<!-- Written by `make docs` from the models themselves: change those, not this page. -->

One YAML file, named by `--config` or `HOLDFAST_CONFIG`. What comes first here wins:

1. flags: `--url`, and for `holdfast up` also `--host` and `--port`
2. `HOLDFAST_…` variables; two underscores lead into a section: `HOLDFAST_SWEEPER__INTERVAL=10s`
3. the file
4. for `url` only: `DATABASE_URL`
5. the defaults

A variable for a mapping or a list holds JSON: `HOLDFAST_RETENTION='{"gbe.events.*": "7d"}'`. Mappings are
joined with the file's, a list takes the place of the file's. An empty variable counts as none.

`holdfast config check FILE` names every problem of a file with line and column. `holdfast config show` prints
what holds, and where each value comes from. [The example](../examples/holdfast.yaml) has every key. In
Python: `holdfast.connect(config="holdfast.yaml")`.

- **Durations** are `250ms`, `30s`, `5m`, `1h30m`, `7d`, `2w`, or a number of seconds.
- **Sizes** are `512MiB` (powers of two), `10GB` (powers of ten), or a number of bytes.
- **Patterns** select channels: `*` is one token, `>` at the end is a tail. One that begins with either needs
  quotes in YAML.
- Unknown keys, and keys that are there twice, are refused. A section with nothing under it has its defaults.
"""

SYSTEM_EVENTS = """\
# System events

<!-- Written by `make docs` from the models themselves: change those, not this page. -->

What Holdfast tells about itself stands on channels of its own, `gbe.events.system.*` (the first token is the
configured `namespace`), as events with the source `holdfast`, a type such as `holdfast.sweep` and JSON data.
They can be read, worked on, archived and kept like all others. A consumer ignores fields that it does not
know.
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


def command_page() -> str:
    """Every command's help."""
    sections = [f"## holdfast {' '.join(path)}\n\n```\n{help_page(path)}\n```\n" for path in commands()]
    return "\n".join([COMMANDS, f"```\n{help_page([])}\n```\n", *sections])


def configuration_page() -> str:
    """Every key of the configuration."""
    return "\n".join([CONFIGURATION, *(section(*each) for each in sections())])


def section(path: str, meaning: str, rows: list[Row]) -> str:
    """One section's keys, as a table."""
    lines = [f"## {path or 'At the top'}", "", meaning, ""]
    if rows:
        lines += ["| key | type | default | meaning | variable |", "|---|---|---|---|---|"]
    for row in rows:
        default = f"`{row.default}`" if row.default not in ("", "required") else row.default
        lines.append(f"| `{row.key}` | {row.type} | {default} | {row.meaning} | `{row.variable}` |")
    return "\n".join([*lines, ""])


def system_events_page() -> str:
    """The schema of every system event."""
    return "\n".join([SYSTEM_EVENTS, *(system_event(each) for each in ALL)])


def system_event(kind: type[Announcement]) -> str:
    """One event's fields, as a table."""
    schema = kind.model_json_schema()
    lines = [f"## gbe.events.system.{kind.topic}", "", str(kind.__doc__), ""]
    lines += fields(schema)
    for name, part in schema.get("$defs", {}).items():
        lines += ["", f"`{name}`: {part['description']}", "", *fields(part)]
    return "\n".join([*lines, ""])


def fields(schema: dict[str, Any]) -> Iterator[str]:
    """The fields of an object of JSON Schema."""
    yield from ("| field | type | meaning |", "|---|---|---|")
    for name, field in schema["properties"].items():
        yield f"| `{name}` | {type_of(field)} | {field.get('description', '')} |"


def type_of(field: dict[str, Any]) -> str:
    """A field's type in words."""
    match field:
        case {"anyOf": options}:
            return " or ".join(type_of(option) for option in options)
        case {"enum": words}:
            return " or ".join(f"`{word}`" for word in words)
        case {"$ref": name}:
            return f"`{name.rpartition('/')[2]}`"
        case {"type": "array", "items": items}:
            return f"list of {type_of(items)}"
        case {"type": "object", "additionalProperties": values}:
            return f"mapping to {type_of(values)}"
        case {"format": "date-time"}:
            return "time"
        case {"type": kind}:
            return str(kind)
    raise ValueError(f"a field without a type: {field}")


PAGES = {
    "cli.md": command_page,
    "configuration.md": configuration_page,
    "system-events.md": system_events_page,
}


def main(arguments: list[str]) -> int:
    """Write the pages, or say how they differ."""
    failed = 0
    for name, page in PAGES.items():
        if arguments == ["--check"]:
            failed |= drifted(name, page())
        else:
            (DOCS / name).write_text(page())
    return failed


def drifted(name: str, fresh: str) -> bool:
    """Whether a page is out of date; says how."""
    old = (DOCS / name).read_text() if (DOCS / name).exists() else ""
    drift = difflib.unified_diff(
        old.splitlines(), fresh.splitlines(), f"docs/{name}", "the source", "", "", 1
    )
    if lines := list(drift):
        sys.stderr.write("\n".join([*lines, f"docs/{name} has drifted from its source: run make docs", ""]))
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
