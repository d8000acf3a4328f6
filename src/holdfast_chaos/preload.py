"""What every process of the rig has imported before it is forked; of the pipeline, if it is installed."""

from contextlib import suppress
from importlib import import_module

_ALWAYS = (
    "holdfast.backends.nats.backend",
    "holdfast.backends.postgres.backend",
    "holdfast.backends.redis.backend",
    "holdfast_chaos.rig",
    "holdfast_chaos.roles.consumers",
    "holdfast_chaos.roles.operators",
    "holdfast_chaos.roles.publishers",
    "holdfast_chaos.roles.tasks",
    "holdfast_chaos.roles.upkeep",
)
_PIPELINE = (
    "holdfast.pipeline.ingest.plan",
    "holdfast.pipeline.warehouse.delta",
    "holdfast_chaos.roles.pipeline",
)

for name in _ALWAYS:
    import_module(name)
with suppress(ImportError):
    for name in _PIPELINE:
        import_module(name)
