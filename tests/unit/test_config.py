"""The configuration: what a file means, what goes over what, and where each value comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast import wiring
from holdfast.config import fields
from holdfast.config.config import Config, Section, TaskLimits
from holdfast.config.load import check, load, settings
from holdfast.config.urls import SCHEMES, split_urls
from holdfast.config.values import format_size, parse_size
from holdfast.model.errors import InvalidInput
from holdfast.model.redact import mask
from holdfast.upkeep.rules import Keep, Rules
from holdfast.wiring import backend

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "holdfast.yaml"
DAY, HOUR = timedelta(days=1), timedelta(hours=1)

# The configuration of the sweeper and the archiver, as people know it.
KNOWN = """
sweeper:
  interval: 30s
  lock_ttl: 60s
  stuck_threshold: 300s         # 5 min default, overridden per task type

archiver:
  streams:
    - stream: "gbe.events.audit.*"
      destination: "s3"
      bucket: "gbe-archive"
      batch_size: 1000
      batch_timeout: 60s
      format: "jsonl"
      compression: "gzip"
      partition: "daily"

retention:
  "gbe.notify.topic.*":        72h
  "gbe.notify.broadcast.*":    7d
  "gbe.events.system.*":       7d
  "gbe.events.api.*":          3d
  "gbe.events.audit.*":        7d      # live window; archiver handles long-term
  "gbe.tasks.*.queue":         24h
  "gbe.tasks.*.progress":      24h
  "gbe.tasks.*.terminal":      24h
  "gbe._deadletter.*":         7d
"""
FIRST_SPELLING = """
archival:
  - stream: "gbe.events.audit.*"
    destination: "s3"
    batch_size: 1000            # messages per archive file
    batch_timeout: 60s          # flush partial batch after this
    format: "jsonl"             # one JSON object per line
    partition: "daily"          # one file per day
