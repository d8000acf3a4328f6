"""The first token: made once, kept for this user alone, believed where nobody else could write it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.tokens import first_token, read_kept_token, token_file
from holdfast.config.config import Config
from holdfast.model.errors import InvalidInput
from holdfast.server.auth.tokens import Tokens
from holdfast.wiring import home


@pytest.fixture
def config(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    """A store without tokens, in an empty folder, under the worst umask."""
    monkeypatch.chdir(tmp_path)
    before = os.umask(0)
    yield Config(url=database)  # type: ignore[arg-type]
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_it_is_made_once_and_kept_for_its_user(config: Config) -> None:
    async with holdfast.connect(config=config) as bus:
        first = await first_token(bus, config)
        assert first is not None
        assert (mode(Path(".holdfast")), mode(token_file(config))) == (0o700, 0o600)
        again = await first_token(bus, config)
        assert again == first
        [token] = await Tokens(bus, "gbe").all()
        assert token.id == first.id
        assert str(token.scope) == "admin"


async def test_where_tokens_exist_none_is_made(config: Config) -> None:
    async with holdfast.connect(config=config) as bus:
        first = await first_token(bus, config)
        assert first is not None
        await Tokens(bus, "gbe").revoke(first.id)
        assert await first_token(bus, config) is None
        token_file(config).unlink()
        assert await first_token(bus, config) is None
        assert len(await Tokens(bus, "gbe").all()) == 1


async def test_each_store_has_a_file_of_its_own(config: Config) -> None:
    other = config.model_copy(update={"namespace": "other"})
    assert len({token_file(each) for each in (config, other, Config())}) == 3
    assert token_file(Config()) == Path(".holdfast/token")
    secret = Config(url="postgresql://u:one@h/d"), Config(url="postgresql://u:two@h/d")  # type: ignore[arg-type]
    assert len({token_file(each) for each in secret}) == 1  # a new password is the same store


async def test_a_file_that_others_could_read_is_closed_and_told(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    async with holdfast.connect(config=config) as bus:
        first = await first_token(bus, config)
        assert first is not None
        token_file(config).chmod(0o640)
        assert read_kept_token(config) is not None
        assert mode(token_file(config)) == 0o600
        assert f"holdfast tokens rotate {first.id}" in capsys.readouterr().err


def test_a_link_or_somebody_elses_file_is_not_believed(config: Config, tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    planted.write_text("hf_x")
    token_file(config).parent.mkdir()
    token_file(config).symlink_to(planted)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_kept_token(config)
    if os.geteuid() == 0:
        token_file(config).unlink()
        token_file(config).write_text("hf_x")
        os.chown(token_file(config), 65534, 65534)
        with pytest.raises(InvalidInput, match="belongs to another user"):
            read_kept_token(config)


async def test_a_planted_link_is_replaced_and_not_written_through(config: Config, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    home()
    draft = token_file(config).with_name(token_file(config).name + ".new")
    draft.symlink_to(elsewhere)
    async with holdfast.connect(config=config) as bus:
        assert await first_token(bus, config) is not None
    assert elsewhere.read_text() == "mine"
    assert not token_file(config).is_symlink()
    assert mode(Path(".holdfast")) == 0o700
