"""The kinds of store under the rig. A new backend is a new entry here; no test has to change."""

from __future__ import annotations

from holdfast_chaos.stores.nats import NatsStore
from holdfast_chaos.stores.postgres import PostgresStore
from holdfast_chaos.stores.redis import RedisStore

Kind = type[PostgresStore] | type[RedisStore] | type[NatsStore]
STORES: dict[str, Kind] = {"postgres": PostgresStore, "redis": RedisStore, "nats": NatsStore}
