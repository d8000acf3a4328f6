"""S3 as an object store, through obstore: conditional puts, retries, timeouts.

obstore retries 5xx and lost connections with backoff. A put that was applied and whose answer was lost meets
its own object in the retry: the 412 that follows is settled by comparing the bytes. A 409 looks the same and
means that two puts met, and it may be that neither came through. Objects go up in one request, because a
multipart upload takes no condition, and its final 200 may carry an error.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, BinaryIO

import obstore
from obstore import exceptions
from obstore.store import S3Store as Bucket

from holdfast.model.backoff import backoff_seconds
from holdfast.model.errors import InvalidInput, NotFound, ObjectConflict, Unavailable
from holdfast.pipeline.stores.store import Entry, Tagged, check_key

_REQUEST, _CONNECT = timedelta(seconds=60), timedelta(seconds=5)
_RETRIES, _PATIENCE = 6, timedelta(seconds=60)
_CONFLICTS = 6
_BACKOFF = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=10), "base": 2}
_SETTINGS = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_REGION": "region",
    "AWS_DEFAULT_REGION": "default_region",
    "AWS_ENDPOINT_URL": "endpoint",
    "AWS_ENDPOINT_URL_S3": "endpoint",
    "AWS_CHECKSUM_ALGORITHM": "checksum_algorithm",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "virtual_hosted_style_request",
}


class _Object(io.RawIOBase):
    """An object as a file, a request for each part that is read."""

    def __init__(self, store: S3Store, name: str, size: int) -> None:
        self._store, self._name, self._size, self._at = store, name, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        [data] = self._store.parts(self._name, [(self._at, end)])
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class S3Store:
    """Objects under `prefix` in a bucket that exists."""

    def __init__(self, bucket: str, prefix: str, environment: Mapping[str, str]) -> None:
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        config: Any = {_SETTINGS[name]: environment[name] for name in _SETTINGS if environment.get(name)}
        plain = config.get("endpoint", "").startswith("http://")
        client: Any = {"timeout": _REQUEST, "connect_timeout": _CONNECT, "allow_http": plain}
        retry: Any = {"max_retries": _RETRIES, "retry_timeout": _PATIENCE, "backoff": _BACKOFF}
        self._bucket = Bucket(
            bucket, prefix=prefix or None, config=config, client_options=client, retry_config=retry
        )

    def put(self, name: str, data: bytes) -> bool:
        for attempt in range(_CONFLICTS):
            with self._translated(name):
                try:
                    obstore.put(self._bucket, check_key(name), data, mode="create", use_multipart=False)
                    return True
                except exceptions.AlreadyExistsError:
                    pass
            with contextlib.suppress(NotFound):
                return self._same(name, data)
            # A 409: somebody else's put of that name was under way, and failed.
            time.sleep(backoff_seconds(attempt + 1, 0.1, 10.0))
        raise Unavailable(f"{self.url}/{name} was refused as a conflict {_CONFLICTS} times, and is not there")

    def _same(self, name: str, data: bytes) -> bool:
        if self.get(name) != data:
            raise ObjectConflict(f"{self.url}/{name} exists with other content; it was left as it is")
        return False

    def swap(self, name: str, tag: str, data: bytes) -> bool:
        with self._translated(name):
            try:
                mode: Any = {"e_tag": tag}
                obstore.put(self._bucket, check_key(name), data, mode=mode, use_multipart=False)
                return True
            except (exceptions.PreconditionError, FileNotFoundError):
                pass
        return self.size(name) == len(data) and self.get(name) == data

    def get(self, name: str) -> bytes:
        with self._translated(name):
            return bytes(obstore.get(self._bucket, check_key(name)).bytes())

    def parts(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Neighbours are fetched together."""
        with self._translated(name):
            starts, ends = [each[0] for each in ranges], [each[1] for each in ranges]
            found = obstore.get_ranges(self._bucket, check_key(name), starts=starts, ends=ends)
            return [bytes(each) for each in found]

    def reader(self, name: str) -> BinaryIO:
        size = self.size(name)
        if size is None:
            raise NotFound(f"there is no object {self.url}/{name}, or no such bucket")
        return io.BufferedReader(_Object(self, name, size))

    def tagged(self, name: str) -> Tagged:
        with self._translated(name):
            found = obstore.get(self._bucket, check_key(name))
            return Tagged(bytes(found.bytes()), found.meta["e_tag"] or "")

    def size(self, name: str) -> int | None:
        try:
            with self._translated(name):
                return obstore.head(self._bucket, check_key(name))["size"]
        except NotFound:
            return None

    def list(self, prefix: str = "") -> Iterator[Entry]:
        with self._translated(prefix):
            for page in obstore.list(self._bucket, prefix=prefix.rstrip("/") or None):
                for found in page:
                    yield Entry(found["path"], found["size"])

    def delete(self, name: str) -> None:
        with contextlib.suppress(NotFound), self._translated(name):
            obstore.delete(self._bucket, check_key(name))

    @contextlib.contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        """obstore's errors as ours; its messages' first line says enough."""
        try:
            yield
        except FileNotFoundError:
            raise NotFound(f"there is no object {self.url}/{name}, or no such bucket") from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise InvalidInput(
                f"{self.url} refuses us: {_brief(error)}; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ) from None
        except (exceptions.BaseError, OSError) as error:
            raise Unavailable(f"{self.url} did not answer: {_brief(error)}") from error


def _brief(error: Exception) -> str:
    return str(error).partition("\n")[0]
