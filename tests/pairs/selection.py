"""Which rounds of the whole matrix are in the ordinary run, and what the whole matrix is."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache

from round_state import KINDS, Kind
from rounds import Round, pairs

from holdfast.contracts import Capabilities

STORES = {
    "postgres": Capabilities(joins_transactions=True),
    "redis": Capabilities(foreign_groups=True),
    "nats": Capabilities(foreign_groups=True),
}
_SHARE = {"postgres": 0.36, "redis": 0.54, "nats": 0.1}
"""How much of the selection is for each store: most for finely locked and for cheap ones."""


def everything(store: str) -> list[Round]:
    """Every pair of verbs on every kind of consumer."""
    return [Round(first, second, kind) for first, second in pairs(STORES[store]) for kind in KINDS]


@cache
def selected(seed: int) -> dict[str, list[Round]]:
    """Every pair of verbs once, on the store and the kind of consumer that both verbs have met least."""
    chosen: dict[str, list[Round]] = {store: [] for store in STORES}
    met: Counter[tuple[str, ...]] = Counter()
    known = {store: set(pairs(capabilities)) for store, capabilities in STORES.items()}
    every = sorted(set[tuple[str, str]]().union(*known.values()))
    random.Random(seed).shuffle(every)
    for pair in every:
        options = [
            (sum(met[each] / _SHARE[store] for each in _meetings(store, kind, pair)), store, str(kind), kind)
            for store in STORES
            if pair in known[store]
            for kind in KINDS
        ]
        _, store, _, kind = min(options)
        met.update(_meetings(store, kind, pair))
        chosen[store].append(Round(*pair, kind))
    return chosen


def _meetings(store: str, kind: Kind, pair: tuple[str, str]) -> Iterator[tuple[str, ...]]:
    """What each verb meets in a round: a store, a kind of consumer, and each of its properties there."""
    for verb in set(pair):
        yield verb, store
        yield verb, str(kind)
        for word in str(kind).split():
            yield verb, store, word
