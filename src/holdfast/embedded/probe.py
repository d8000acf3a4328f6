"""A probe asks a server on the loopback interface whether it really answers."""

import http.client
import socket


def answers(port: int, question: bytes, expected: bytes, timeout: float = 1.0) -> bool:
    """Whether the server's answer to `question` contains `expected`."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout) as connection:
            connection.sendall(question)
            received = b""
            while expected not in received:
                block = connection.recv(4096)
                if not block:
                    return False
                received += block
    except OSError:
        return False
    return True


def http_get(port: int, path: str, timeout: float = 1.0) -> tuple[int, bytes] | None:
    """Status and body, or None while nobody answers in HTTP."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
