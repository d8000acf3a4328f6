"""URLs that name a cluster."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.wire.servers import discovered, parse_servers
from holdfast.config.urls import split_urls
from holdfast.model.redact import address, mask


@pytest.mark.parametrize(
    ("url", "servers", "replicas"),
    [
        ("nats://a", ["nats://a:4222"], None),
        ("nats://u:p@a:1,b,c:3?replicas=3", ["nats://u:p@a:1", "nats://u:p@b:4222", "nats://u:p@c:3"], 3),
        ("nats://u:p@a,v:q@b", ["nats://u:p@a:4222", "nats://v:q@b:4222"], None),
        ("nats://u:x,y@a,b", ["nats://u:x,y@a:4222", "nats://u:x,y@b:4222"], None),
        ("tls://token@[::1]:4222,[::2]", ["tls://token@[::1]:4222", "tls://token@[::2]:4222"], None),
    ],
)
def test_one_url_names_the_servers_of_a_cluster(url: str, servers: list[str], replicas: int | None) -> None:
    assert parse_servers(url) == (tuple(servers), replicas)
    assert split_urls(f"{url},nats://elsewhere") == [url, "nats://elsewhere"], "which is another store"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nats://a,,b", "it names no host"),
        ("nats://u:secret@a:x", "a port is no number"),
        ("nats://u:se@cret@a,b", "before each host"),
        ("nats://u:secret@a?replicas=many", "replicas='many' is no number from 1 to 5"),
        ("nats://u:secret@a?replicas=6", "no number from 1 to 5"),
        ("nats://u:secret@a?replica=3", "it has the parameter 'replica'; NATS has replicas"),
    ],
)
async def test_a_url_that_cannot_be_used_is_refused_without_its_secret(url: str, words: str) -> None:
    with pytest.raises(holdfast.InvalidInput, match=words) as refused:
        await NatsBackend(url).open()
    assert "secret" not in str(refused.value)
    assert "cret" not in str(refused.value)


def test_messages_show_every_host_and_no_secret() -> None:
    assert address("nats://u:p@a:1,b,c?replicas=3", 4222) == "a:1,b:4222,c:4222"
    assert mask("nats://u:p@a,b?replicas=3") == "nats://***@a,b?replicas=3"
    assert "q" not in mask("nats://u:p@a,v:q@b") + address("nats://u:p@a,v:q@b")


def test_servers_that_are_told_of_get_the_same_credentials() -> None:
    told = discovered("nats://u:p@a,b", {"connect_urls": ["10.0.0.1:4222"]})
    assert told == ["nats://u:p@10.0.0.1:4222"]
