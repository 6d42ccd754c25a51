"""A copy in memory that follows the cluster, and says how old it is.

The copy is put together from a state and the changes after it. Every few seconds a linearizable read tells the revision
of the cluster; once the copy has that revision, it is known to have held, when that read was sent, every write that was
acknowledged before.

**Invariants:** `age_s` is never less than the age of the copy: every write that was acknowledged more than `age_s` ago
is in it. The age does not rest on what a node says while it waits, nor on the wall clock but for what was read from a
file. A change is applied as a whole, and the copy never goes back while its cluster does not.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import (
    Any,
    Callable,
    Dict,
    Generic,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
)

from ._errors import ApiError, ConcordError, ModelError, NotCached, NotReady, ProtocolError
from ._file import UnusableFile, load, save
from ._flow import Flow, Pause, Work
from ._following import Following
from ._json import frozen
from ._models import from_data, to_data
from ._records import Config, Definition, Event, State, config, definition, time_of
from ._report import Reports
from ._requests import Filters, filter_params

log = logging.getLogger("concord_client")

M = TypeVar("M")
_NONE: Any = object()
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.1, 5.0
_RELIST_S = 300.0
"""How often the whole state is read again: the rights of the key may have changed, which is no change of a config."""
_SAVE_CHANGED_S, _SAVE_CONFIRMED_S = 1.0, 30.0

_FORKED = "the process was forked after the start of the cache: call start() in this process"

LIVE, CACHE, FILE, DEFAULT = "live", "cache", "file", "default"


class Value:
    """A value of the cache, and where it came from."""

    __slots__ = (
        "age_s", "data", "definition", "invalid", "key", "modified_at", "node", "redacted", "revision", "source",
        "state_revision", "variant",
    )  # fmt: skip

    def __init__(
        self,
        definition: str,
        key: str,
        data: Any,
        source: str,
        node: Optional[str],
        revision: Optional[int],
        modified_at: Any,
        state_revision: int,
        age_s: float,
        redacted: Tuple[str, ...] = (),
        variant: Optional[str] = None,
    ) -> None:
        self.definition, self.key, self.data = definition, key, data
        self.source = source
        """`live`: confirmed a moment ago, and nothing has failed since. `cache`: from memory, while no node confirms
        it. `file`: from the last-known-good file. `default`: what the caller gave, because there is no such config."""
        self.node = node
        """The URL of the node that it came from."""
        self.revision = revision
        """The revision of the config; None of a default, 0 for a candidate, which has none."""
        self.modified_at = modified_at
        self.state_revision = state_revision
        """The revision up to which the copy has every change."""
        self.age_s = age_s
        """Every write that was acknowledged longer ago is in it."""
        self.redacted = redacted
        """The places of secret values that the key may not see; they are None."""
        self.variant = variant
        """The id of the change request whose candidate it is; None for what is proven."""
        self.invalid: Optional[ModelError] = None
        """Of `Typed.explain`: why the newest data don't fit the model. `data` and `revision` are those of the last
        instance then."""

    @property
    def is_fresh(self) -> bool:
        return self.source == LIVE

    def to(self, model: Type[M]) -> M:
        """The data as an instance of a pydantic model or a dataclass. Raises `ModelError` when they don't fit."""
        return from_data(model, self.data)

    def __repr__(self) -> str:
        name = f"{self.definition}/{self.key}"
        return f"<{name} of {self.source}, revision {self.revision}, {self.age_s:.1f} s old, node {self.node}>"


@dataclass(frozen=True)
class Status:
    """What a cache has."""

    source: str
    """As of a value; `none` before there is anything."""
    age_s: float
    revision: int
    configs: int
    node: Optional[str]
    error: Optional[str]
    """Why it is not being confirmed, or why the file could not be read or written."""
    unreadable: Mapping[Tuple[str, str], str] = field(default_factory=dict)
    """Configs that this client can't read, by definition and key, with the reason. They are as they were before."""


Listener = Callable[[Union[Event, State]], None]
Defaults = Mapping[str, Mapping[str, Any]]


