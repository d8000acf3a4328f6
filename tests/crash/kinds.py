"""The kinds of store under the rig. A new backend is a new entry here; no test has to change."""

from __future__ import annotations

from store_nats import NatsStore
from store_postgres import PostgresStore
from store_redis import RedisStore

Kind = type[PostgresStore] | type[RedisStore] | type[NatsStore]
STORES: dict[str, Kind] = {"postgres": PostgresStore, "redis": RedisStore, "nats": NatsStore}