"""


def written(folder: Path, text: str) -> Path:
    (folder / "h.yaml").write_text(text)
    return folder / "h.yaml"


def origins(file: Path | None = None, **options: Any) -> dict[str, tuple[Any, str]]:
    found = settings(load(file, **options))
    return {each.key: (each.value, str(each.origin).rpartition("/")[2]) for each in found}


def test_the_known_configuration_means_what_it_says(tmp_path: Path) -> None:
    config = check(written(tmp_path, KNOWN)).config
    assert config.sweeper.interval == timedelta(seconds=30)
    assert config.sweeper.lock_ttl == timedelta(minutes=1)
    [stream] = config.archive_streams
    assert (stream.stream, stream.bucket, stream.batch_size) == ("gbe.events.audit.*", "gbe-archive", 1000)
    assert {pattern: keep.max_age for pattern, keep in config.retention.items()} == {
        "gbe.notify.topic.*": 3 * DAY,
        "gbe.notify.broadcast.*": 7 * DAY,
        "gbe.events.system.*": 7 * DAY,
        "gbe.events.api.*": 3 * DAY,
        "gbe.events.audit.*": 7 * DAY,
        "gbe.tasks.*.queue": DAY,
        "gbe.tasks.*.progress": DAY,
        "gbe.tasks.*.terminal": DAY,
        "gbe._deadletter.*": 7 * DAY,
    }


def test_the_first_spelling_of_the_archive_is_another_name_for_it(tmp_path: Path) -> None:
    [stream] = check(written(tmp_path, FIRST_SPELLING)).config.archive_streams
    assert (stream.stream, stream.batch_timeout) == ("gbe.events.audit.*", timedelta(minutes=1))
    both = check(
        written(tmp_path, FIRST_SPELLING + "archiver: {streams: [{stream: b, destination: s3}]}")
    ).config
    assert [each.stream for each in both.archive_streams] == ["b", "gbe.events.audit.*"]


def test_the_example_is_valid_and_holds_the_known_configuration_whole() -> None:
    example, known = yaml.safe_load(EXAMPLE.read_text()), yaml.safe_load(KNOWN)
    check(EXAMPLE)
    assert known["sweeper"].items() <= example["sweeper"].items()
    assert known["retention"].items() <= example["retention"].items()
    assert known["archiver"]["streams"][0] == example["archiver"]["streams"][0]


def test_the_example_has_every_key_of_the_reference() -> None:
    said = set(re.findall(r"^[ #-]*([a-z_]+):", EXAMPLE.read_text(), re.MULTILINE))
    assert {row.key for _, _, rows in fields.sections() for row in rows} <= said


def test_an_empty_file_and_empty_sections_have_the_defaults(tmp_path: Path) -> None:
    for text in (
        "",
        "# nothing\n",
        "sweeper:\nretention:\narchiver:\n  streams:\n  lag_threshold:\ntasks:\n",
    ):
        assert check(written(tmp_path, text)).config == Config()


def test_no_two_configurations_share_a_section(tmp_path: Path) -> None:
    empty = "server:\n  limits:\ndlq:\nsweeper:\n  dead_consumers:\ntasks:\n  default:\n"
    made = [Config(), Config(), *(check(written(tmp_path, empty)).config for _ in range(2))]
    sections = [section for config in made for section in _sections(config)]
    assert len(sections) > 4 * 6
    assert len({id(section) for section in sections}) == len(sections)


def _sections(of: Section) -> list[Section]:
    inside = [value for _, value in of if isinstance(value, Section)]
    return inside + [each for section in inside for each in _sections(section)]


def test_a_value_is_taken_from_flag_then_environment_then_file_then_default(tmp_path: Path) -> None:
    file = written(tmp_path, "server:\n  host: file\n  port: 1\nurl: redis://file\n")
    layers: list[tuple[Path | None, Mapping[str, str], Mapping[str, Any], tuple[Any, str]]] = [
        (None, {}, {}, (8420, "default")),
        (file, {}, {}, (1, "h.yaml:3:9")),
        (file, {"HOLDFAST_SERVER__PORT": "2"}, {}, (2, "HOLDFAST_SERVER__PORT")),
        (file, {"HOLDFAST_SERVER__PORT": "2"}, {"server.port": 3}, (3, "--port")),
        (file, {"HOLDFAST_SERVER__PORT": ""}, {"server.port": None}, (1, "h.yaml:3:9")),
    ]
    for named, environ, flags, expected in layers:
        found = origins(named, environ=environ, flags=flags)
        assert found["server.port"] == expected
        assert found["server.host"] == (("file", "h.yaml:2:9") if named else ("127.0.0.1", "default"))


def test_the_store_is_named_by_flag_variable_file_and_last_of_all_by_the_database_s_variable(
    tmp_path: Path,
) -> None:
    file = written(tmp_path, "url: redis://file\n")
    ours, theirs = {"HOLDFAST_URL": "redis://ours"}, {"DATABASE_URL": "postgresql://theirs"}
    flag = {"url": ["nats://flag"]}
    for named, environ, flags, expected in (
        (file, ours | theirs, flag, ("nats://flag", "--url")),
        (file, ours | theirs, {}, ("redis://ours", "HOLDFAST_URL")),
        (file, theirs, {}, ("redis://file", "h.yaml:1:6")),
        (None, theirs, {}, ("postgresql://theirs", "DATABASE_URL")),
    ):
        [url], origin = origins(named, environ=environ, flags=flags)["url"]
        assert (url, origin) == expected
    assert origins(environ={})["url"] == ([], "default")


def test_the_file_can_be_named_by_a_variable(tmp_path: Path) -> None:
    file = written(tmp_path, "namespace: other\n")
    assert load(environ={"HOLDFAST_CONFIG": str(file)}).config.namespace == "other"


def test_mappings_of_the_environment_are_joined_with_the_file_s_and_lists_replace(tmp_path: Path) -> None:
    text = (
        "retention: {a: 1d, b: 2d}\narchival: [{stream: x, destination: s3}, {stream: y, destination: s3}]\n"
    )
    environ = {
        "HOLDFAST_RETENTION": '{"b": "3d", "c": {"max_bytes": "1GiB"}}',
        "HOLDFAST_ARCHIVAL": '[{"stream": "z", "destination": "folder", "path": "p"}]',
        "HOLDFAST_SWEEPER": '{"interval": "5s", "history": "2d"}',
        "HOLDFAST_SWEEPER__INTERVAL": "6s",
        "HOLDFAST_TASKS__TYPES__EMAIL__TIMEOUT": "9s",
        "HOLDFAST_SWEEPER__GUARD_GROUPS": '{"gbe.>": ["x"]}',
        "HOLDFAST_FAILPOINTS": "not ours to judge",
    }
    found = origins(written(tmp_path, text), environ=environ)
    assert {key: value for key, value in found.items() if value[1] != "default"} == {
        "sweeper.interval": ("6s", "HOLDFAST_SWEEPER__INTERVAL"),
        "sweeper.history": ("2d", "HOLDFAST_SWEEPER"),
        'sweeper.guard_groups."gbe.>"': (["x"], "HOLDFAST_SWEEPER__GUARD_GROUPS"),
        "retention.a": ("1d", "h.yaml:1:16"),
        "retention.b": ("3d", "HOLDFAST_RETENTION"),
        "retention.c": ({"max_bytes": "1GiB"}, "HOLDFAST_RETENTION"),
        "archival[0]": ({"stream": "z", "destination": "folder", "path": "p"}, "HOLDFAST_ARCHIVAL"),
        "tasks.types.email": ({"timeout": "9s"}, "HOLDFAST_TASKS__TYPES__EMAIL__TIMEOUT"),
    }


def test_what_is_shown_has_no_password(tmp_path: Path) -> None:
    text = (
        "url: ['postgresql://u:geheim@h1,h2/d?sslpassword=geheim', 'redis://:geh@eim@h']\n"
        "archival: [{stream: a, destination: 'postgresql://u:geheim@h/d'}]\n"
    )
    found = origins(written(tmp_path, text), environ={})
    assert found["url"][0] == ["postgresql://u:***@h1,h2/d?sslpassword=***", "redis://:***@h"]
    assert found["archival[0]"][0]["destination"] == "postgresql://u:***@h/d"
    assert mask("redis://h:6379/0 and nats://h:4222") == "redis://h:6379/0 and nats://h:4222"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nats://TOKEN@host:4222", "nats://***@host:4222"),
        ("tls://TOKEN@host", "tls://***@host"),
        ("postgresql://ada@host/d", "postgresql://ada@host/d"),
        ("postgresql://ada:a/b@host/d", "postgresql://ada:***@host/d"),
        ("postgresql://ada:a#b?c@host/d", "postgresql://ada:***@host/d"),
        ("postgresql://ada:a b c@host/d said no", "postgresql://ada:***@host/d said no"),
        ("redis://:a@b@c@host/0", "redis://:***@host/0"),
        ("redis://a/b@host/0", "redis://***@host/0"),
        ("redis://h?password=a b", "redis://h?password=***"),
    ],
)
def test_masked_is_whatever_may_be_a_secret(text: str, shown: str) -> None:
    assert mask(text) == shown


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "secret",
    ["u:12/S3CRET", "u:S3CRET#x", "u:S3CRET?x", "u:S3 CRET", "S3CRET/x", "u:5[S3CRET", "u:x@[S3CRET"],
)
def test_a_secret_with_characters_that_need_escaping_is_refused_and_told_by_no_error(
    tmp_path: Path, scheme: str, secret: str
) -> None:
    url = f"{scheme}://{secret}@host:1/0"
    tried: list[Callable[[], object]] = [
        lambda: split_urls(url),
        lambda: backend(url),
        lambda: check(written(tmp_path, f"url: {json.dumps(url)}")),
        lambda: load(None, flags={"url": url}, environ={}),
        lambda: load(None, environ={"HOLDFAST_URL": url}),
    ]
    for attempt in tried:
        with pytest.raises(InvalidInput) as refused:
            attempt()
        assert "S3" not in str(refused.value)
        assert "CRET" not in str(refused.value)


def test_an_escaped_secret_is_taken_and_not_shown(tmp_path: Path) -> None:
    url = "postgresql://u:%2F%23%3F%40%20@host/d"
    assert split_urls(url) == [url]
    assert origins(written(tmp_path, f"url: {url}"), environ={})["url"][0] == ["postgresql://u:***@host/d"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("10GB", 10**10), ("512MiB", 2**29), ("1.5kb", 1500), ("7B", 7), ("12", 12), (12, 12), ("2 TiB", 2**41)],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize("wrong", [10.5, True, "GB", "-1GB", "1XB", None, ""])
def test_what_is_no_size_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidInput, match="is not a size; write a number of bytes"):
        parse_size(wrong)


def test_a_task_has_the_terms_of_its_type_of_the_default_and_of_the_sweeper(tmp_path: Path) -> None:
    config = check(
        written(
            tmp_path,
            "sweeper: {stuck_threshold: 7s}\n"
            "tasks: {types: {a: {timeout: 1s}, b: {max_retries: 0}}, default: {max_retries: 5}}\n",
        )
    ).config
    seconds = timedelta(seconds=1)
    assert config.task("a") == TaskLimits(seconds, 5)
    assert config.task("b") == TaskLimits(7 * seconds, 0)
    assert config.task("c") == TaskLimits(7 * seconds, 5)
    assert Config().task("any") == TaskLimits(300 * seconds, 3)


def test_the_sweeper_goes_by_the_configuration() -> None:
    assert wiring.rules(Config()) == Rules()
    rules = wiring.rules(check(EXAMPLE).config)
    assert rules.keep("gbe.events.metrics.cpu.load") == Keep(DAY, 10**10, "drop_oldest")
    assert rules.keep("gbe.events.audit.change") == Keep(7 * DAY)
    assert rules.keep("elsewhere") is None
    assert rules.guards("gbe.events.audit.change") == ["reporting"]
    assert (rules.lag_events, rules.lag_age) == (10_000, HOUR)


def test_every_scheme_that_a_file_may_name_has_a_backend() -> None:
    config = Config()
    for scheme in SCHEMES:
        assert wiring.backend(f"{scheme}://localhost/0", config=config).url == f"{scheme}://localhost/0"


def test_a_given_url_goes_before_a_given_configuration() -> None:
    config = Config(url="redis://a, nats://b")  # type: ignore[arg-type]
    assert config.url == ("redis://a", "nats://b")
    assert wiring.configured(None, config) is config
    assert wiring.configured("nats://c", config).url == ("nats://c",)
    with pytest.raises(InvalidInput, match="no backend for the URL scheme ''"):
        wiring.configured("", config)


def test_the_wal_has_its_own_variables_and_they_are_shown() -> None:
    environ = {
        "CONSUMER_WAL_PATH": "s3://bucket/wal",
        "CONSUMER_WAL_RETRY_INTERVAL": "10s",
        "CONSUMER_WAL_MAX_RETRIES": "7",
        "CONSUMER_WAL_RETRY_BACKOFF": "2s",
        "CONSUMER_WAL_ENTRY_TTL": "24h",
        "CONSUMER_WAL_CLOSE_TIMEOUT": "5s",
        "CONSUMER_WAL_LEASE_DURATION": "3m",
        "CONSUMER_WAL_MAX_BYTES": "1048576",
    }
    expected = dict(zip(environ, ["s3://bucket/wal", "10s", 7, "2s", "1d", "5s", "3m", "1MiB"], strict=True))
    others = {"HOLDFAST_INGEST__WAL__PATH": "/loses", "CONSUMER_WAL_MAX_BACKOFF": ""}
    found = origins(environ=environ | others)
    for name, value in expected.items():
        key = f"ingest.wal.{name.removeprefix('CONSUMER_WAL_').lower()}"
        assert found[key] == (value, name)
    assert found["ingest.wal.max_backoff"] == ("5m", "default")


@pytest.mark.parametrize("value", ["many", "0", "-1"])
def test_a_variable_of_the_wal_that_makes_no_sense_is_named(value: str) -> None:
    with pytest.raises(InvalidInput, match=r"CONSUMER_WAL_MAX_RETRIES: ingest\.wal\.max_retries"):
        load(environ={"CONSUMER_WAL_MAX_RETRIES": value})


def test_a_variable_without_a_meaning_is_warned_about_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.config.load._warned", set())
    names = ("SYNC_WRITES", "MEMTABLE_SIZE", "VLOG_SIZE", "NUM_COMPACTORS", "COMPRESSION", "RETRY_INTERVALL")
    environ = {f"CONSUMER_WAL_{name}": "1" for name in names}
    for _ in range(2):
        load(environ=environ)
    assert sorted(each.getMessage().split()[0] for each in caplog.records) == sorted(environ)
    assert "CONSUMER_WAL_MAX_BYTES" in caplog.text
    assert "CONSUMER_WAL_RETRY_INTERVAL," in caplog.text


def test_the_interval_of_the_dead_letter_summary(tmp_path: Path) -> None:
    assert origins(environ={})["dlq.interval"] == ("10m", "default")
    file = written(tmp_path, "dlq: {interval: 5m}\n")
    assert origins(file, environ={})["dlq.interval"] == ("5m", "h.yaml:1:17")
    over = origins(file, environ={"HOLDFAST_DLQ__INTERVAL": "90s"})
    assert over["dlq.interval"] == ("1m30s", "HOLDFAST_DLQ__INTERVAL")
