"""Write the generated pages from their sources, or check that they are up to date (`--check`)."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import yaml
from typer.testing import CliRunner

from holdfast.cli.program import program
from holdfast.config.fields import KeyRow, sections
from holdfast.failpoints import KNOWN
from holdfast.server.app import bare_app
from holdfast.server.catalog import GROUPS, MetricGroup
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
| 4 | done, and something is missing: `ingest --once`, `ingest repair`, `archive repair`, `chaos run` |
| 130, 143 | interrupted by Ctrl-C, or by SIGTERM |
"""

CONFIGURATION = """\
# Configuration

<!-- Written by `make docs` from the models themselves: change those, not this page. -->

One YAML file, named by `--config` or `HOLDFAST_CONFIG`. What comes first here wins:

1. flags: `--url`, and for `holdfast up` also `--host` and `--port`
2. `HOLDFAST_…` variables; two underscores lead into a section: `HOLDFAST_SWEEPER__INTERVAL=10s`. For
   `ingest.wal` also [`CONSUMER_WAL_…`](ingest.md#knobs), which goes before the other name
3. the file
4. for `url` only: `DATABASE_URL`
5. the defaults; with neither a file nor a store, those of [the private
   store](operations.md#everything-with-one-command)

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

METRICS = """\
# Metrics

<!-- Written by `make docs` from the catalog itself: change that, not this page. -->

`/metrics` of every instance reads the stores at the moment of the scrape, so that all tell the same; only
what stands under [This process](#this-process) is each one's own. All stores, and all readings of one, are
asked at once. A store that does not answer within 2 s has `holdfast_store_up` 0 and nothing else; a reading
that takes more than 5 s is missing, and `holdfast_scrape_failed` says so. The number of calls does not depend
on how many jobs there are. For each store it is 8, and one for each channel and each cursor (of either at
most 500) and, on Redis and NATS, each consumer; three more on the first store.

Ages are measured by the store's clock. Labels have bounded values: names of channels and consumers, places of
stores (`partition`, from 0), words of this page. What to watch, and what to do, is in
[operations](operations.md#what-to-watch).
"""

FAILPOINTS = """\
# Failpoints

<!-- Written by `make docs` from the failpoints themselves: change those, not this page. -->

Places in the code where a test can make the process die (`kill`), stop (`stop`), fail (`raise`) or do
something of its own. Off, they cost a look into a dictionary. In a test
`failpoints.active("worker.after_claim", "raise")` is a context manager; for a process that a test starts
there is a variable, where a number skips that many hits first:

```
HOLDFAST_FAILPOINTS="worker.after_claim=kill;publish.after_commit=raise:2" holdfast worker shop:app
```
"""


def commands() -> Iterator[list[str]]:
    """The path of every command, in the order of the help page."""
    root = typer.main.get_command(program())
    for name, command in getattr(root, "commands", {}).items():
        below = getattr(command, "commands", {})
        if not below or getattr(command, "invoke_without_command", False):
            yield [name]
        yield from ([name, each] for each in below)


def help_page(path: list[str]) -> str:
    """What `--help` prints, at a fixed width."""
    answer = CliRunner().invoke(
        program(*path[:1]), [*path, "--help"], prog_name="holdfast", env={"COLUMNS": "100", "TERM": "dumb"}
    )
    return "\n".join(line.rstrip() for line in answer.output.strip().splitlines())


def command_page() -> str:
    """Every command's help."""
    sections = [f"## holdfast {' '.join(path)}\n\n```\n{help_page(path)}\n```\n" for path in commands()]
    return "\n".join([COMMANDS, f"```\n{help_page([])}\n```\n", *sections])


def configuration_page() -> str:
    """Every key of the configuration."""
    return "\n".join([CONFIGURATION, *(section(*each) for each in sections())])


def section(path: str, meaning: str, rows: list[KeyRow]) -> str:
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


def metrics_page() -> str:
    """Every metric family, by group."""
    return "\n".join([METRICS, *map(metric_group, GROUPS)])


def metric_group(group: MetricGroup) -> str:
    """One group's families, as a table."""
    lines = [f"## {group.title}", "", group.cost, ""]
    lines += ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for each in group.families:
        name = f"{each.name}_total" if each.kind == "counter" else each.name
        lines.append(f"| `{name}` | {each.kind} | {', '.join(each.labels)} | {each.meaning} |")
    return "\n".join([*lines, ""])


def failpoints_page() -> str:
    """Every failpoint."""
    lines = [FAILPOINTS, "| failpoint | where the process is |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {where} |" for name, where in KNOWN.items()), ""])


def api_page() -> str:
    """The OpenAPI document."""
    about = "# Written by `make docs` from the routes themselves: change those, not this file.\n"
    return about + yaml.safe_dump(bare_app().openapi(), sort_keys=False, allow_unicode=True, width=110)


PAGES = {
    "cli.md": command_page,
    "configuration.md": configuration_page,
    "failpoints.md": failpoints_page,
    "metrics.md": metrics_page,
    "open-api-spec/api-spec.yaml": api_page,
    "system-events.md": system_events_page,
}


def main(arguments: list[str]) -> int:
    """Write the pages, or say how they differ."""
    failed = 0
    for name, page in PAGES.items():
        if arguments == ["--check"]:
            failed |= drifted(name, page())
        else:
            (DOCS / name).parent.mkdir(exist_ok=True)
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
