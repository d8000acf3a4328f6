"""What the processes of the pipeline have imported besides, where it is installed."""

import holdfast.chaos.parties.archiver
import holdfast.chaos.parties.ingester
import holdfast.pipeline.ingest.plan
import holdfast.pipeline.warehouse.delta  # noqa: F401 - to have them imported
