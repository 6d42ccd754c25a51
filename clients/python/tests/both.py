"""The clients for threads and for asyncio behind one face, so that one test is of both."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Iterator, Union

from concord_client import AsyncClient, Client


class Driven:
    """An object whose coroutines are run, and whose asynchronous iterators are iterated, in an event loop."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._target, self._loop = target, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found

        def method(*args: Any, **kwargs: Any) -> Any:
            made = found(*args, **kwargs)
            if inspect.iscoroutine(made):
                return self._loop.run_until_complete(made)
            if hasattr(made, "__anext__"):
                return self._iterate(made)
            return Driven(made, self._loop) if hasattr(made, "__aenter__") else made

        return method

    def _iterate(self, items: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._loop.run_until_complete(items.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            self._loop.run_until_complete(items.aclose())

    def run_for(self, seconds: float) -> None:
        """Lets tasks go on."""
        self._loop.run_until_complete(asyncio.sleep(seconds))

    def __enter__(self) -> Any:
        self._loop.run_until_complete(self._target.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._loop.run_until_complete(self._target.__aexit__(*error))


def both(kind: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
    """A client of a kind, for a fixture."""
    if kind == "threads":
        with Client(*args, **kwargs) as client:
            yield client
        return
    loop = asyncio.new_event_loop()

    async def made() -> AsyncClient:
        return AsyncClient(*args, **kwargs)

    try:
        with Driven(loop.run_until_complete(made()), loop) as driven:
            yield driven
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def pause(client: Union[Client, Driven], seconds: float) -> None:
    """Lets a cache go on, whoever keeps it."""
    if isinstance(client, Driven):
        client.run_for(seconds)
    else:
        import time  # noqa: PLC0415

        time.sleep(seconds)
