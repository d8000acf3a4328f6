"""What the processes of the pipeline have imported besides, where it is installed."""

import holdfast.chaos.plain.archive
import holdfast.chaos.plain.ingest
import holdfast.pipeline.ingest.plan
import holdfast.pipeline.warehouse.delta  # noqa: F401
