"""Private real servers from wheels: no root, no container, nothing to install by hand.

    with Postgres() as server:
        url = server.create_database("orders")

Every server listens on the loopback interface only, keeps all it has in one folder, and is stopped (and a
temporary folder removed) even when the process that started it dies by SIGKILL. The interface is
synchronous: a caller inside an event loop runs it in a thread.
"""

from holdfast.embedded.process import Server, ServerError
from holdfast.embedded.servers import S3, Nats, Postgres, Redis
from holdfast.embedded.spark import SparkCluster
from holdfast.embedded.wheels import MissingWheelError

__all__ = ["S3", "MissingWheelError", "Nats", "Postgres", "Redis", "Server", "ServerError", "SparkCluster"]
