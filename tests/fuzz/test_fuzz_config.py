"""The configuration: any bytes in a file and any variable give a configuration, or problems with places."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hostile import BITS, BYTES, JSON, REFUSED, TEXTS, attempt, flipped, fuzzed
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.config.config import Config
from holdfast.config.layers import InvalidConfig
from holdfast.config.load import check, load, settings
from holdfast.config.urls import split_urls
from holdfast.model.errors import InvalidInput
from holdfast.model.redact import mask

WORDS = [
    *Config.model_fields,
    "interval",
    "max_age",
    "stream",
    "destination",
    "columns",
    "types",
    "[key]",
    "<<",
]
TAGS = [
    "!!int",
    "!!float",
    "!!bool",
    "!!timestamp",
    "!!binary",
    "!!null",
    "!!set",
    "!!omap",
    "!x",
    "!!python/name:os",
]
LEAVES = st.one_of(
    TEXTS.map(repr),
    st.sampled_from(
        ["30s", "7d", "1GB", "a.*", "~", "*a", "&a x", "=", "0x", "1:60:1", "2001-99-99", ".nan"]
    ),
    st.tuples(st.sampled_from(TAGS), st.sampled_from(["", "''", "x", "_", "1", "2001-01-01", "[a]"])).map(
        " ".join
    ),
)
YAML = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda each: f"[{', '.join(each)}]"),
        st.lists(st.tuples(st.sampled_from(WORDS), inner), max_size=4).map(
            lambda each: "{" + ", ".join(f"'{key}': {value}" for key, value in each) + "}"
        ),
    ),
    max_leaves=10,
)
"""Texts that are nearly YAML about nearly our keys."""
WHOLE = b"""sweeper: {interval: 10s, dedupe_window: 30d}
retention: {"gbe.events.>": 7d, "a.*": {max_age: 1d, max_bytes: 10GB}}
archiver: {streams: [{stream: "gbe.>", destination: folder, path: /tmp/x, batch_size: 10}]}
tasks: {types: {email: {timeout: 30s, max_retries: 5}}}
server: {port: 8000, limits: {body: 1MB}}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "h.yaml"


def judged(file: Path, content: bytes) -> Any:
    """What a file of this content says: a configuration that can be shown, or problems, each with a place."""
    file.write_bytes(content)
    try:
        loaded = check(file)
    except InvalidConfig as error:
        problems = error.problems
    else:
        return {each.key: each.value for each in settings(loaded)}
    last = content.count(b"\n") + content.count(b"\r") + 5
    assert problems
    for each in problems:
        assert each.origin.name == str(file)
        assert each.message
        assert each.origin.line is None or 1 <= each.origin.line <= last
        json.dumps(each.to_json())
    return REFUSED


@fuzzed()
@given(
    st.one_of(
        BYTES,
        YAML.map(str.encode),
        st.tuples(st.sampled_from(WORDS), YAML).map(
            lambda each: f"{each[0]}: {each[1]}".encode("utf-8", "surrogatepass")
        ),
    )
)
def test_any_bytes_are_a_configuration_or_problems(file: Path, content: bytes) -> None:
    judged(file, content)


@fuzzed()
@given(st.lists(BITS, min_size=1, max_size=4))
def test_a_damaged_file_is_a_configuration_or_problems(file: Path, bits: list[int]) -> None:
    content = WHOLE
    for bit in bits:
        content = flipped(content, bit)
    judged(file, content)


@fuzzed()
@given(st.dictionaries(st.one_of(st.sampled_from(WORDS), TEXTS), JSON, max_size=3))
def test_whatever_yaml_can_write_is_a_configuration_or_problems(file: Path, value: Any) -> None:
    try:
        content = yaml.safe_dump(value).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):  # Python prints no integer above 4300 digits
        return
    judged(file, content)


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 100_000,
        "{a: " * 20_000,
        "- " * 20_000,
        "a:\n" + "".join(" " * depth + "b:\n" for depth in range(300)),
        "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*{f'b{n - 1}' if n else 'a'}, *a]\n" for n in range(60)),
        "a: &a {b: *a}",
        "sweeper: {interval: 0x" + "f" * 6_000 + "}",
        "server: {port: 0x" + "f" * 6_000 + "}",
        "archival: [{stream: a, destination: s3, batch_size: 0x" + "f" * 6_000 + "}]",
        "retention: {a: {max_bytes: " + "9" * 400 + "TB}}",
        "'[key]': 1",
        "retention: {'[key]': 1}",
        "url: !!int ''",
        "url: !!float _",
        "url: !!bool x",
        "url: !!timestamp x",
        "url: !!timestamp 2001-01-01T00:00:00+99:99",
        "namespace: " + "a" * 1_000_000,
    ],
    ids=lambda text: text[:24],
)
def test_what_is_built_to_break_a_reader_is_refused_at_once(file: Path, text: str) -> None:
    began = time.process_time()
    assert judged(file, text.encode()) is REFUSED
    assert time.process_time() - began < 10


