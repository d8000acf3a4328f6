"""Public ids: what is printed can be given back, and nothing else is taken."""

from __future__ import annotations

import pytest

from holdfast.deadletters.items import ItemId, job_item, parse_item, parse_public, public
from holdfast.model.errors import InvalidInput


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (ItemId("job", "17", "orders", "billing"), "job:orders:billing:17"),
        (ItemId("job", "1700-0", "gbe.a_b", "b-1", 3), "job:gbe.a_b:b-1:1700-0@3"),
        (ItemId("ingest", "4f0c"), "ingest:4f0c"),
        (ItemId("stream", "0001-0000", "gbe._deadletter.mail"), "stream:gbe._deadletter.mail:0001-0000"),
        (
            ItemId("stream", "0001-0000", "gbe._deadletter.mail", "", 2),
            "stream:gbe._deadletter.mail:0001-0000@2",
        ),
    ],
)
def test_an_item_is_read_as_it_is_written(item: ItemId, text: str) -> None:
    assert (str(item), parse_item(text)) == (text, item)


def test_a_job_has_the_same_id_in_the_list_and_in_a_path() -> None:
    # CORRECTIONS 004.7
    for partition, text in ((0, "17"), (2, "17@2")):
        assert public("17", partition) == text
        assert parse_public(text) == ("17", partition)
        assert str(job_item("orders", "billing", text)) == f"job:orders:billing:{text}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "17",
        "job:orders:17",
        "job:orders:billing:",
        "job:orders:billing:1:2",
        "job:ORDERS:billing:1",
        "job:orders:../x:1",
        "job:orders:billing:1@0",
        "job:orders:billing:1@-1",
        "job:orders:billing:1@99999",
        "job:orders:billing:' OR 1=1",
        "job:orders:billing:1\n",
        "ingest:",
        "ingest:a/b",
        "stream:orders",
        "letter:orders:1",
        "job:orders:billing:" + "1" * 200,
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_item(text)
