"""Actors: code of ours as it is, stopped at every call that leaves the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any

Work = Callable[[], Coroutine[Any, Any, object]]
_IDLE = "has nothing to do"


class Turn:
    """Await it to let other actors go first. The label names the call that follows."""

    __slots__ = ("_label",)

    def __init__(self, label: str) -> None:
        self._label = label

    def __await__(self) -> Generator[str, None, None]:
        yield self._label


class CoroutineActor:
    """An actor whose errands are coroutines."""

    def __init__(self, name: str, run_once: Work, *, heals: bool = True) -> None:
        self.name, self.heals = name, heals
        self._work, self._next = run_once, _IDLE
        self._running: Coroutine[Any, Any, object] | None = None

    @property
    def busy(self) -> bool:
        """Whether an run_once is under way."""
        return self._running is not None

    def resume(self) -> str:
        """Go on until the next call; a new run_once goes on to its first."""
        if self._running is None:
            self._running, self._next = self._work(), _IDLE
            self._advance(self._running)
        made = self._next
        if self._running is not None:
            self._advance(self._running)
        return made

    def crash(self) -> None:
        """Forget everything."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def close(self) -> None:
        """End it for good."""
        self.crash()

    def _advance(self, running: Coroutine[Any, Any, object]) -> None:
        try:
            self._next = running.send(None)
        except StopIteration:
            self._running = None


class Crash(BaseException):
    """The process is gone. Nothing that handles errors may handle this."""


class ThreadActor:
    """An actor whose errands are plain functions: a thread that runs only while it is asked to.

    `turn` is called where the function leaves the process. Threads that the function starts by itself take no
    turns: what they do belongs to the step of the one who waits for them.
    """

    _at_hand = threading.local()

    def __init__(self, name: str, run_once: Callable[[], object], *, heals: bool = True) -> None:
        self.name, self.heals, self.busy = name, heals, False
        self._work, self._next = run_once, _IDLE
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._thread: threading.Thread | None = None
        self._dead = self._over = False
        self._error: BaseException | None = None

    @classmethod
    def acting(cls) -> bool:
        """Whether the caller is an actor."""
        return getattr(cls._at_hand, "actor", None) is not None

    @classmethod
    def turn(cls, label: str) -> bool:
        """Whoever else is to go first goes first. False where the caller is no actor."""
        actor: ThreadActor | None = getattr(cls._at_hand, "actor", None)
        if actor is None:
            return False
        actor._wait(label)
        return True

    def resume(self) -> str:
        """Go on until the next call; a new run_once goes on to its first."""
        if not self.busy:
            self.busy, self._next = True, _IDLE
            self._switch()
        made = self._next
        if self.busy:
            self._switch()
        return made

    def crash(self) -> None:
        """Forget everything: the call at hand is never made, or its answer never seen."""
        self._dead = True
        self._switch()
        self._dead = False

    def close(self) -> None:
        """End it for good."""
        if self.busy:
            self.crash()
        if self._thread is not None:
            self._over = True
            self._go.release()
            self._thread.join()

    def _switch(self) -> None:
        """Let the thread run until it waits again; what it failed with fails here."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"simulated {self.name}", daemon=True)
            self._thread.start()
        self._go.release()
        self._back.acquire()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        ThreadActor._at_hand.actor = self
        self._go.acquire()
        while not self._over:
            try:
                self._work()
            except Crash:
                self._next = "crash"
            except BaseException as error:  # raised again by the scheduler's thread
                self._error = error
            self.busy = False
            self._back.release()
            self._go.acquire()

    def _wait(self, label: str) -> None:
        if self._dead:
            raise Crash
        self._next = label
        self._back.release()
        self._go.acquire()
        if self._dead:
            raise Crash
