"""The table of verbs is whole, and the selection of rounds meets what it must."""

from __future__ import annotations

import inspect
from itertools import product
from typing import get_type_hints

from checks import SEED
from rounds import pairs
from selection import STORES, selected
from verbs import VERBS

from holdfast.contracts import Backend

KIT = {"open", "close", "fork", "now", "epoch", "advance", "check", "listen"}
"""What belongs to no noun: it changes nothing in a store, or belongs to the kit."""
READS = {
    "channels.backlogs",
    "channels.consumer",
    "channels.consumer_stats",
    "channels.consumers",
    "channels.job_times",
    "channels.names",
    "channels.stats",
    "cursors.all",
    "deadletters.clusters",
    "deadletters.counts",
    "deadletters.letter",
    "deadletters.page",
    "groups.all",
    "leases.completions",
    "leases.find_jobs",
    "leases.job",
    "leases.stuck",
    "lifecycle.due",
    "log.behind",
    "log.cuts",
    "log.extent",
    "log.pages",
    "log.read",
    "log.read_parts",
    "log.seek",
    "log.waiting",
    "records.due",
    "records.get",
    "retention.size",
}
"""What changes nothing in a store. Any other verb of the contract is in a verb of the pairs."""


def test_every_method_that_changes_something_is_a_verb() -> None:
    methods = {
        f"{noun}.{name}"
        for noun, each in inspect.getmembers(Backend, lambda found: isinstance(found, property))
        for name, _ in inspect.getmembers(get_type_hints(each.fget)["return"], inspect.isfunction)
        if not name.startswith("_")
    }
    of_the_store = {name for name, _ in inspect.getmembers(Backend, inspect.isfunction) if name[0] != "_"}
    assert of_the_store == KIT
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
