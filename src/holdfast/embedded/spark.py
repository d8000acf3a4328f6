"""A standalone Spark cluster from the `pyspark` wheel: a master and its workers."""

import json
import os
from abc import abstractmethod
from pathlib import Path
from typing import Any, Self

from holdfast.embedded.process import Server, http_get
from holdfast.embedded.wheels import java_home, package

# An application whose executors are killed one after the other is not given up.
_OPTIONS = "-Dspark.master.rest.enabled=false -Dspark.deploy.maxExecutorRetries=-1"


class SparkDaemon(Server):
    """A daemon of the cluster; its second port is that of its web page."""

    ports_needed = 2
    start_timeout = 60.0

    def __init__(self, folder: Path | None, java: Path | None) -> None:
        super().__init__(folder)
        self._java = java

    @abstractmethod
    def role(self) -> list[str]:
        """The daemon's class, with the arguments that only it has."""

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @property
    def web_port(self) -> int:
        return self._ports[1]

    def environment(self) -> dict[str, str]:
        return {
            "JAVA_HOME": str(self._java or java_home(self.folder)),
            "SPARK_HOME": str(package("pyspark", "spark")),
            "SPARK_LOCAL_IP": "127.0.0.1",  # for the web page, too
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _OPTIONS,
        }

    def command(self) -> list[str]:
        program = package("pyspark", "spark") / "bin" / "spark-class"
        listen = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.web_port)]
        return [str(program), *self.role(), *listen]


class SparkMaster(SparkDaemon):
    def role(self) -> list[str]:
        return ["org.apache.spark.deploy.master.Master"]

    def ready(self) -> bool:
        return self.state().get("status") == "ALIVE"

    def state(self) -> dict[str, Any]:
        """What the master knows about the cluster; nothing while it starts."""
        answer = http_get(self.web_port, "/json/")
        try:
            return dict(json.loads(answer[1])) if answer else {}
        except ValueError:  # its page answers before its data does
            return {}


class SparkWorker(SparkDaemon):
    def __init__(
        self, folder: Path | None, java: Path | None, master: SparkMaster, cores: int, memory: str
    ) -> None:
        super().__init__(folder, java)
        self._master = master
        self._cores = cores
        self._memory = memory

    def role(self) -> list[str]:
        limits = ["--cores", str(self._cores), "--memory", self._memory]
        work = ["--work-dir", str(self.folder / "work")]
        return ["org.apache.spark.deploy.worker.Worker", self._master.url, *limits, *work]

    def ready(self) -> bool:
        workers = self._master.state().get("workers", [])
        return any(worker["port"] == self.port and worker["state"] == "ALIVE" for worker in workers)


class SparkCluster:
    """One master and some workers, each a `Server` that can be killed alone.

    Anybody on this machine may submit a job to it: it is for tests and demonstrations. A driver sets
    `spark.driver.host` to 127.0.0.1 and PYSPARK_PYTHON to its own interpreter.
    """

    def __init__(
        self,
        workers: int = 2,
        cores: int = 1,
        memory: str = "1g",
        *,
        folder: str | os.PathLike[str] | None = None,
        java: Path | None = None,
    ) -> None:
        """`java` is a JAVA_HOME; without it, see `holdfast.embedded.wheels.java_home`."""

        def place(name: str) -> Path | None:
            return None if folder is None else Path(folder) / name

        self.master = SparkMaster(place("master"), java)
        self.workers = [
            SparkWorker(place(f"worker-{number}"), java, self.master, cores, memory)
            for number in range(workers)
        ]

    @property
    def url(self) -> str:
        return self.master.url

    @property
    def port(self) -> int:
        return self.master.port

    @property
    def running(self) -> bool:
        return all(daemon.running for daemon in self._daemons)

    def start(self) -> Self:
        """Return when the master knows all of its workers."""
        try:
            # A worker that does not find its master tries again only after several seconds.
            self.master.start()
            for worker in self.workers:
                worker.launch()
            for worker in self.workers:
                worker.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        for daemon in self._daemons:
            daemon.stop()

    def kill(self) -> None:
        for daemon in self._daemons:
            daemon.kill()

    def restart(self) -> None:
        """Kill all of it and start it anew: the cluster itself has nothing to write down."""
        self.kill()
        self.start()

    def pause(self) -> None:
        for daemon in self._daemons:
            daemon.pause()

    def resume(self) -> None:
        for daemon in self._daemons:
            daemon.resume()

    @property
    def _daemons(self) -> list[SparkDaemon]:
        return [*reversed(self.workers), self.master]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
