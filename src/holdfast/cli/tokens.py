"""`holdfast tokens`: who may call the server, and what they may do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated, TypeVar

import typer

from holdfast import wiring
from holdfast.bus.client import Bus
from holdfast.cli.dlq.options import By
from holdfast.cli.first import address_here, keep_rotated, read_token
from holdfast.cli.options import ConfigFile, Json, Urls, examples, flat
from holdfast.cli.output import say, write_json, write_line, write_table
from holdfast.cli.session import with_bus
from holdfast.config.config import Config
from holdfast.deadletters.audit import Audit
from holdfast.model.duration import parse_duration
from holdfast.model.errors import NotFound
from holdfast.model.scopes import scope_of
from holdfast.server.auth.sessions import Sessions, link_to
from holdfast.server.auth.token import Issued, Token
from holdfast.server.auth.tokens import Tokens

Changed = TypeVar("Changed", Issued, Token)

app = typer.Typer(
    help="Create, list, rotate and revoke tokens for HTTP, and links that sign browsers in.",
    no_args_is_help=True,
)

Kind = Annotated[str, typer.Argument(metavar="SCOPE", help="admin, producer, channel, consumer or reader.")]
Channel = Annotated[
    str | None,
    typer.Argument(
        metavar="CHANNEL",
        help="For channel and consumer: the channel. For producer and reader: a pattern; default: all.",
    ),
]
Consumer = Annotated[str | None, typer.Argument(metavar="CONSUMER", help="For consumer: its name.")]
Name = Annotated[str, typer.Option("--name", help="What it is for, in words.")]
Expires = Annotated[str | None, typer.Option("--expires", help="Valid for so long, such as 90d.")]
Overlap = Annotated[str, typer.Option("--overlap", help="How long the secret before it stays valid.")]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Where browsers reach the server. Default: the one that runs here, else server.host and port.",
    ),
]
MaybeId = Annotated[
    str | None,
    typer.Argument(metavar="[ID]", help="The token's id. Default: the one that is kept under .holdfast/."),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="The token's id, as `holdfast tokens list` has it.")]


@app.command(
    epilog=examples(
        "holdfast tokens create admin --name laptop --expires 90d",
        "holdfast tokens create producer 'gbe.events.*'",
        "holdfast tokens create consumer orders billing --json",
    )
)
def create(
    scope: Kind,
    by: By,
    channel: Channel = None,
    consumer: Consumer = None,
    name: Name = "",
    expires: Expires = None,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Create a token. It is printed this once; only a hash of it is stored.

    An admin may do everything; a producer publishes; a channel token reads, publishes, consumes and operates
    on its channel; a consumer token reads and consumes as its consumer; a reader reads.
    """
    wanted = scope_of(scope, channel, consumer)
    lifetime = None if expires is None else parse_duration(expires)
    issued = _session(
        urls, config, by, "create token", lambda t: t.create(wanted, name=name, lifetime=lifetime)
    )
    _show_issued(issued, as_json)


@app.command("list", epilog=examples("holdfast tokens list", "holdfast tokens list --json"))
def list_(urls: Urls = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """All tokens, without their secrets, the oldest first."""
    namespace = wiring.configured(flat(urls), config).namespace

    async def work(bus: Bus) -> list[tuple[Token, str]]:
        tokens = Tokens(bus, namespace)
        now = await tokens.now()
        return [(token, token.state(now)) for token in await tokens.all()]

    found = with_bus(urls, config, work)
    if as_json:
        write_json([{**token.to_json(), "state": state} for token, state in found])
    else:
        write_table(
            ["ID", "SCOPE", "STATE", "NAME", "CREATED", "EXPIRES"],
            [
                (token.id, str(token.scope), state, token.name, token.created_at, token.expires_at)
                for token, state in found
            ],
        )


@app.command(epilog=examples("holdfast tokens rotate 0123456789abcdef --overlap 1d"))
def rotate(
    token_id: Id,
    by: By,
    overlap: Overlap = "1h",
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Give a token a new secret. The one before stays valid for the overlap; an older one ends now.

    Where the token is the one that is kept under .holdfast/, the new secret is kept there from now on.
    """
    kept: timedelta = parse_duration(overlap)
    issued = _session(urls, config, by, "rotate token", lambda t: t.rotate(token_id, kept))
    _show_issued(issued, as_json)
    file = keep_rotated(wiring.configured(flat(urls), config), issued)
    if file is not None:
        say(f"{file} has it now")


@app.command(epilog=examples("holdfast tokens revoke 0123456789abcdef"))
def revoke(token_id: Id, by: By, urls: Urls = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """End a token, at once and on every server."""
    token = _session(urls, config, by, "revoke token", lambda t: t.revoke(token_id))
    if as_json:
        write_json(token)
    else:
        say(f"revoked token {token.id}, {token.scope}")


@app.command(
    epilog=examples(
        "holdfast tokens link",
        "holdfast tokens link 0123456789abcdef --address https://holdfast.example",
    )
)
def link(
    by: By,
    token_id: MaybeId = None,
    address: Address = None,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Make a link that signs one browser in with a token, once, within ten minutes.

    Without an ID it is the first token, which `holdfast up` has made and keeps under .holdfast/.

    The token itself does not travel: where the server requires signatures, pages have no other way in.
    """
    effective = wiring.configured(flat(urls), config)
    base = address_here(effective) if address is None else address

    async def work(bus: Bus) -> str:
        tokens = Tokens(bus, effective.namespace)
        token = await (_kept(tokens, effective) if token_id is None else tokens.valid(token_id))
        sessions = Sessions(bus, effective.namespace, tokens, effective.server.session_lifetime)
        made = link_to(base, await sessions.link(token))
        await _audit(bus, effective.namespace).did(by, "make link", f"token {token.id}: {token.scope}")
        return made

    made = with_bus(urls, config, work)
    if as_json:
        write_json({"link": made})
    else:
        say("valid once, for ten minutes")
        write_line(made)


async def _kept(tokens: Tokens, config: Config) -> Token:
    """The first token, where it is kept here and valid."""
    text = read_token(config)
    token = None if text is None else await tokens.verify(text)
    if token is None:
        raise NotFound("no valid token is kept here; name one by its ID: holdfast tokens list has them")
    return token


def _audit(bus: Bus, namespace: str) -> Audit:
    return Audit(bus.partitions.all[0].backend, namespace)


def _session(
    urls: Urls, config: ConfigFile, by: str, action: str, change: Callable[[Tokens], Awaitable[Changed]]
) -> Changed:
    """Change a token, and say in the audit who did it."""
    namespace = wiring.configured(flat(urls), config).namespace

    async def work(bus: Bus) -> Changed:
        changed = await change(Tokens(bus, namespace))
        token = changed if isinstance(changed, Token) else changed.token
        await _audit(bus, namespace).did(by, action, f"token {token.id}: {token.scope}")
        return changed

    return with_bus(urls, config, work)


def _show_issued(issued: Issued, as_json: bool) -> None:
    if as_json:
        write_json({**issued.token.to_json(), "token": issued.text})
    else:
        say(f"token {issued.token.id}, {issued.token.scope}: keep it, it is not shown again")
        write_line(issued.text)
