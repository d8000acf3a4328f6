"""URLs of stores: several hosts in one, several stores in one text, and what is refused."""

from __future__ import annotations

import pytest

from holdfast.config.urls import split_urls
from holdfast.model.errors import InvalidInput


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
