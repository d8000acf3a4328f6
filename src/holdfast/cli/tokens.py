"""`holdfast tokens`: who may call the server, and the admin's token that is kept under `.holdfast/`."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from holdfast import wiring
from holdfast.bus.client import Bus
from holdfast.cli.options import By, ConfigFile, Json, Urls, examples, flat
from holdfast.cli.output import say, write_json, write_line, write_table
from holdfast.cli.session import with_bus
from holdfast.config.config import Config
from holdfast.deadletters.audit import Audit
from holdfast.embedded import files
from holdfast.model.duration import parse_duration
from holdfast.model.errors import HoldfastError, InvalidInput, NotFound
from holdfast.model.redact import mask
from holdfast.model.scopes import ADMIN, scope_of
from holdfast.server.auth.sessions import Sessions, link_to, local_url
from holdfast.server.auth.tokens import Issued, Token, Tokens
from holdfast.wiring import HOME, home

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
    issued = _change_token(
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
    issued = _change_token(urls, config, by, "rotate token", lambda t: t.rotate(token_id, kept))
    _show_issued(issued, as_json)
    file = keep_rotated(wiring.configured(flat(urls), config), issued)
    if file is not None:
        say(f"{file} has it now")


@app.command(epilog=examples("holdfast tokens revoke 0123456789abcdef"))
def revoke(token_id: Id, by: By, urls: Urls = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """End a token, at once and on every server."""
    token = _change_token(urls, config, by, "revoke token", lambda t: t.revoke(token_id))
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
    base = server_address(effective) if address is None else address

    async def work(bus: Bus) -> str:
        tokens = Tokens(bus, effective.namespace)
        token = await (_kept_token(tokens, effective) if token_id is None else tokens.valid(token_id))
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


async def _kept_token(tokens: Tokens, config: Config) -> Token:
    """The first token, where it is kept here and valid."""
    text = read_kept_token(config)
    token = None if text is None else await tokens.verify(text)
    if token is None:
        raise NotFound("no valid token is kept here; name one by its ID: holdfast tokens list has them")
    return token


def _audit(bus: Bus, namespace: str) -> Audit:
    return Audit(bus.partitions.all[0].backend, namespace)


def _change_token(
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


async def print_sign_in(bus: Bus, config: Config, address: str) -> None:
    """Say how a person gets in: by a link that is valid once. Where there is no token yet, one is made."""
    tokens = Tokens(bus, config.namespace)
    try:
        token = await first_token(bus, config)
        if token is None:
            say("to sign in: holdfast tokens link ID, with an ID of holdfast tokens list")
            return
        sessions = Sessions(bus, config.namespace, tokens, config.server.session_lifetime)
        link = link_to(address, await sessions.link(token))
    except HoldfastError as error:  # a store that comes later: the rest can begin
        say(f"there is no link to sign in yet: {error}; holdfast tokens link makes one")
        return
    say(f"sign in, once within ten minutes: {link}")
    say(f"the token for programs is in {token_file(config)}; another link: holdfast tokens link")


async def first_token(bus: Bus, config: Config) -> Token | None:
    """The token that is kept here, if it is valid; a new one of an admin where the store never had any."""
    tokens = Tokens(bus, config.namespace)
    kept = read_kept_token(config)
    token = None if kept is None else await tokens.verify(kept)
    if token is not None or await tokens.exist():
        return token
    home()  # before the token: one that cannot be kept is of no use
    issued = await tokens.create(ADMIN, name="made by holdfast up")
    files.write_private(token_file(config), f"{issued.text}\n")
    audit = Audit(bus.partitions.all[0].backend, config.namespace)
    await audit.did("holdfast up", "create token", f"token {issued.token.id}: {issued.token.scope}")
    return issued.token


def token_file(config: Config) -> Path:
    """Where the token for a store is kept: `.holdfast/token` for the private one."""
    if not config.url:
        return HOME / "token"
    store = "\n".join([config.namespace, mask(config.url[0])])
    return HOME / f"token-{hashlib.sha256(store.encode()).hexdigest()[:12]}"


def keep_rotated(config: Config, issued: Issued) -> Path | None:
    """Where the token is kept here, keep its new secret; returns the file, or None where another one is."""
    kept = read_kept_token(config) or ""
    if not kept.startswith(f"hf_{issued.token.id}_"):
        return None
    files.write_private(token_file(config), f"{issued.text}\n")
    return token_file(config)


def address_file(config: Config) -> Path:
    """Where a server that runs here says how browsers reach it, beside the token."""
    return HOME / token_file(config).name.replace("token", "address", 1)


@contextmanager
def address_published(config: Config, address: str) -> Iterator[None]:
    """Say so while a server runs, where there is a `.holdfast/`: its port may not be the configured one."""
    if not HOME.is_dir():
        yield
        return
    file = address_file(config)
    files.write_private(file, f"{address}\n")
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def server_address(config: Config) -> str:
    """How browsers reach the server that runs here; else what the configuration says."""
    try:
        return address_file(config).read_text().strip()
    except FileNotFoundError:
        return local_url(config.server.host, config.server.port)


def read_kept_token(config: Config) -> str | None:
    """The text of the token that is kept here, if there is one.

    Raises `InvalidInput` where the file is a link, or somebody else's: they would choose who signs in.
    """
    file = token_file(config)
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInput(f"the token in {file} cannot be read: {error.strerror}; remove the file") from None
    with open(descriptor) as opened:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise InvalidInput(f"{file} belongs to another user; remove it")
        text = opened.read(200).strip()
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(descriptor, 0o600)
            say(f"others could read {file} until now; give it a new secret: {_rotation(text)}")
    return text


def _rotation(text: str) -> str:
    return f"holdfast tokens rotate {''.join(text.split('_')[1:2])} --overlap 0s"
