"""The client for asyncio: does what flows ask for."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Coroutine, Dict, List, Optional, Sequence, Type, TypeVar

import httpx

from ._cache import CacheCore, CacheView, Defaults
from ._client import ClientBase
from ._connect import Nodes, failure
from ._errors import ConcordError, NotReady
from ._flow import Effect, Failure, Flow, Item, Items, Pause, Response, Send
from ._operations import Operations
from ._reader import Host, Labels, ReaderName
from ._requests import Filters
from ._signature import shown_as

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")


def _one(
    build: Callable[Concatenate[Operations, P], Flow[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    @functools.wraps(build)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(build(self._operations, *args, **kwargs))

    return shown_as(method, "{}")


def _many(
    build: Callable[Concatenate[Operations, P], Items[T]],
) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    @functools.wraps(build)
    def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return self._iterate(build(self._operations, *args, **kwargs))

    return shown_as(method, "AsyncIterator[{}]")


class AsyncClient(ClientBase):
    """A client of a cluster, for asyncio.

    `nodes` are the URLs of the nodes, in a list or with commas between; any of them may be down. It has connections of
    its own in each event loop and in each process. The task of a cache ends with its loop: start the cache again.

    With an `environment`, its name stands with a dot before each definition key: with `prod`, `limits` is the
    definition `prod.limits` of the cluster. Answers have the keys without it, and lists and watches without a
    definition are of this environment, so one program runs in every environment. `default` has no prefix.

    A rollout chooses by `reader`, by default the host name, and by `labels`, as in `{"ring": "canary"}`, who sees its
    candidates. With None, this client sees them at the end only. It is no secret and proves nothing.
    """

    def __init__(
        self,
        nodes: Nodes,
        key: Optional[str] = None,
        *,
        key_file: Optional[str] = None,
        ca_file: Optional[str] = None,
        cert_file: Optional[str] = None,
        cert_key_file: Optional[str] = None,
        ssl_context: Optional[ssl.SSLContext] = None,
        timeout: float = 30.0,
        attempt_timeout: float = 5.0,
        connect_timeout: float = 2.0,
        environment: Optional[str] = None,
        reader: ReaderName = Host.NAME,
        labels: Optional[Labels] = None,
        transport: Optional[httpx.AsyncBaseTransport] = None,
    ) -> None:
        tls = (ca_file, cert_file, cert_key_file, ssl_context)
        self._set_up(
            nodes, (key, key_file), tls, timeout, attempt_timeout, connect_timeout, environment, (reader, labels)
        )
        self._given = transport
        self._transports: Dict[asyncio.AbstractEventLoop, httpx.AsyncBaseTransport] = {}
        self._caches: List[AsyncCache] = []

    create_definition = _one(Operations.create_definition)
    ensure_definition = _one(Operations.ensure_definition)
    get_definition = _one(Operations.get_definition)
    list_definitions = _many(Operations.list_definitions)
    set_indexes = _one(Operations.set_indexes)
    delete_definition = _one(Operations.delete_definition)
    set_schema = _one(Operations.set_schema)
    get_unique = _one(Operations.get_unique)
    set_unique = _one(Operations.set_unique)
    get_protection = _one(Operations.get_protection)
    set_protection = _one(Operations.set_protection)
    undelete_definition = _one(Operations.undelete_definition)
    deleted_definitions = _one(Operations.deleted_definitions)
    index_progress = _one(Operations.index_progress)
    definition_history = _many(Operations.definition_history)
    create = _one(Operations.create)
    get = _one(Operations.get)
    find = _one(Operations.find)
    get_if_changed = _one(Operations.get_if_changed)
    list = _many(Operations.list)
    page = _one(Operations.page)
    list_across = _many(Operations.list_across)
    read_many = _one(Operations.read_many)
    put = _one(Operations.put)
    upsert = _one(Operations.upsert)
    patch = _one(Operations.patch)
    update = _one(Operations.update)
    delete = _one(Operations.delete)
    history = _many(Operations.history)
    rollback = _one(Operations.rollback)
    batch = _one(Operations.batch)
    transaction = _one(Operations.transaction)
    propose = _one(Operations.propose)
    watch = _many(Operations.watch)
    whoami = _one(Operations.whoami)
    cluster = _one(Operations.cluster)
    request = _one(Operations.request)

    def cache(
        self,
        *definitions: str,
        configs: Optional[Sequence[str]] = None,
        filters: Optional[Filters] = None,
        file: Optional[str] = None,
        defaults: Optional[Defaults] = None,
        poll_s: int = 5,
        fresh_s: float = 15.0,
        start_timeout: float = 10.0,
    ) -> AsyncCache:
        """A copy in memory that follows these definitions. Use it in an `async with`, or call `start` and `close`.

        `defaults` are what it answers before a node has answered and while there is no file: data by definition and by
        key.
        """
        core = self._core_of(definitions, configs, filters, file, defaults, poll_s, fresh_s)
        made = AsyncCache(self, core, start_timeout)
        self._caches.append(made)
        return made

    async def close(self) -> None:
        for each in [*self._caches]:
            await each.close()
        transport = self._transports.pop(asyncio.get_running_loop(), self._given)
        if transport is not None:
            await transport.aclose()

    def _transport(self) -> httpx.AsyncBaseTransport:
        """That of the loop: a connection belongs to the loop that it was made in."""
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        found = self._transports.get(loop)
        if found is None:
            # What is left of loops that have ended can't be closed any more: it goes with its sockets.
            self._transports = {each: of for each, of in self._transports.items() if not each.is_closed()}
            found = self._transports[loop] = httpx.AsyncHTTPTransport(**self._settings.transport_arguments())
        return found

    def _after_fork(self) -> None:
        super()._after_fork()
        # The connections of the parent are neither used nor closed: what is written on them is read by its node.
        _PARENTS.append((self._transports, self._given))
        self._transports = {}
        if self._given is not None:
            self._given = _Unusable()
        for each in self._caches:
            each._after_fork()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()

    # --- What flows ask for -----------------------------------------------------------------------------------------

    async def _run(self, flow: Flow[T]) -> T:
        try:
            effect = next(flow)
            while True:
                try:
                    result = await self._perform(effect)
                except Exception as error:  # noqa: BLE001 (the flow judges it)
                    effect = flow.throw(error)
                else:
                    effect = flow.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    async def _iterate(self, flow: Items[T]) -> AsyncIterator[T]:
        try:
            effect = next(flow)
            while True:
                if isinstance(effect, Item):
                    yield effect.value
                    effect = next(flow)
                else:
                    effect = flow.send(await self._perform(effect))
        except StopIteration:
            return
        finally:
            flow.close()

    async def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Send):
            return await self._send(effect)
        if isinstance(effect, Pause):
            return await asyncio.sleep(effect.seconds)
        return await asyncio.to_thread(effect.function)

    async def _send(self, send: Send) -> Response | Failure:
        request, until = send.request, time.monotonic() + send.timeout_s
        try:
            answer = await self._transport().handle_async_request(self._settings.request(send))
            body: List[bytes] = []
            try:
                async for chunk in answer.aiter_bytes():
                    if request.sink is None or not answer.is_success:
                        body.append(chunk)
                        if time.monotonic() > until:
                            return Failure("the answer did not end in time", True)
                    elif request.sink.feed(chunk):
                        break
            except httpx.HTTPError:
                # A sink knows whether it has all.
                if request.sink is None or not answer.is_success:
                    raise
            finally:
                await answer.aclose()
            return Response(answer.status_code, answer.headers, b"".join(body))
        except httpx.HTTPError as error:
            return failure(error)


_PARENTS: List[Any] = []
"""What a process has of its parent, held so that nothing of it is closed."""


class _Unusable(httpx.AsyncBaseTransport):
    """What a child process has in place of a transport that its parent was given."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        raise ConcordError("the client was made before a fork, with a transport of its own: make one in this process")


