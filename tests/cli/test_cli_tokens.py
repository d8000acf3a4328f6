"""`holdfast tokens`: issued once, listed without secrets, rotated, revoked, and audited."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from shell import Run

from holdfast.bus.sync import SyncBus
from holdfast.cli.tokens import address_file, address_published, read_kept_token, token_file
from holdfast.config.config import Config
from holdfast.embedded import files
from holdfast.wiring import home

_TEXT = re.compile(r"hf_[0-9a-f]{16}_[A-Za-z0-9_-]{43}")


def test_a_token_is_printed_once_and_listed_without_its_secret(run: Run) -> None:
    made = run(
        "tokens", "create", "consumer", "orders", "billing", "--name", "the worker", "--expires", "90d"
    )
    assert made.code == 0
    text = made.out.strip()
    assert _TEXT.fullmatch(text)
    assert "consumer orders billing: keep it, it is not shown again" in made.err
    listed = run("tokens", "list")
    assert text.split("_")[1] in listed.out
    assert "the worker" in listed.out
    [token] = run("tokens", "list", "--json").json
    assert (token["scope"], token["channel"], token["consumer"]) == ("consumer", "orders", "billing")
    assert (token["state"], token["name"]) == ("valid", "the worker")
    assert token["expires_at"] > token["created_at"]
    for told in (listed, run("tokens", "list", "--json")):
        assert text.split("_", 2)[2] not in told.out + told.err
        assert "hash" not in told.out


def test_tokens_in_json(run: Run) -> None:
    made = run("tokens", "create", "producer", "orders.*", "--json").json
    assert _TEXT.fullmatch(made["token"])
    assert (made["scope"], made["channel"], made["expires_at"]) == ("producer", "orders.*", None)
    rotated = run("tokens", "rotate", made["id"], "--overlap", "1d", "--json").json
    assert rotated["id"] == made["id"]
    assert rotated["token"] != made["token"]
    assert rotated["previous_until"] is not None
    revoked = run("tokens", "revoke", made["id"], "--json").json
    assert revoked["revoked_at"] is not None
    assert "token" not in revoked
    [token] = run("tokens", "list", "--json").json
    assert token["state"] == "revoked"


def test_a_revoked_token_is_not_rotated_and_can_be_revoked_again(run: Run) -> None:
    made = run("tokens", "create", "reader", "--json").json
    first = run("tokens", "revoke", made["id"], "--json").json
    assert run("tokens", "revoke", made["id"], "--json").json == first
    refused = run("tokens", "rotate", made["id"])
    assert (refused.code, refused.out) == (2, "")
    assert "is revoked; create another one" in refused.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["create", "root"], 2, "scope 'root' is unknown"),
        (["create", "channel"], 2, "is for one channel"),
        (["create", "channel", "orders.*"], 2, "is not usable"),
        (["create", "admin", "--expires", "soon"], 2, "soon"),
        (["create", "admin", "--name", "a\nb"], 2, "can be printed"),
        (["revoke", "0123456789abcdef"], 1, "there is no token"),
        (["rotate", "../../etc"], 1, "there is no token"),
    ],
)
def test_what_cannot_be_is_refused_in_words(run: Run, arguments: list[str], code: int, message: str) -> None:
    answer = run("tokens", *arguments)
    assert answer.code == code
    assert message in answer.err
    assert run("tokens", "list", "--json").json == []


def test_the_audit_says_who_changed_a_token_and_not_its_secret(run: Run, hf: SyncBus) -> None:
    made = run("tokens", "create", "admin", "--by", "ada", "--json").json
    rotated = run("tokens", "rotate", made["id"], "--by", "ada", "--json").json
    run("tokens", "revoke", made["id"], "--by", "grace")
    entries = hf.read("gbe.events.system.audit")
    told = [entry.event.json() for entry in entries]
    assert [(each["actor"], each["action"], each["target"]) for each in told] == [
        ("ada", "create token", f"token {made['id']}: admin"),
        ("ada", "rotate token", f"token {made['id']}: admin"),
        ("grace", "revoke token", f"token {made['id']}: admin"),
    ]
    for issued in (made, rotated):
        assert all(issued["token"].split("_", 2)[2].encode() not in entry.event.data for entry in entries)


def test_the_token_that_is_kept_here_is_rotated_here_too(
    run: Run, database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    config = Config(url=database)  # type: ignore[arg-type]
    made, other = (run("tokens", "create", "admin", "--json").json for _ in range(2))
    files.write_private(home() / token_file(config).name, made["token"] + "\n")
    assert "has it now" not in run("tokens", "rotate", other["id"]).err
    assert read_kept_token(config) == made["token"]
    rotated = run("tokens", "rotate", made["id"], "--overlap", "0s")
    assert read_kept_token(config) == rotated.out.strip()
    assert f"{token_file(config)} has it now" in rotated.err
    assert token_file(config).stat().st_mode & 0o777 == 0o600
    assert run("tokens", "link").code == 0


def test_a_link_is_printed_with_the_address_of_the_server_that_runs_here(
    run: Run, database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    made = run("tokens", "create", "reader", "--json").json
    config = Config(url=database)  # type: ignore[arg-type]
    home()
    with address_published(config, "http://127.0.0.1:12345"):
        assert "http://127.0.0.1:12345/login?link=" in run("tokens", "link", made["id"]).out
        assert address_file(config).stat().st_mode & 0o777 == 0o600
    assert "http://127.0.0.1:8420/login?link=" in run("tokens", "link", made["id"]).out


def test_a_link_is_printed_with_the_address_of_the_server(run: Run, hf: SyncBus) -> None:
    made = run("tokens", "create", "reader", "--json").json
    link = run("tokens", "link", made["id"], "--by", "ada")
    assert re.fullmatch(r"http://127\.0\.0\.1:8420/login\?link=[A-Za-z0-9_-]{43}\n", link.out)
    assert "once, for ten minutes" in link.err
    other = run("tokens", "link", made["id"], "--address", "https://ops.example/", "--json").json["link"]
    assert re.fullmatch(r"https://ops\.example/login\?link=[A-Za-z0-9_-]{43}", other)
    told = [entry.event.json() for entry in hf.read("gbe.events.system.audit")]
    assert ("ada", "make link", f"token {made['id']}: reader") in [
        (each["actor"], each["action"], each["target"]) for each in told
    ]
    assert all(code.split("=")[1] not in str(told) for code in (link.out.strip(), other))
    run("tokens", "revoke", made["id"])
    assert run("tokens", "link", made["id"]).code == 2
    assert run("tokens", "link", "0123456789abcdef").code == 1
