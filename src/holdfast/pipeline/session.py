"""The Spark session: one place that starts Spark, on this machine or on a cluster.

with session("local[*]") as spark:
    spark.read.format("holdfast")…
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from holdfast.embedded.wheels import OLDEST, MissingWheelError, java_home
from holdfast.model import errors
from holdfast.model.errors import HoldfastError
from holdfast.pipeline import bundle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LOCAL = "local[*]"
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.executor.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.hadoop.fs.permissions.umask-mode": "077",  # checkpoints, as all that commands write
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.pollingDelay": "200ms",  # an idle stream asks its stores this often
}

_LOGGING = "-Dlog4j2.configurationFile=file:{}"
_PLANS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
"""Of a driver whose rows never pass through Java: to compile for speed costs more than all that it does."""

_OURS = re.compile(r"holdfast\.[a-z_.]+\.([A-Z]\w+): (.*)")
_OTHER = re.compile(r"^(?:: |Caused by: )?(?:\w+\.)*(\w+(?:Error|Exception)): (.*)$", re.MULTILINE)


@contextmanager
def session(
    master: str = LOCAL,
    *,
    name: str = "holdfast",
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
    plans: bool = False,
) -> Iterator[SparkSession]:
    """A session for the length of a block. `settings` are Spark's own and go before ours; what Java says goes
    to the end of `log`, by default to where this process writes. With `plans`, Java only plans."""
    spark = start(master, name=name, settings=settings, log=log, plans=plans)
    interrupted = False
    try:
        yield spark
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        try:
            # Ctrl-C breaks off a question to Java, whose next answer is missing then. Java ends with us.
            with warnings.catch_warnings(action="ignore") if interrupted else nullcontext():
                spark.stop()
        except Exception:
            if not interrupted:
                raise


def start(
    master: str = LOCAL,
    *,
    name: str = "holdfast",
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
    plans: bool = False,
) -> SparkSession:
    """A session on a master: `local[*]`, `spark://host:7077`, `yarn`, `k8s://…`. Stop it when done.

    Executors that are processes of their own get this package as a bundle.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise HoldfastError("Spark is not installed: pip install 'holdfast[spark]'") from None
    # The driver's helpers and, on one machine, the executors are to be the same Python as this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(name)
    with _java(), as_file(files(__package__) / "log4j2.properties") as logging:
        java = {"spark.driver.extraJavaOptions": " ".join([_LOGGING.format(logging), *(_PLANS * plans)])}
        chosen = {**SETTINGS, **_network(master), **java, **(settings or {})}
        for setting, value in chosen.items():
            builder = builder.config(setting, value)
        with _undisturbed():
            _launch({**chosen, "spark.master": master, "spark.app.name": name}, log)
        spark = builder.getOrCreate()  # may be interrupted: a master that does not answer takes a minute
    if not is_local(master):
        _ship(spark)
    return spark


def _launch(settings: Mapping[str, str], log: Path | None) -> None:
    """Start Java as a session would, unless it runs already. Whatever it says goes to `log`, if any."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        with nullcontext() if log is None else log.open("ab") as said:
            streams = {} if said is None else {"stdout": said, "stderr": said}
            gateway = launch_gateway(conf, streams)  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let signals wait: where a start of Java is broken off, Spark leaves the process behind."""
    heard: list[int] = []

    def hear(number: int, _: object) -> None:
        heard.append(number)

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, hear) for number in (_SIGNALS if main else ())}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for each in heard:
            signal.raise_signal(each)


def is_local(master: str) -> bool:
    """Whether the executors are threads of the driver's own process."""
    return master == "local" or master.startswith("local[")


def _network(master: str) -> dict[str, str]:
    """A driver whose executors are all on this machine listens to nobody else."""
    here = is_local(master) or urlsplit(master).hostname in ("127.0.0.1", "localhost")
    return {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"} if here else {}


@contextmanager
def _java() -> Iterator[None]:
    """JAVA_HOME while Spark starts: the machine's own Java, or the one that a wheel brings."""
    before = os.environ.get("JAVA_HOME")
    with tempfile.TemporaryDirectory(prefix="holdfast-java-") as folder:
        try:
            os.environ["JAVA_HOME"] = str(java_home(Path(folder)))
        except MissingWheelError:
            raise HoldfastError(
                f"Spark needs Java {OLDEST} or newer, and there is none in JAVA_HOME or PATH; "
                "install one, or let a wheel bring it: pip install 'holdfast[spark]'"
            ) from None
        try:
            yield
        finally:
            del os.environ["JAVA_HOME"]
            if before is not None:
                os.environ["JAVA_HOME"] = before


def _ship(spark: SparkSession) -> None:
    """Give the executors this package. Registering the source again makes its tasks use the bundle."""
    from holdfast.pipeline.source import HoldfastSource

    folder = tempfile.mkdtemp(prefix="holdfast-bundle-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # executors may fetch it at any time
    spark.sparkContext.addPyFile(str(bundle.build(Path(folder) / "holdfast.zip")))
    spark.dataSource.register(HoldfastSource)


def explain_failure(error: BaseException | None) -> HoldfastError:
    """The error of Holdfast that made a query fail, as far as the text of Spark's error tells."""
    if isinstance(error, HoldfastError):
        return error
    text = str(error)
    if found := _OURS.findall(text):
        name, message = found[-1]
        kind = getattr(errors, name, HoldfastError)
        plain = isinstance(kind, type) and issubclass(kind, HoldfastError) and "__init__" not in vars(kind)
        return kind(message) if plain else HoldfastError(f"{name}: {message}")
    if other := _OTHER.search(text):
        return HoldfastError(f"the Spark query failed: {other[1]}: {other[2]}")
    return HoldfastError(
        f"the Spark query failed: {text.strip().partition(chr(10))[0] or 'it ended by itself'}"
    )
