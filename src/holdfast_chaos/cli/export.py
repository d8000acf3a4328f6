"""`holdfast chaos export`: the history of a run for somebody else's checker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import examples
from holdfast.cli.output import say
from holdfast.model.errors import InvalidInput

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="What --keep kept of one store.")]
File = Annotated[Path, typer.Option("--edn", metavar="FILE", help="Where to write it.")]


def export(folder: Folder, edn: File) -> None:
    """Write the history of a run in the EDN form that Jepsen's checkers read.

    One operation per line, in order: invocations, and what came of them. A call without an answer has only
    the former.
    """
    from holdfast_chaos import edn as form
    from holdfast_chaos import history

    if not any(folder.glob("*.jsonl")):
        raise InvalidInput(
            f"{folder} has no histories (*.jsonl); run `holdfast chaos run --keep FOLDER`, and name the "
            "folder of one store in there"
        )
    lines = list(form.lines(history.read(folder)))
    edn.write_text("".join(f"{line}\n" for line in lines))
    say(f"written: {edn}, {len(lines):,} operations")


def register(app: typer.Typer) -> None:
    shown = examples(
        "holdfast chaos run --backend nats --keep runs",
        "holdfast chaos export runs/holdfast-chaos-nats-8h2k --edn history.edn",
    )
    app.command(epilog=shown)(export)