class CacheCore:
    """The copy and the flow that keeps it; threads and asyncio are elsewhere."""

    def __init__(
        self,
        following: Following,
        definitions: Sequence[str],
        configs: Sequence[str],
        filters: Optional[Filters],
        file: Optional[str],
        defaults: Optional[Defaults],
        poll_s: int,
        fresh_s: float,
    ) -> None:
        self.defaults = {
            (name, key): frozen(to_data(data))
            for name, by_key in (defaults or {}).items()
            for key, data in by_key.items()
        }
        self.following, self.clock = following, following.context.clock
        self.definition_patterns, self.config_keys = tuple(definitions), tuple(configs)
        asked = [list(each) for each in sorted(filter_params(filters))]
        self.scope = {"definitions": sorted(definitions), "configs": sorted(configs), "filters": asked}
        if following.context.environment is not None:
            # The keys in the file are the same in every environment, and the values are not.
            self.scope["environment"] = following.context.environment.name
        self.file, self.poll_s, self.fresh_s = file, poll_s, fresh_s
        self.configs: Dict[Tuple[str, str], Config] = {}
        self.definitions: Dict[str, Definition] = {}
        self.lock = threading.Lock()
        self.revision = 0
        self.node: Optional[str] = None
        self.confirmed_at: Optional[float] = None
        """By the clock. None before a node has confirmed anything."""
        self.file_confirmed_at: Optional[float] = None
        """By the wall clock."""
        self.error: Optional[str] = None
        self.file_error: Optional[str] = None
        self.unreadable: Dict[Tuple[str, str], str] = {}
        self.listeners: List[Listener] = []
        self._typed: Tuple[weakref.ref[Typed[Any]], ...] = ()
        """Who keeps the last instance of what is replaced. It is replaced as a whole: several threads go through it."""
        self.reports = Reports(following.context)
        self.on_progress: Callable[[], None] = lambda: None
        self._saved_revision, self._saved_at = -1, 0.0
        self._listed_at = 0.0

    def add_typed(self, typed: Typed[Any]) -> None:
        with self.lock:
            self._typed = (*(each for each in self._typed if each() is not None), weakref.ref(typed))

    def all_typed(self) -> List[Typed[Any]]:
        return [found for each in self._typed for found in (each(),) if found is not None]

    # --- Reading ----------------------------------------------------------------------------------------------------

    @property
    def is_loaded(self) -> bool:
        return self.confirmed_at is not None or self.file_confirmed_at is not None

    @property
    def is_confirmed(self) -> bool:
        """Whether a node has confirmed it to this process."""
        return self.confirmed_at is not None and self.error != _FORKED

    def origin(self) -> Tuple[str, float]:
        """Where the copy is from, and its age."""
        confirmed_at = self.confirmed_at
        if confirmed_at is not None:
            age_s = self.clock() - confirmed_at
            return (LIVE if age_s <= self.fresh_s and self.error is None else CACHE), age_s
        if self.file_confirmed_at is not None:
            age_s = time.time() - self.file_confirmed_at
            # A wall clock that was set back says nothing.
            return FILE, age_s if age_s >= 0 else float("inf")
        if self.defaults:
            return DEFAULT, float("inf")
        raise NotReady(f"the cache has nothing yet: {self.error or self.file_error or 'no node has answered'}")

    def get(self, definition: str, key: str, default: Any = _NONE) -> Value:
        # The age and the revision first: what is read afterwards is not older.
        source, age_s = self.origin()
        revision = self.revision
        found = self.configs.get((definition, key))
        if found is not None:
            return self._value(found, source, revision, age_s)
        self._check_covered(definition, key)
        if source == DEFAULT and (definition, key) in self.defaults:
            return Value(definition, key, self.defaults[definition, key], DEFAULT, None, None, None, 0, age_s)
        if (definition, key) in self.unreadable:
            raise ProtocolError(f"the config {definition}/{key} can't be read: {self.unreadable[definition, key]}")
        if default is not _NONE:
            return Value(definition, key, default, DEFAULT, self.node, None, None, revision, age_s)
        error = NotCached(f"there is no config {definition}/{key} (known from {source}, {age_s:.1f} s old)")
        error.source, error.age_s = source, age_s
        raise error

    def _value(self, found: Config, source: str, revision: int, age_s: float) -> Value:
        if (found.definition, found.key) in self.unreadable:
            # There is a newer version: nobody knows how long this one has not been the newest.
            source, age_s = CACHE if source == LIVE else source, float("inf")
        return Value(
            found.definition, found.key, found.data, source, found.node, found.revision, found.modified_at, revision,
            age_s, found.redacted, found.variant,
        )  # fmt: skip

    def _check_covered(self, definition: str, key: str) -> None:
        def matches(pattern: str) -> bool:
            return definition.startswith(pattern[:-1]) if pattern.endswith("*") else pattern == definition

        if self.definition_patterns and not any(map(matches, self.definition_patterns)):
            raise ValueError(f"this cache does not follow the definition {definition!r}")
        if self.config_keys and key not in self.config_keys:
            raise ValueError(f"this cache does not follow the config {key!r}")

    def snapshot(self, definition: Optional[str]) -> List[Value]:
        """The configs of one revision."""
        with self.lock:
            source, age_s = self.origin()
            found, revision = list(self.configs.values()), self.revision
        if source == DEFAULT:
            return [
                Value(name, key, data, DEFAULT, None, None, None, 0, age_s)
                for (name, key), data in self.defaults.items()
                if definition is None or name == definition
            ]
        return [
            self._value(each, source, revision, age_s)
            for each in found
            if definition is None or each.definition == definition
        ]

    def status(self) -> Status:
        error = self.error or self.file_error
        if not self.is_loaded:
            source, count = (DEFAULT, len(self.defaults)) if self.defaults else ("none", 0)
            return Status(source, float("inf"), 0, count, None, error)
        source, age_s = self.origin()
        return Status(source, age_s, self.revision, len(self.configs), self.node, error, dict(self.unreadable))

    # --- Following --------------------------------------------------------------------------------------------------

    def begin(self) -> Flow[None]:
        """Reads the file, unless something newer is known."""
        if self.file is None or self.is_loaded:
            return
        path = self.file
        try:
            content = yield Work(lambda: load(path, self.scope))
            if content is not None:
                self._restore(content)
        except (UnusableFile, KeyError, TypeError, ValueError) as error:
            self.file_error = f"the file {path} is not used: {error}"
            log.warning("%s", self.file_error)

    def start_without_nodes(self) -> None:
        """Says once that a start goes on without a node. Raises `NotReady` when there is nothing to go on with."""
        source, age_s = self.origin()
        if self.confirmed_at is None and self.error is None:
            what = "the defaults are used" if source == DEFAULT else f"the file is used, it is {age_s:.0f} s old"
            self._note(f"no node has answered since the start; {what}")

    def after_fork(self) -> None:
        """In a child process: the thread or the task that kept the copy is not there, and may have held the lock."""
        self.lock = threading.Lock()
        self.error = _FORKED

    def follow(self) -> Flow[None]:
        """Keeps the copy, without an end, whatever goes wrong."""
        pause_s, is_current = _PAUSE_FIRST_S, False
        while True:
            try:
                if not is_current or self.clock() - self._listed_at >= _RELIST_S:
                    yield from self._list()
                    is_current = True
                if (yield from self._step()):
                    if self.error is not None:
                        log.info("the cache is confirmed again, at revision %d", self.revision)
                    self.error, pause_s = None, _PAUSE_FIRST_S
                yield from self._save(is_last=False)
            except Exception as error:
                # Whatever it is, it does not end the one that follows.
                if not isinstance(error, ConcordError):
                    if self.error is None:
                        log.exception("the cache met an error that it does not know")
                    error = ProtocolError(f"{type(error).__name__}: {error}")
                if isinstance(error, (ApiError, ProtocolError)):
                    # The changes are gone, or the rights, or a change can't be read: a list says what there is.
                    is_current = False
                self._note(str(error))
                yield Pause(pause_s * (0.5 + self.following.context.jitter() / 2))
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    def end(self) -> Flow[None]:
        yield from self._save(is_last=True)

    def _list(self) -> Flow[None]:
        state, sent_at = yield from self.following.state()
        made = {(each.definition, each.key): _shared(each, state.node) for each in state.configs}
        for name in state.unreadable:
            if name in self.configs:
                made[name] = self.configs[name]
        self._replacing({name: made.get(name) for name in self.configs})
        with self.lock:
            for name in self.configs.keys() - made.keys():
                self._forget(name[0], [name[1]])
            self._note_unreadable(dict(state.unreadable))
            is_same = self.confirmed_at is not None and made == self.configs
            if state.revision < self.revision:
                log.warning("the cluster is at revision %d; the cache was at %d", state.revision, self.revision)
            self.configs, self.definitions = made, {each.key: each for each in state.definitions}
            if self.confirmed_at is None or self.error == _FORKED:
                # Why there was nothing before says nothing of what there is now.
                self.error = None
            self.revision, self.node, self.confirmed_at = state.revision, state.node, sent_at
        self._listed_at = sent_at
        if not is_same:
            self._tell(state)
        self.on_progress()

    def _step(self) -> Flow[bool]:
        """Confirms the copy, and waits for changes. Whether it was confirmed."""
        revision, sent_at = yield from self.following.confirm()
        while self.following.position < revision:
            before = self.following.position
            yield from self._poll(0)
            if self.following.position == before:
                # It must not be asked without an end, whatever the reason.
                yield Pause(_PAUSE_FIRST_S)
                return False
        self.confirmed_at = sent_at
        self.on_progress()
        yield from self._poll(self.poll_s)
        return True

    def _poll(self, wait_s: int) -> Flow[None]:
        events = yield from self.following.poll(wait_s)
        for event in events:
            self._apply(event)
        with self.lock:
            self.revision = max(self.revision, self.following.position)
        if events:
            self.on_progress()

    def _apply(self, event: Event) -> None:
        self._replacing({(change.definition, change.key or ""): None for change in event.changes})
        with self.lock:
            for change in event.changes:
                name, kind = change.definition, change.type
                place = (name, change.key or "")
                if change.problem is not None:
                    self._note_unreadable({**self.unreadable, place: change.problem})
                    continue
                self.unreadable.pop(place, None)
                if kind == "definition_deleted":
                    self.definitions.pop(name, None)
                    gone = [each for each in self.configs if each[0] == name]
                    for each in gone:
                        del self.configs[each]
                    self._forget(name, [each[1] for each in gone])
                    self.unreadable = {at: why for at, why in self.unreadable.items() if at[0] != name}
                elif change.key is None:
                    self.definitions[name] = definition(change.raw, event.revision)
                elif kind in ("config_created", "config_updated"):
                    made = config(name, change.raw, None, event.revision)
                    self.configs[name, change.key] = _shared(made, event.node)
                else:
                    self.configs.pop((name, change.key), None)
                    self._forget(name, [change.key])
            self.revision, self.node = event.revision, event.node
        self._tell(event)

    def _replacing(self, names: Mapping[Tuple[str, str], Optional[Config]]) -> None:
        """Before configs are replaced: their last instances are kept."""
        for each in self.all_typed():
            for place, following in names.items():
                found = self.configs.get(place)
                if place[0] == each.definition and found is not None and found is not following:
                    each.keep(found)

    def _forget(self, name: str, keys: Sequence[str]) -> None:
        """When configs go, in one step with that: what comes under their names again is another one."""
        for each in self.all_typed():
            if each.definition == name:
                each.forget(keys)

    def _note_unreadable(self, found: Dict[Tuple[str, str], str]) -> None:
        for place, why in found.items():
            if place not in self.unreadable:
                log.warning("the config %s/%s can't be read: %s", *place, why)
        self.unreadable = found

    def _tell(self, what: Union[Event, State]) -> None:
        for listener in list(self.listeners):
            try:
                listener(what)
            except Exception:
                log.exception("a listener of the cache failed")

    def _note(self, text: str) -> None:
        if self.error is None:
            log.warning("the cache is not being confirmed: %s", text)
        self.error = text
        self.on_progress()

    # --- The file ---------------------------------------------------------------------------------------------------

    def _save(self, is_last: bool) -> Flow[None]:
        if self.file is None or self.confirmed_at is None:
            return
        since_s, is_changed = self.clock() - self._saved_at, self.revision != self._saved_revision
        due_s = _SAVE_CHANGED_S if is_changed else _SAVE_CONFIRMED_S
        if not is_last and self._saved_revision >= 0 and since_s < due_s:
            return
        path = self.file
        with self.lock:
            configs, revision, node = list(self.configs.values()), self.revision, self.node
            definitions = list(self.definitions.values())
            # A moment of the wall clock that is not later than the confirmation.
            confirmed_at = time.time() - (self.clock() - self.confirmed_at)
        content = {"scope": self.scope, "revision": revision, "node": node, "confirmed_at": confirmed_at}
        try:
            yield Work(
                lambda: save(
                    path,
                    {
                        **content,
                        "definitions": [_definition_json(each) for each in definitions],
                        "configs": [_config_json(each) for each in configs],
                    },
                )
            )
        except (OSError, ValueError) as error:
            if self.file_error is None:
                log.warning("the file %s can't be written: %s", path, error)
            self.file_error = f"the file {path} can't be written: {error}"
        else:
            self.file_error = None
        self._saved_revision, self._saved_at = revision, self.clock()

    def _restore(self, content: Mapping[str, Any]) -> None:
        configs = [_config_of(each) for each in content["configs"]]
        definitions = [_definition_of(each) for each in content["definitions"]]
        confirmed_at = float(content["confirmed_at"])
        with self.lock:
            self.configs = {(each.definition, each.key): each for each in configs}
            self.definitions = {each.key: each for each in definitions}
            self.revision, self.node = int(content["revision"]), content["node"]
            self.file_confirmed_at = confirmed_at
        self.on_progress()


