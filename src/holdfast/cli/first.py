"""The first token: made where a store has none, and kept under `.holdfast/` for this user alone."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.bus.client import Bus
from holdfast.cli.output import say
from holdfast.config.config import Config
from holdfast.config.urls import mask
from holdfast.deadletters.audit import Audit
from holdfast.embedded import private
from holdfast.model.errors import HoldfastError, InvalidInput
from holdfast.model.scopes import ADMIN
from holdfast.server.auth.sessions import Sessions, address_of, link_to
from holdfast.server.auth.token import Issued, Token
from holdfast.server.auth.tokens import Tokens
from holdfast.wiring import HOME, home


async def welcome(bus: Bus, config: Config, address: str) -> None:
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
    kept = read_token(config)
    token = None if kept is None else await tokens.verify(kept)
    if token is not None or await tokens.exist():
        return token
    home()  # before the token: one that cannot be kept is of no use
    issued = await tokens.create(ADMIN, name="made by holdfast up")
    private.write(token_file(config), f"{issued.text}\n")
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
    kept = read_token(config) or ""
    if not kept.startswith(f"hf_{issued.token.id}_"):
        return None
    private.write(token_file(config), f"{issued.text}\n")
    return token_file(config)


def address_file(config: Config) -> Path:
    """Where a server that runs here says how browsers reach it, beside the token."""
    return HOME / token_file(config).name.replace("token", "address", 1)


@contextmanager
def reachable(config: Config, address: str) -> Iterator[None]:
    """Say so while a server runs, where there is a `.holdfast/`: its port may not be the configured one."""
    if not HOME.is_dir():
        yield
        return
    file = address_file(config)
    private.write(file, f"{address}\n")
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def address_here(config: Config) -> str:
    """How browsers reach the server that runs here; else what the configuration says."""
    try:
        return address_file(config).read_text().strip()
    except FileNotFoundError:
        return address_of(config.server.host, config.server.port)


def read_token(config: Config) -> str | None:
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