def test_a_deep_file_is_refused_where_it_becomes_too_deep(file: Path) -> None:
    file.write_text("url: x\nserver:\n  " + "[" * 1_000)
    with pytest.raises(InvalidConfig, match=r"h.yaml:3:\d+: .*nests deeper"):
        check(file)


@pytest.mark.parametrize("name", ["\0", "a\0b", "x" * 5_000, "."])
def test_a_file_that_cannot_be_has_a_problem(name: str) -> None:
    with pytest.raises(InvalidConfig, match="cannot be read"):
        check(name)


VARIABLES = st.one_of(
    st.tuples(
        st.sampled_from(WORDS),
        st.sampled_from(["", "__X", "__INTERVAL", "__", "____A", "__[KEY]", "__0__STREAM"]),
    ).map(lambda each: f"HOLDFAST_{each[0].upper()}{each[1]}"),
    TEXTS.map(lambda text: f"HOLDFAST_{text}"),
    st.sampled_from(
        ["HOLDFAST_CONFIG", "DATABASE_URL", "HOLDFAST_SERVER__LIMITS", "HOLDFAST_INGEST__TABLES"]
    ),
)
VALUES = st.one_of(
    TEXTS,
    YAML,
    JSON.map(lambda value: json.dumps(value) if _printable(value) else "[" * 900 + "]" * 900),
)


def _printable(value: Any) -> bool:
    try:
        json.dumps(value)
    except (ValueError, RecursionError):
        return False
    return True


@fuzzed()
@given(st.dictionaries(VARIABLES, VALUES, min_size=1, max_size=3))
@example({"HOLDFAST_SWEEPER": "[" * 5_000})
@example({"HOLDFAST_RETENTION": '{"a":' * 900 + "1" + "}" * 900})
@example({"HOLDFAST_RETENTION": '{"a":' * 400 + "1" + "}" * 400})
@example({"HOLDFAST_CONFIG": "\0"})
@example({"HOLDFAST_[KEY]": "1", "HOLDFAST_[KEY]__A": "1"})
def test_any_environment_is_a_configuration_or_problems(environ: dict[str, str]) -> None:
    loaded = attempt(load, environ=environ)
    if loaded is not REFUSED:
        assert settings(loaded)


def test_a_variable_that_is_no_json_does_not_tell_its_password() -> None:
    with pytest.raises(InvalidConfig) as caught:
        load(environ={"HOLDFAST_INGEST": '{"warehouse": "postgresql://u:hunter2@h/db"'})
    assert "hunter2" not in str(caught.value)


@fuzzed()
@given(st.one_of(TEXTS, st.lists(TEXTS, max_size=3)), TEXTS)
def test_urls_are_split_or_refused_and_never_tell_a_password(given_urls: Any, text: str) -> None:
    found = attempt(split_urls, given_urls)
    assert found is REFUSED or all("://" in url for url in found)
    mask(text)


HOSTILE = st.text("abc:/@?&=%#' \"[],\n", max_size=20)


@fuzzed()
@given(HOSTILE, HOSTILE, st.sampled_from(["user:", ":", "", "a/b:"]))
def test_a_secret_between_scheme_and_host_is_masked(before: str, secret: str, user: str) -> None:
    for scheme in ("nats", "redis", "postgresql", "s3"):
        # A lone word of these schemes is a user's name, which is shown.
        lone = not user and scheme in ("redis", "postgresql")
        shown = mask(f"{before} {scheme}://{user}{':' if lone else ''}S3CRET{secret}@host:1/0 after")
        assert "S3CRET" not in shown
    assert "S3CRET" not in mask(f"{before} s3://b?aws_secret_key={secret.replace('&', '').strip()}S3CRET")


@fuzzed()
@given(HOSTILE, st.sampled_from(["postgresql", "redis", "nats"]))
def test_no_error_of_a_url_tells_a_part_of_its_secret(secret: str, scheme: str) -> None:
    told = ""
    try:
        split_urls(f"{scheme}://user:S3{secret}CRET@host:1/0")
    except InvalidInput as error:
        told = str(error)
    assert "S3" not in told
    assert "CRET" not in told


def test_masking_takes_time_in_proportion() -> None:
    began = time.process_time()
    for text in ("://:" * 500_000, "?token" * 300_000, "://a:" * 100_000 + "@"):
        mask(text)
    assert time.process_time() - began < 5
