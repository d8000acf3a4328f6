"""Object stores: folders, S3 and PostgreSQL tables behind one small contract.

    store = open_store("s3://bucket/prefix")
    store.put("archive/a.jsonl.gz", data)

A store is safe to use from many threads. Nothing here needs Spark.
"""

from holdfast.pipeline.stores.address import open_store
from holdfast.pipeline.stores.contract import Entry, ObjectStore
from holdfast.pipeline.stores.probe import probe

__all__ = ["Entry", "ObjectStore", "open_store", "probe"]
