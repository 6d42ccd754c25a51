"""The client for threads: does what flows ask for."""

from __future__ import annotations

import contextlib
import functools
import ssl
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Optional, Sequence, Type, TypeVar

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


def _one(build: Callable[Concatenate[Operations, P], Flow[T]]) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(build)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(build(self._operations, *args, **kwargs))

    return shown_as(method, "{}")


def _many(build: Callable[Concatenate[Operations, P], Items[T]]) -> Callable[Concatenate[Client, P], Iterator[T]]:
    @functools.wraps(build)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._iterate(build(self._operations, *args, **kwargs))

    return shown_as(method, "Iterator[{}]")


class Client(ClientBase):
    """A client of a cluster, for any number of threads.

    `nodes` are the URLs of the nodes, in a list or with commas between; any of them may be down. After a fork the child
    process has connections of its own; the thread of a cache is not there: start the cache again.

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
        transport: Optional[httpx.BaseTransport] = None,
    ) -> None:
        tls = (ca_file, cert_file, cert_key_file, ssl_context)
        self._set_up(
            nodes, (key, key_file), tls, timeout, attempt_timeout, connect_timeout, environment, (reader, labels)
        )
        self._given = transport
        self._transport = transport or httpx.HTTPTransport(**self._settings.transport_arguments())
        self._caches: List[Cache] = []

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
    ) -> Cache:
        """A copy in memory that follows these definitions. Use it in a `with`, or call `start` and `close`.

        `defaults` are what it answers before a node has answered and while there is no file: data by definition and by
        key.
        """
        core = self._core_of(definitions, configs, filters, file, defaults, poll_s, fresh_s)
        made = Cache(self, core, start_timeout)
        self._caches.append(made)
        return made

    def close(self) -> None:
        for each in [*self._caches]:
            each.close()
        self._transport.close()

    def _after_fork(self) -> None:
        super()._after_fork()
        # The connections of the parent are neither used nor closed: what is written on them is read by its node.
        _PARENTS.append(self._transport)
        if self._given is None:
            self._transport = httpx.HTTPTransport(**self._settings.transport_arguments())
        else:
            self._transport = _Unusable()
        for each in self._caches:
            each._after_fork()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    # --- What flows ask for -----------------------------------------------------------------------------------------

    def _run(self, flow: Flow[T], perform: Optional[Callable[[Effect], Any]] = None) -> T:
        perform = perform or self._perform
        try:
            effect = next(flow)
            while True:
                try:
                    result = perform(effect)
                except Exception as error:  # noqa: BLE001 (the flow judges it)
                    effect = flow.throw(error)
                else:
                    effect = flow.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    def _iterate(self, flow: Items[T]) -> Iterator[T]:
        try:
            effect = next(flow)
            while True:
                if isinstance(effect, Item):
                    yield effect.value
                    effect = next(flow)
                else:
                    effect = flow.send(self._perform(effect))
        except StopIteration:
            return
        finally:
            flow.close()

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Send):
            return self._send(effect)
        if isinstance(effect, Pause):
            return time.sleep(effect.seconds)
        return effect.function()

    def _send(self, send: Send) -> Response | Failure:
        request, until = send.request, time.monotonic() + send.timeout_s
        try:
            answer = self._transport.handle_request(self._settings.request(send))
            with contextlib.closing(answer):
                body: List[bytes] = []
                try:
                    for chunk in answer.iter_bytes():
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
                return Response(answer.status_code, answer.headers, b"".join(body))
        except httpx.HTTPError as error:
            return failure(error)


_PARENTS: List[Any] = []
"""What a process has of its parent, held so that nothing of it is closed."""


class _Unusable(httpx.BaseTransport):
    """What a child process has in place of a transport that its parent was given."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        raise ConcordError("the client was made before a fork, with a transport of its own: make one in this process")


class _Stopped(BaseException):
    """The cache is closed. No flow handles that as a failure."""


class Cache(CacheView):
    """A copy in memory, kept by a thread; another one sends its reports. Reading it asks nobody."""

    def __init__(self, client: Client, core: CacheCore, start_timeout_s: float) -> None:
        self._client, self._core, self._start_timeout_s = client, core, start_timeout_s
        self._stop = threading.Event()
        self._progress = threading.Condition()
        self._news = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self._reporter: Optional[threading.Thread] = None
        core.on_progress = self._notify

    def start(self) -> Cache:
        """Reads the file, and waits until a node has answered, or `start_timeout` is over and there is a file. Raises
        `NotReady` when there is neither."""
        if self._thread is None:
            self._client._run(self._core.begin())
            self._thread = threading.Thread(target=self._follow, name="concord-cache", daemon=True)
            self._thread.start()
            if self._core.reports.is_on:
                self._reporter = threading.Thread(target=self._report, name="concord-reports", daemon=True)
                self._reporter.start()
        if not self._wait(lambda: self._core.is_confirmed, self._start_timeout_s):
            try:
                self._core.start_without_nodes()
            except NotReady:
                self.close()
                raise
        return self

    def _after_fork(self) -> None:
        if self._thread is None:
            return
        self._stop, self._progress, self._thread = threading.Event(), threading.Condition(), None
        self._news, self._reporter = threading.Event(), None
        self._core.after_fork()

    def wait_revision(self, revision: int, timeout: float) -> bool:
        """Waits until the copy has everything up to a revision, as that of one's own write; false when it is late."""
        return self._wait(lambda: self._core.revision >= revision, timeout)

    def close(self) -> None:
        """Ends the threads, and writes the file once more."""
        if self._thread is None or self._stop.is_set():
            return
        self._stop.set()
        self._news.set()
        until = time.monotonic() + 0.5
        for each in (self._thread, self._reporter):
            if each is not None and each is not threading.current_thread():
                # It may be waiting for a node, for some seconds; it does nothing any more when that answers.
                each.join(max(0.0, until - time.monotonic()))
        self._client._caches.remove(self)
        self._client._run(self._core.end())

    def __enter__(self) -> Cache:
        return self.start()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def _notify(self) -> None:
        self._news.set()
        with self._progress:
            self._progress.notify_all()

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        with self._progress:
            return self._progress.wait_for(condition, timeout_s)

    def _follow(self) -> None:
        try:
            self._client._run(self._core.follow(), self._perform)
        except _Stopped:
            return

    def _report(self) -> None:
        reports = self._core.reports
        with contextlib.suppress(_Stopped):
            while not self._stop.is_set():
                self._client._run(reports.send(self._core), self._perform)
                self._news.wait(reports.wait_s())
                self._news.clear()

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Pause):
            self._stop.wait(effect.seconds)
            result = None
        else:
            try:
                result = self._client._perform(effect)
            except RuntimeError:
                # The client was closed under it.
                if not self._stop.is_set():
                    raise
        if self._stop.is_set():
            raise _Stopped
        return result