class AsyncCache(CacheView):
    """A copy in memory, kept by a task; another one sends its reports. Reading it asks nobody and awaits nothing."""

    def __init__(self, client: AsyncClient, core: CacheCore, start_timeout_s: float) -> None:
        self._client, self._core, self._start_timeout_s = client, core, start_timeout_s
        self._waiting: List[asyncio.Event] = []
        self._task: Optional[asyncio.Task[None]] = None
        self._reporter: Optional[asyncio.Task[None]] = None
        self._news: Optional[asyncio.Event] = None
        core.on_progress = self._notify

    async def start(self) -> AsyncCache:
        """Reads the file, and waits until a node has answered, or `start_timeout` is over and there is a file. Raises
        `NotReady` when there is neither."""
        if self._task is None or self._task.done():
            await self._client._run(self._core.begin())
            self._task = asyncio.create_task(self._client._run(self._core.follow()), name="concord-cache")
            if self._core.reports.is_on:
                self._news = asyncio.Event()
                self._reporter = asyncio.create_task(self._report(self._news), name="concord-reports")
        if not await self._wait(lambda: self._core.is_confirmed, self._start_timeout_s):
            try:
                self._core.start_without_nodes()
            except NotReady:
                await self.close()
                raise
        return self

    def _after_fork(self) -> None:
        if self._task is None:
            return
        self._task, self._waiting = None, []
        self._reporter, self._news = None, None
        self._core.after_fork()

    async def wait_revision(self, revision: int, timeout: float) -> bool:
        """Waits until the copy has everything up to a revision, as that of one's own write; false when it is late."""
        return await self._wait(lambda: self._core.revision >= revision, timeout)

    async def close(self) -> None:
        """Ends the tasks, and writes the file once more."""
        task, self._task = self._task, None
        reporter, self._reporter = self._reporter, None
        if task is None:
            return
        tasks = [task] if reporter is None else [task, reporter]
        for each in tasks:
            each.cancel()
        for each in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await each
        self._client._caches.remove(self)
        await self._client._run(self._core.end())

    async def __aenter__(self) -> AsyncCache:
        return await self.start()

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()

    async def _report(self, news: asyncio.Event) -> None:
        reports = self._core.reports
        while True:
            await self._client._run(reports.send(self._core))
            # Not `wait_for`: before Python 3.12 it may lose a cancellation that comes together with news.
            timer = asyncio.get_running_loop().call_later(reports.wait_s(), news.set)
            try:
                await news.wait()
            finally:
                timer.cancel()
            news.clear()

    def _notify(self) -> None:
        if self._news is not None:
            self._news.set()
        for event in self._waiting:
            event.set()

    async def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        event, until = asyncio.Event(), time.monotonic() + timeout_s
        self._waiting.append(event)
        try:
            while not condition():
                event.clear()
                try:
                    await asyncio.wait_for(event.wait(), max(0.0, until - time.monotonic()))
                except asyncio.TimeoutError:
                    return condition()
            return True
        finally:
            self._waiting.remove(event)