class CacheView:
    """What a cache can be asked, whoever keeps it."""

    _core: CacheCore

    def get(self, definition: str, key: str, *, default: Any = _NONE) -> Value:
        """A value, with where it came from. Raises `NotCached` where there is none and no default."""
        return self._core.get(definition, key, default)

    def data(self, definition: str, key: str) -> Any:
        """The data of a config alone; read-only."""
        found = self._core.configs.get((definition, key))
        return found.data if found is not None else self._core.get(definition, key).data

    def typed(self, definition: str, model: Type[M]) -> Typed[M]:
        """The configs of a definition as instances of a pydantic model or a dataclass."""
        return Typed(self._core, definition, model)

    def snapshot(self, definition: Optional[str] = None) -> Dict[Tuple[str, str], Value]:
        """All values, of one revision, by (definition, key)."""
        return {(value.definition, value.key): value for value in self._core.snapshot(definition)}

    def definition(self, key: str) -> Definition:
        """A definition that is followed. Raises `NotCached`."""
        source, age_s = self._core.origin()
        found = self._core.definitions.get(key)
        if found is None:
            raise NotCached(f"there is no definition {key} (known from {source}, {age_s:.1f} s old)")
        return found

    def on_change(self, listener: Listener) -> None:
        """Calls it with each `Event` and `State` once that is in the copy, in the thread or the event loop that keeps
        the copy."""
        self._core.listeners.append(listener)

    @property
    def status(self) -> Status:
        """Where the copy is from, how old it is, and what is wrong."""
        return self._core.status()


