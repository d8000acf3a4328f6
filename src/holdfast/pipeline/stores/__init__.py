"""Object stores: folders, S3 and PostgreSQL tables behind one small contract.

    store = open_store("s3://bucket/prefix")
    store.put("archive/a.jsonl.gz", data)

A store is safe to use from many threads. Nothing here needs Spark.
"""

from holdfast.pipeline.stores.store import (
    Entry,
    ObjectStore,
    Tagged,
    check_key,
    cloud_environment,
    folder_of,
    open_store,
    probe,
)

__all__ = [
    "Entry",
    "ObjectStore",
    "Tagged",
    "check_key",
    "cloud_environment",
    "folder_of",
    "open_store",
    "probe",
]
