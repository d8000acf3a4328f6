"""Problems of a configuration: every one has its place, its path, its value and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config.layers import InvalidConfig
from holdfast.config.load import check, load

NOT_A_DURATION = (
    "is not a duration: a duration is text like '30s', '1h30m' or '7d', a number of seconds, or a timedelta"
)
NOT_A_PATTERN = "tokens are names, '*' for one token, or '>' for the tail, separated by single dots"


def problems(folder: Path, text: str | bytes) -> list[str]:
    """What is wrong with a file of this content, line by line, without the folder."""
    file = folder / "h.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidConfig) as caught:
        check(file)
    assert [str(each) for each in caught.value.problems] == str(caught.value).splitlines()
    return [str(each).removeprefix(f"{folder}/") for each in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "sweeper:\n  intervall: 10s\n",
            "h.yaml:2:3: sweeper.intervall: unknown key, with the value '10s'; did you mean 'interval'?",
        ),
        (
            "colour: red\n",
            "h.yaml:1:1: colour: unknown key, with the value 'red'; known here: url, namespace, "
            "log_format, log_folder, sweeper, retention, dlq, archiver, archival, ingest, tasks, server",
        ),
        ("sweeper:\n  interval: 7x\n", f"h.yaml:2:13: sweeper.interval: '7x' {NOT_A_DURATION}"),
        ("sweeper: {interval: null}", f"h.yaml:1:21: sweeper.interval: None {NOT_A_DURATION}"),
        (
            "sweeper: {lock_ttl: 0s}",
            "h.yaml:1:21: sweeper.lock_ttl: 0s is too short; write a duration above zero, such as '30s'",
        ),
        (
            "sweeper: {history: -1}",
            "h.yaml:1:20: sweeper.history: duration -1 is negative; use zero or more",
        ),
        (
            'retention:\n  "gbe.events.*": soon\n',
            f"h.yaml:2:19: retention.\"gbe.events.*\": 'soon' {NOT_A_DURATION}",
        ),
        (
            'retention:\n  "gbe..x": 7d\n',
            f"h.yaml:2:3: retention.\"gbe..x\": pattern 'gbe..x' is not usable at '': {NOT_A_PATTERN}",
        ),
        (
            'retention:\n  "a.*": {max_bytes: 10GX}\n',
            "h.yaml:2:22: retention.\"a.*\".max_bytes: '10GX' is not a size; write a number of bytes, or "
            "text like '10GB' or '512MiB'",
        ),
        (
            "retention:\n  a: {max_bytes: 0}\n",
            "h.yaml:2:18: retention.a.max_bytes: 0 is too small; write at least 1",
        ),
        (
            "retention:\n  a: {max_bytes: 1GB, on_full: explode}\n",
            "h.yaml:2:32: retention.a.on_full: 'explode' is not known here; write 'refuse' or 'drop_oldest'",
        ),
        (
            "retention:\n  a: {}\n",
            "h.yaml:2:6: retention.a: it keeps everything for ever; write max_age, max_bytes or both",
        ),
        (
            "retention:\n  a: {max_age: 1d, on_full: refuse}\n",
            "h.yaml:2:6: retention.a: on_full is about max_bytes, which is not there; add it, or leave "
            "on_full out",
        ),
        (
            "retention: [a]",
            "h.yaml:1:12: retention: ['a'] is of the wrong kind; write a mapping: one 'name: value' per line",
        ),
        (
            "sweeper: fast",
            "h.yaml:1:10: sweeper: 'fast' is of the wrong kind; write a mapping: one 'key: value' per line",
        ),
        (
            "sweeper:\n  guard_groups:\n    a..b: [x]\n",
            f"h.yaml:3:5: sweeper.guard_groups.\"a..b\": pattern 'a..b' is not usable at '': {NOT_A_PATTERN}",
        ),
        (
            "sweeper:\n  guard_groups:\n    a: x\n",
            "h.yaml:3:8: sweeper.guard_groups.a: 'x' is of the wrong kind; write a list: [first, second], or "
            "one '- item' per line",
        ),
        (
            "archiver:\n  streams:\n    - destination: s3\n",
            "h.yaml:3:7: archiver.streams[0]: the key 'stream' is missing; add it",
        ),
        (
            "archival:\n- {stream: a, destination: s4}\n",
            "h.yaml:2:28: archival[0].destination: 's4' is no destination; write s3, folder or postgres, or "
            "a URL such as s3://bucket/prefix",
        ),
        (
            "archival:\n- {stream: a, destination: folder}\n",
            "h.yaml:2:3: archival[0]: destination 'folder' has no path; add path: with the folder's name",
        ),
        (
            "archival:\n- {stream: a, destination: 's3://b', bucket: b}\n",
            "h.yaml:2:3: archival[0]: destination is a URL, which says it all; leave bucket and path out",
        ),
        (
            "archival:\n- {stream: a, destination: s3, batch_size: yes}\n",
            "h.yaml:2:44: archival[0].batch_size: True is not a whole number; write one such as 1000",
        ),
        (
            "archival:\n- {stream: a, destination: s3, batch_size: many}\n",
            "h.yaml:2:44: archival[0].batch_size: 'many' is of the wrong kind; write a whole number, "
            "such as 1000",
        ),
        (
            "server: {trusted_proxies: [10.0.0.7, 10.0.0.1/8]}",
            "h.yaml:1:38: server.trusted_proxies[1]: 10.0.0.1/8 has host bits set; write an address such as "
            "10.0.0.7, or a network: 10.0.0.0/8",
        ),
        (
            "server: {open: true, trusted_proxies: [127.0.0.1]}",
            "h.yaml:1:16: server.open: behind a proxy everybody would be on this machine; leave out "
            "server.open or trusted_proxies",
        ),
        ("server: {port: 99999}", "h.yaml:1:16: server.port: 99999 is too large; write at most 65535"),
        (
            "server: {host: 127}",
            "h.yaml:1:16: server.host: 127 is of the wrong kind; write text; put it in quotes",
        ),
        (
            "namespace: GBE",
            "h.yaml:1:12: namespace: namespace name 'GBE' is not usable: write lower-case letters, digits, "
            "'.', '_' and '-', at most 128, starting with a letter or digit, with no empty token between "
            "dots",
        ),
        ("url: 3", "h.yaml:1:6: url: write one URL, or a list of them: each is a partition"),
        (
            "url: mysql://u:secret@h/d",
            "h.yaml:1:6: url: no backend for the URL scheme 'mysql'; use postgresql://user@host/database, "
            "redis://host:6379/0 or nats://host:4222",
        ),
        (
            "url: redis://u:secret@[h",
            "h.yaml:1:6: url: the URL cannot be read; write postgresql://user@host:5432/database, and in "
            "a user or password write '/' as %2F, '#' as %23, '?' as %3F, an at sign as %40 "
            "and a blank as %20",
        ),
        (
            "url: [redis://a, redis://a]",
            "h.yaml:1:6: url: the same store is listed twice; name each partition once",
        ),
        (
            "sweeper:\n  interval: 1s\n  interval: 2s\n",
            "h.yaml:3:3: sweeper.interval: this key is on line 2 already; keep one of them",
        ),
        ("[a]: b", "h.yaml:1:1: a key is a plain word; a list or a mapping cannot be one"),
        ("- a", "h.yaml:1:1: there are no keys; write a mapping such as 'sweeper:'"),
        (
            "a: &x {b: 1}\nc: *x\n",
            "h.yaml:2:1: c: an alias stands for more than a word; write it out",
        ),
        (
            "namespace: !!python/name:os.system x",
            "h.yaml:1:12: namespace: 'x' cannot be read as tag:yaml.org,2002:python/name:os.system; put it "
            "in quotes, or remove the tag",
        ),
        (
            "namespace: 2026-02-31",
            "h.yaml:1:12: namespace: '2026-02-31' cannot be read as tag:yaml.org,2002:timestamp; put it "
            "in quotes, or remove the tag",
        ),
        (
            "sweeper:\n\tinterval: 1s\n",
            "h.yaml:2:1: this is not YAML: while scanning for the next token found character '\\t' that "
            "cannot start any token",
        ),
        (
            "a: 1\n---\nb: 2\n",
            "h.yaml:2:1: this is not YAML: expected a single document in the stream but found "
            "another document",
        ),
        ("a: 1\nb: \x07\n", "h.yaml:2:4: the character U+0007 has no place in YAML; remove it"),
        (b"a: \xff", "h.yaml: byte 3 is not UTF-8; save the file in that encoding"),
    ],
)
def test_a_problem_is_named_with_its_place(tmp_path: Path, text: str | bytes, problem: str) -> None:
    assert problem in problems(tmp_path, text)


def test_all_problems_are_named_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        "server: {port: x}\nsweeper:\n  interval: 7x\n  nope: 1\n"
        "retention:\n  a..b: 7d\n  a.b: 7y\nserver: {}\n",
    )
    assert [each.split(": ")[0] for each in found] == [
        "h.yaml:1:16", "h.yaml:3:13", "h.yaml:4:3", "h.yaml:6:3", "h.yaml:7:8", "h.yaml:8:1",
    ]  # fmt: skip


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidConfig, match="the file cannot be read: No such file or directory; check its name"
    ):
        check(tmp_path / "none.yaml")


def test_no_problem_shows_a_password(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        "url: redis://u:geheim@[h\nurls: redis://u:geheim@h\nserver: {host: [postgresql://u:geheim@h/d]}\n"
        "archival: [{stream: a, destination: 'ftp://u:geheim@h?password=geheim'}]\n",
    )
    assert len(found) == 4
    assert "geheim" not in "".join(found)


def test_an_id_must_not_be_forgotten_before_its_event(tmp_path: Path) -> None:
    told = (
        "ids are forgotten after {} (sweeper.dedupe_window), before their events, which 'b' keeps for 30d: a "
        "repeat would be published twice; set sweeper.dedupe_window to at least 30d"
    )
    text = "retention: {a: 20d, b: 30d, c: {max_bytes: 1GB}}\n"
    assert problems(tmp_path, text) == [f"h.yaml:1:24: retention.b: {told.format('14d')}"]
    text += "sweeper: {dedupe_window: 29d}\n"
    assert problems(tmp_path, text) == [f"h.yaml:2:26: sweeper.dedupe_window: {told.format('29d')}"]
    (tmp_path / "h.yaml").write_text(text.replace("29d", "30d"))
    assert check(tmp_path / "h.yaml").config.sweeper.dedupe_window.days == 30


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("HOLDFAST_SWEEPER__INTERVAL", "7x", f"sweeper.interval: '7x' {NOT_A_DURATION}"),
        (
            "HOLDFAST_SERVER__PORT",
            "x",
            "server.port: 'x' is of the wrong kind; write a whole number, such as 1000",
        ),
        (
            "HOLDFAST_SWEEPER__NOPE",
            "1",
            "sweeper.nope: unknown key, with the value '1'; known here: interval, lock_ttl, stuck_threshold, "
            "dedupe_window, history, dead_letters, dead_consumers, lag_threshold, guard_groups",
        ),
        (
            "HOLDFAST_SWEEPR__INTERVAL",
            "1s",
            "sweepr.interval: there is no section 'sweepr'; use one of url, namespace, log_format, "
            "log_folder, sweeper, retention, dlq, archiver, archival, ingest, tasks, server",
        ),
        (
            "HOLDFAST_RETENTION",
            "{",
            "retention: '{' is not the JSON that is needed here: Expecting property name enclosed in double "
            "quotes: line 1 column 2 (char 1)",
        ),
    ],
)
def test_a_problem_of_the_environment_names_the_variable(variable: str, value: str, problem: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load(environ={variable: value})
    assert str(caught.value) == f"{variable}: {problem}"


def test_problems_of_the_file_and_of_several_variables_come_together(tmp_path: Path) -> None:
    (tmp_path / "h.yaml").write_text("namespace: A")
    environ = {"HOLDFAST_RETENTION": "{", "HOLDFAST_ARCHIVAL": "[", "HOLDFAST_SWEEPER__INTERVAL": "x"}
    with pytest.raises(InvalidConfig) as caught:
        load(tmp_path / "h.yaml", environ=environ)
    assert {each.origin.name for each in caught.value.problems} == {str(tmp_path / "h.yaml"), *environ}
