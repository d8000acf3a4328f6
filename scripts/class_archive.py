"""Keep the classes that Spark loads in an archive of Java's, for the tests: with it a JVM starts with a third
less CPU time.

    python scripts/class_archive.py .venv/spark.jsa

Java ignores an archive that does not fit it, so this may fail without harm.
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory


def main(archive: Path) -> int:
    """Run a small job of each kind and let Java write down what it needed; ends with Java's own code."""
    from holdfast.pipeline.session import session

    options = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable")  # as the tests have them
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join([*options, f'"-XX:ArchiveClassesAtExit={archive.absolute()}"'])
    archive.unlink(missing_ok=True)
    with (
        TemporaryDirectory() as folder,
        session("local[2]", settings={"spark.sql.shuffle.partitions": "2"}) as spark,
    ):
        from pyspark import SparkContext

        spark.range(100).selectExpr("id % 7 AS key", "id").groupBy("key").count().write.parquet(
            f"{folder}/counts"
        )
        spark.read.parquet(f"{folder}/counts").join(
            spark.range(7).withColumnRenamed("id", "key"), "key"
        ).collect()
        java: subprocess.Popen[bytes] = SparkContext._gateway.proc
    java.stdin.close()  # Java ends with its driver, and writes the archive then
    return java.wait()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
