"""Bounds of a reconciliation: what manifests prove of a log that was trimmed."""

from __future__ import annotations

from holdfast.pipeline.archive.manifests import Manifest
from holdfast.pipeline.archive.objects import Written
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.reconcile.inputs import Chain

CHANNEL = "orders"


def manifest(after: str | None, last: str, partition: int = 0) -> Manifest:
    written = Written(f"archive/{last}", CHANNEL, partition, last, last, 1, 1, "")
    return Manifest(ChannelPartition(partition, CHANNEL), after, (written,))


def test_a_chain_from_the_beginning_proves_everything() -> None:
    chain = Chain([manifest(None, "03"), manifest("03", "07")])
    assert chain.floors({0: "05"}) == {0: ""}
    assert list(chain.gaps({0: "05"})) == []


def test_before_the_archive_began_nothing_is_proven() -> None:
    assert Chain([manifest("02", "07")]).floors({0: "05"}) == {0: "02"}
    assert Chain().floors({0: "05"}) == {0: "05"}
    assert Chain([manifest(None, "07", partition=1)]).floors({0: "05", 1: "06"}) == {0: "05", 1: ""}


def test_what_was_not_trimmed_has_no_floor() -> None:
    assert Chain([manifest("02", "07")]).floors({}) == {}


def test_a_missing_manifest_is_a_gap_only_where_the_log_is_gone() -> None:
    chain = Chain([manifest(None, "03"), manifest("05", "09")])
    [gap] = chain.gaps({0: "04"})
    assert (gap.kind, gap.position, gap.id) == ("gap", "03", "manifests/orders/p000/05.json")
    assert list(chain.gaps({0: "02"})) == []
    assert list(chain.gaps({})) == []


def test_an_archive_that_ends_before_the_trimmed_stretch_does_is_a_gap() -> None:
    [gap] = Chain([manifest(None, "03")]).gaps({0: "08"})
    assert (gap.position, gap.id) == ("03", "manifests/orders/p000")
