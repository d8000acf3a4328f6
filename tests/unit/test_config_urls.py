"""URLs of stores: several hosts in one, several stores in one text, and what is refused."""

from __future__ import annotations

import pytest

from holdfast.config.urls import split_urls
from holdfast.model.errors import InvalidInput
from holdfast.model.redact import address


@pytest.mark.parametrize(
    "url",
    [
        "nats://a:4222,b:4222",
        "postgresql://u:p@a:5432,b:5433/db",
        "redis://localhost:6379/0",
        "postgresql:///db?host=/run",
    ],
)
def test_a_url_with_several_hosts_is_one_store(url: str) -> None:
    assert split_urls(url) == [url]


def test_a_comma_before_a_scheme_separates_stores() -> None:
    assert split_urls("redis://a:1/0, redis://b:2/0") == ["redis://a:1/0", "redis://b:2/0"]


@pytest.mark.parametrize("url", ["nats://a:4222,b:port", "redis://a:99999", "http://a", "a"])
def test_what_cannot_be_a_store_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        split_urls(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:S3CRET@host/0", "host:6379/0"),
        ("nats://S3CRET@a:4222,b", "a:4222,b:6379"),
        ("postgresql://u:S3CRET@a:1,b:2/db?password=S3CRET", "a:1,b:2/db"),
        ("postgresql:///db?host=/run", "/run:6379/db"),
        ("redis://u:S3CRET@[::1]:7/0", "[::1]:7/0"),
        ("redis://", "localhost:6379"),
        ("redis://u:12/S3CRET@host/0", "the given URL"),
        ("redis://u:S3CRET@[broken", "the given URL"),
        ("host=a password=S3CRET", "the given URL"),
    ],
)
def test_an_address_has_hosts_ports_and_path_and_no_secret(url: str, shown: str) -> None:
    assert address(url, 6379) == shown


def test_an_address_may_do_without_a_port() -> None:
    assert address("postgresql://u:p@host/db") == "host/db"
