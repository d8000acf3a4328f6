"""The table of verbs is whole, and the selection of rounds meets what it must."""

from __future__ import annotations

import inspect
from itertools import product

from checks import SEED
from rounds import pairs
from selection import STORES, selected
from verbs import VERBS

from holdfast.contracts import Backend

READS = {
    "open", "close", "fork", "now", "advance", "check", "channels", "channel_stats", "consumers", "consumer",
    "consumer_stats", "backlogs", "read", "stuck", "find_jobs", "job", "dead_counts", "clusters",
    "dead_letters", "dead_letter", "due", "listen", "extent", "seek", "cuts", "pages", "behind", "cursors",
    "waiting", "read_parts", "size", "groups", "record", "due_records", "epoch",
    "job_times",
}  # fmt: skip
"""What changes nothing in a store, or belongs to the kit. Any other method is in a verb."""


def test_every_method_that_changes_something_is_a_verb() -> None:
    methods = {
        name for name, _ in inspect.getmembers(Backend, inspect.isfunction) if not name.startswith("_")
    }
    named = {method for verb in VERBS.values() for method in verb.methods}
    assert methods >= READS
    assert methods - READS == named


def test_the_selection_has_every_pair() -> None:
    chosen = selected(SEED)
    met = {(each.first, each.second) for rounds in chosen.values() for each in rounds}
    assert met == {pair for capabilities in STORES.values() for pair in pairs(capabilities)}


def test_each_verb_meets_each_store_with_each_kind_of_consumer() -> None:
    met = {
        (verb, store, word)
        for store, rounds in selected(SEED).items()
        for each in rounds
        for verb in (each.first, each.second)
        for word in str(each.kind).split()
    }
    words = ("ordered", "unordered", "bounded", "unbounded", "bulk", "single")
    for verb, (store, capabilities), word in product(VERBS.values(), STORES.items(), words):
        assert not verb.needs(capabilities) or (verb.name, store, word) in met