class Typed(Generic[M]):
    """The configs of one definition as instances of a model. An instance is made once for each revision.

    Data that don't fit the model never take the place of data that did: the last instance stays, the log says so once,
    and `explain` says why.
    """

    def __init__(self, core: CacheCore, definition: str, model: Type[M]) -> None:
        self._core, self.definition, self.model = core, definition, model
        self._made: Dict[str, Tuple[Config, M]] = {}
        """The last instance of each key, and what it was made from."""
        self._invalid: Dict[str, Tuple[Config, ModelError]] = {}
        """What did not fit, and why."""
        core.add_typed(self)

    def get(self, key: str) -> M:
        """Raises `NotCached` where there is no such config, `ModelError` when its data don't fit the model and none
        before did."""
        found = self._core.configs.get((self.definition, key))
        if found is None:
            self.forget([key])
            # A default, or what there is to say of it, as of any value.
            return from_data(self.model, self._core.get(self.definition, key).data)
        self.keep(found)
        made = self._made.get(key)
        if made is not None:
            return made[1]
        invalid = self._invalid.get(key)
        if invalid is not None:
            raise invalid[1]
        # It has gone or changed meanwhile.
        return from_data(self.model, found.data)

    def keep(self, config: Config) -> None:
        """Makes the instance of a config, also before it is replaced: what follows need not fit."""
        made = self._made.get(config.key)
        if made is None or not _is_same(made[0], config):
            self._make(config)

    def forget(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._made.pop(key, None)
            self._invalid.pop(key, None)

    def _make(self, config: Config) -> None:
        known = self._invalid.get(config.key)
        if known is not None and _is_same(known[0], config):
            return
        made: Any = None
        error: Optional[ModelError] = None
        try:
            made = from_data(self.model, config.data)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # noqa: BLE001 (a validator may raise anything, as `sys.exit` does)
            error = raised if isinstance(raised, ModelError) else ModelError(_text_of(raised))
        with self._core.lock:
            # The program and what reports may make it at the same time: what is late changes nothing.
            known = self._invalid.get(config.key)
            is_known = known is not None and _is_same(known[0], config)
            if is_known or self._core.configs.get((self.definition, config.key)) is not config:
                return
            if error is None:
                self._made[config.key] = (config, made)
                self._invalid.pop(config.key, None)
                return
            self._invalid[config.key] = (config, error)
            kept = self._made.get(config.key)
        kept_text = f"{_version(kept[0])} stays" if kept else "there is none before it"
        name = f"{self.definition}/{config.key}"
        log.warning("%s, %s, does not fit the model, %s: %s", name, _version(config), kept_text, error)

    def looked_at(self) -> List[str]:
        """The keys of the configs that were made, or were to be made, into an instance."""
        return list(self._made) + [key for key in list(self._invalid) if key not in self._made]

    def refusal(self, config: Config) -> Optional[ModelError]:
        """Why a config does not fit the model; None where it does."""
        self.keep(config)
        found = self._invalid.get(config.key)
        return found[1] if found is not None and _is_same(found[0], config) else None

    __getitem__ = get

    def explain(self, key: str) -> Value:
        """The same value with where it came from; with `invalid` where newer data don't fit the model."""
        value = self._core.get(self.definition, key)
        found = self._core.configs.get((self.definition, key))
        if found is None:
            return value
        self.keep(found)
        made, invalid = self._made.get(key), self._invalid.get(key)
        if invalid is None or not _is_same(invalid[0], found):
            return value
        if made is not None:
            value = self._core._value(made[0], value.source, value.state_revision, value.age_s)
        value.invalid = invalid[1]
        return value

    def keys(self) -> List[str]:
        return sorted(value.key for value in self._core.snapshot(self.definition))

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, key: object) -> bool:
        return (self.definition, key) in self._core.configs

    def items(self) -> Iterator[Tuple[str, M]]:
        """The keys and instances; what never fitted the model is left out."""
        for key in self.keys():
            with contextlib.suppress(ModelError):
                yield key, self.get(key)


