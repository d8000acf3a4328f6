"""Names for people: of a channel or of a consumer, on every store, with an entry in the audit."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.dlq.session import with_letters
from holdfast.cli.options import ConfigFile, Urls
from holdfast.cli.output import say, write_json
from holdfast.deadletters import DeadLetters, Operations
from holdfast.model.errors import NotFound

DisplayName = Annotated[str, typer.Argument(metavar="TEXT", help="The name; empty takes it away.")]


def set_display(
    channel: str, consumer: str | None, text: str, by: str, urls: Urls, config: ConfigFile, as_json: bool
) -> None:
    """Set it wherever the channel or the consumer is; `NotFound` where no store knows it."""

    async def work(letters: DeadLetters) -> None:
        missing, known = None, 0
        for store in await letters.stores():
            try:
                await store.set_display(channel, consumer, text)
                known += 1
            except NotFound as error:
                missing = error
        if not known and missing is not None:
            raise missing
        target = channel if consumer is None else f"{channel}/{consumer}"
        await (await Operations(letters).audit()).did(by, "name", target)

    with_letters(urls, config, None, (), work)
    if as_json:
        write_json({"channel": channel, "consumer": consumer, "name": text})
    else:
        what = channel if consumer is None else f"{consumer} of {channel}"
        say(f"{what} is called {text!r}" if text else f"{what} has no other name")