def _is_same(one: Config, other: Config) -> bool:
    """Whether two are one version. Two editions of a change request have the same id, so the data decide."""
    if one.revision != other.revision or one.variant != other.variant:
        return False
    return one.variant is None or one.data == other.data


def _text_of(raised: BaseException) -> str:
    try:
        return f"{type(raised).__name__}: {raised}"
    except Exception:  # noqa: BLE001 (it is the program's)
        return type(raised).__name__


def _version(config: Config) -> str:
    return f"revision {config.revision}" if config.variant is None else f"candidate of {config.variant}"


def _shared(config: Config, node: Optional[str]) -> Config:
    return Config(
        config.definition, config.key, frozen(config.data), config.revision, config.created_at, config.modified_at,
        node, config.state_revision, config.redacted, variant=config.variant,
    )  # fmt: skip


def _times(record: Union[Config, Definition]) -> Dict[str, str]:
    return {"created_at": record.created_at.isoformat(), "modified_at": record.modified_at.isoformat()}


def _config_json(config: Config) -> Dict[str, Any]:
    return {
        "definition": config.definition, "key": config.key, "data": config.data, "revision": config.revision,
        "node": config.node, "redacted": list(config.redacted), **_times(config),
        **({} if config.variant is None else {"variant": config.variant}),
    }  # fmt: skip


def _config_of(record: Mapping[str, Any]) -> Config:
    return Config(
        record["definition"], record["key"], frozen(record["data"]), record["revision"],
        time_of(record["created_at"]), time_of(record["modified_at"]), record["node"], None, tuple(record["redacted"]),
        variant=record.get("variant"),
    )  # fmt: skip


def _definition_json(definition: Definition) -> Dict[str, Any]:
    return {
        "key": definition.key, "indexes": list(definition.indexes), "json_schema": definition.json_schema,
        "revision": definition.revision, **_times(definition),
    }  # fmt: skip


def _definition_of(record: Mapping[str, Any]) -> Definition:
    return Definition(
        record["key"], tuple(record["indexes"]), record["json_schema"], time_of(record["created_at"]),
        time_of(record["modified_at"]), record["revision"],
    )  # fmt: skip
