"""What can be asked of a cluster: one method for each request, as a flow.

`Client` and `AsyncClient` have these methods, made of these.
"""

from __future__ import annotations

import dataclasses
import random
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
)

from . import _records as records
from ._errors import Conflict, Expired, NotFound, PreconditionFailed, ProtocolError
from ._flow import Answer, Context, Flow, Item, Items, Pause, Request, call, expect
from ._following import Following
from ._json import check_names, dumps
from ._keep import editable, stored
from ._models import schema_of, to_data
from ._records import (
    BatchResult,
    Config,
    Definition,
    DeletedDefinition,
    Event,
    IndexProgress,
    ManyConfigs,
    Page,
    Past,
    SchemaChange,
    State,
    Written,
)
from ._requests import (
    ROOT,
    Filters,
    NamedOptions,
    Params,
    ReadOptions,
    WriteOptions,
    checked,
    config_path,
    definition_path,
    filter_params,
    idempotency_header,
    names,
    read,
    read_params,
    segment,
    write,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
Pointer = Tuple[str, str]
_PAGE_SIZE = 200


class Operations:
    """The requests, as flows."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def _call(self, request: Request, options: Mapping[str, Any]) -> Flow[Answer]:
        return call(self.context, request, options.get("timeout"))

    # --- Definitions ------------------------------------------------------------------------------------------------

    def create_definition(
        self,
        key: str,
        *,
        indexes: Sequence[str] = (),
        schema: Optional[Dict[str, Any]] = None,
        model: Optional[Type[Any]] = None,
        format_assertion: Optional[bool] = None,
        **options: Unpack[WriteOptions],
    ) -> Flow[Written]:
        """Creates a definition. Its schema is given, or made from a pydantic model or a dataclass."""
        segment(key, "config_definition_key")
        body: Dict[str, Any] = {"config_definition_key": key, "indexes": list(indexes)}
        if model is not None:
            schema = schema_of(model)
        if schema is not None:
            body["json_schema"] = schema
        if format_assertion is not None:
            body["format_assertion"] = format_assertion
        request = write("POST", f"{ROOT}/config_definition/", body, options=options)
        return records.written((yield from self._call(request, options)))

    def ensure_definition(
        self,
        key: str,
        *,
        indexes: Optional[Sequence[str]] = None,
        schema: Optional[Dict[str, Any]] = None,
        model: Optional[Type[Any]] = None,
        **options: Unpack[NamedOptions],
    ) -> Flow[Definition]:
        """Makes a definition be so: creates it, or changes its schema and its indexes where they differ.

        What is not given is left as it is. A schema that existing configs do not fit is refused.
        """
        checked(options, NamedOptions)
        wanted = schema_of(model) if model is not None else schema
        plain: WriteOptions = {**options}  # type: ignore[typeddict-item]
        warnings: Tuple[str, ...] = ()
        try:
            found = yield from self.get_definition(key)
        except NotFound:
            try:
                created = yield from self.create_definition(key, indexes=indexes or (), schema=wanted, **plain)
                warnings += created.warnings
            except Conflict as error:
                # Another program was faster, and may have made another one.
                if error.code != "definition_exists":
                    raise
            found = yield from self.get_definition(key)
        if wanted is not None and found.json_schema != wanted:
            warnings += (yield from self.set_schema(key, wanted, **plain)).warnings
        if indexes is not None and list(found.indexes) != list(indexes):
            warnings += (yield from self.set_indexes(key, indexes, **plain)).warnings
        found = yield from self.get_definition(key)
        return dataclasses.replace(found, warnings=warnings + found.warnings)

    def get_definition(self, key: str, **options: Unpack[ReadOptions]) -> Flow[Definition]:
        checked(options, ReadOptions)
        answer = yield from self._call(read(definition_path(key), read_params(options)), options)
        data = expect(answer, dict, config_definition_key=key)
        return records.definition(data, answer.number("etag"), answer.warnings)

    def list_definitions(
        self,
        *,
        search: str = "",
        sort_by: Optional[str] = None,
        descending: Optional[bool] = None,
        revision: Optional[int] = None,
        page_size: int = _PAGE_SIZE,
        **options: Unpack[ReadOptions],
    ) -> Items[Definition]:
        """All definitions, page by page, of one state."""
        params = _list_params(search, sort_by, descending, options)
        params.append(("include", "revision"))
        make = lambda record, answer: records.definition(record)  # noqa: E731
        return self._listed(f"{ROOT}/config_definition/", params, page_size, "revision", revision, make, options)

    def set_indexes(
        self, key: str, indexes: Sequence[str], *, if_match: Optional[int] = None, **options: Unpack[WriteOptions]
    ) -> Flow[Written]:
        """Sets all indexed paths of a definition."""
        request = write("PUT", definition_path(key), {"indexes": list(indexes)}, options=options, if_match=if_match)
        return records.written((yield from self._call(request, options)))

    def delete_definition(
        self,
        key: str,
        *,
        restrict: bool = False,
        purge: bool = False,
        if_match: Optional[int] = None,
        **options: Unpack[WriteOptions],
    ) -> Flow[Written]:
        """Deletes a definition with its configs; with `restrict` only one that has none, with `purge` for good."""
        params = [("mode", "restrict")] if restrict else []
        if purge:
            params.append(("purge", "true"))
        request = write("DELETE", definition_path(key), options=options, params=params, if_match=if_match)
        return records.written((yield from self._call(request, options)))

    def set_schema(
        self,
        key: str,
        schema: Optional[Dict[str, Any]],
        *,
        force: bool = False,
        format_assertion: Optional[bool] = None,
        if_match: Optional[int] = None,
        **options: Unpack[WriteOptions],
    ) -> Flow[SchemaChange]:
        """Changes the schema; None removes it. Refused when configs break it, unless `force`."""
        body: Dict[str, Any] = {"json_schema": schema}
        if format_assertion is not None:
            body["format_assertion"] = format_assertion
        params = [("policy", "force")] if force else []
        path = definition_path(key, "schema")
        request = write("PUT", path, body, options=options, params=params, if_match=if_match)
        answer = yield from self._call(request, options)
        data = answer.data if isinstance(answer.data, dict) else {}
        is_dry = answer.headers.get("x-concord-dry-run") == "true"
        count, breaking = data.get("breaking_count", 0), data.get("breaking", [])
        return SchemaChange(count, tuple(breaking), is_dry, answer.number("etag"), answer.warnings)

    def get_unique(self, key: str, **options: Unpack[ReadOptions]) -> Flow[List[str]]:
        """The paths whose values are unique among the configs."""
        checked(options, ReadOptions)
        answer = yield from self._call(read(definition_path(key, "unique"), read_params(options)), options)
        return list(expect(answer, dict)["paths"])

    def set_unique(
        self, key: str, paths: Sequence[str], *, if_match: Optional[int] = None, **options: Unpack[WriteOptions]
    ) -> Flow[Written]:
        """Sets all unique paths; they must be indexed."""
        path = definition_path(key, "unique")
        request = write("PUT", path, {"paths": list(paths)}, options=options, if_match=if_match)
        return records.written((yield from self._call(request, options)))

    def get_protection(self, key: str, **options: Unpack[ReadOptions]) -> Flow[bool]:
        """Whether the deletion of a definition is rejected."""
        checked(options, ReadOptions)
        answer = yield from self._call(read(definition_path(key, "protection"), read_params(options)), options)
        return bool(expect(answer, dict)["protected"])

    def set_protection(
        self, key: str, protected: bool, *, if_match: Optional[int] = None, **options: Unpack[WriteOptions]
    ) -> Flow[Written]:
        """Protects a definition from deletion, or no longer."""
        path = definition_path(key, "protection")
        request = write("PUT", path, {"protected": protected}, options=options, if_match=if_match)
        return records.written((yield from self._call(request, options)))

    def undelete_definition(
        self,
        key: str,
        *,
        revision: Optional[int] = None,
        time: Optional[str] = None,
        **options: Unpack[WriteOptions],
    ) -> Flow[Written]:
        """Undoes the deletion of a definition: it returns with its configs, as of a revision or a time (RFC 3339)."""
        body = {name: value for name, value in (("revision", revision), ("time", time)) if value is not None}
        request = write("POST", definition_path(key, "undelete"), body, options=options)
        return records.written((yield from self._call(request, options)))

    def deleted_definitions(self, **options: Unpack[ReadOptions]) -> Flow[List[DeletedDefinition]]:
        """The deleted definitions that are kept, so that their deletion can be undone; the last deletion first."""
        checked(options, ReadOptions)
        answer = yield from self._call(read(f"{ROOT}/deleted_definition/", read_params(options)), options)
        return [records.deleted_definition(each) for each in expect(answer, dict)["results"]]

    def index_progress(self, key: str, **options: Unpack[ReadOptions]) -> Flow[List[IndexProgress]]:
        checked(options, ReadOptions)
        answer = yield from self._call(read(definition_path(key, "indexes"), read_params(options)), options)
        listed = expect(answer, dict)["indexes"]
        return [IndexProgress(each["path"], each["state"] == "ready", each["done"], each["of"]) for each in listed]

    def definition_history(
        self, key: str, *, page_size: int = _PAGE_SIZE, **options: Unpack[ReadOptions]
    ) -> Items[Past]:
        """The changes of a definition, newest first."""
        return self._past(definition_path(key, "history"), page_size, options)

    # --- Configs ----------------------------------------------------------------------------------------------------

    def create(self, definition: str, key: str, data: Any, **options: Unpack[WriteOptions]) -> Flow[Written]:
        """Creates a config. Raises `Conflict` when there is one."""
        segment(key, "config_key")
        body = {"config_key": key, "data": stored(data)}
        request = write("POST", definition_path(definition, "config/"), body, options=options)
        return records.written((yield from self._call(request, options)))

    def get(
        self,
        definition: str,
        key: str,
        *,
        revision: Optional[int] = None,
        fields: Optional[Sequence[str]] = None,
        **options: Unpack[ReadOptions],
    ) -> Flow[Config]:
        """A config; with `revision` as it was then, with `fields` these parts of its data only. A reader that is in a
        rollout gets the candidate."""
        checked(options, ReadOptions)
        params = read_params(options)
        if revision is not None:
            params.append(("revision", str(revision)))
        if fields is not None:
            params.append(("fields", ",".join(fields)))
        return (yield from self._read(definition, read(config_path(definition, key), params), key, options))

    def _read(self, definition: str, request: Request, key: str, options: Mapping[str, Any]) -> Flow[Config]:
        answer = yield from self._call(request, options)
        return records.of_answer(definition, expect(answer, dict, config_key=key), answer)

    def find(self, definition: str, key: str, **options: Unpack[ReadOptions]) -> Flow[Optional[Config]]:
        """A config, or None where there is none."""
        try:
            return (yield from self.get(definition, key, **options))
        except NotFound:
            return None

    def get_if_changed(self, config: Config, **options: Unpack[ReadOptions]) -> Flow[Config]:
        """The config as it is now. When it has not changed its data are not sent again."""
        checked(options, ReadOptions)
        # The tag of a candidate names its edition, which is not known here: a candidate is always sent again.
        path, params = config_path(config.definition, config.key), read_params(options)
        tag = f'"{config.revision}"'
        request = read(path, params) if config.variant else read(path, params, if_none_match=tag)
        answer = yield from self._call(request, options)
        if answer.status == 304:
            return config
        return records.of_answer(config.definition, expect(answer, dict, config_key=config.key), answer)

    def list(
        self,
        definition: str,
        filters: Optional[Filters] = None,
        *,
        search: str = "",
        sort_by: Optional[str] = None,
        descending: Optional[bool] = None,
        fields: Optional[Sequence[str]] = None,
        revision: Optional[int] = None,
        page_size: int = _PAGE_SIZE,
        **options: Unpack[ReadOptions],
    ) -> Items[Config]:
        """All configs that the filters select, page by page, of one state, whatever is written meanwhile.

        `filters` are those of the interface: `{"team": "search", "tier[gte]": 2, "tags": ["a", "b"]}`. The list goes on
        when the node that holds its state is gone.
        """
        params = _list_params(search, sort_by, descending, options) + _shape(fields) + filter_params(filters)
        path = definition_path(definition, "config/")
        make = lambda record, answer: records.config(definition, record, answer)  # noqa: E731
        return self._listed(path, params, page_size, "$revision", revision, make, options)

    def page(
        self,
        definition: str,
        filters: Optional[Filters] = None,
        *,
        page: int = 1,
        limit: int = 10,
        search: str = "",
        sort_by: Optional[str] = None,
        descending: Optional[bool] = None,
        fields: Optional[Sequence[str]] = None,
        revision: Optional[int] = None,
        **options: Unpack[ReadOptions],
    ) -> Flow[Page[Config]]:
        """One page of a list, and how many configs the filters select."""
        params = _list_params(search, sort_by, descending, options) + _shape(fields) + filter_params(filters)
        params += [("page", str(page)), ("limit", str(limit))]
        if revision is not None:
            params.append(("$revision", str(revision)))
        answer = yield from self._call(read(definition_path(definition, "config/"), params), options)
        data = expect(answer, dict)
        items = tuple(records.config(definition, record, answer) for record in data["results"])
        return Page(items, page, limit, data["meta"]["total"], answer.number("x-concord-revision"), answer.warnings)

    def list_across(
        self,
        definitions: Union[str, Sequence[str], None] = None,
        filters: Optional[Filters] = None,
        *,
        search: str = "",
        sort_by: Optional[str] = None,
        descending: Optional[bool] = None,
        page_size: int = _PAGE_SIZE,
        **options: Unpack[ReadOptions],
    ) -> Items[Config]:
        """The configs of several definitions: keys, or beginnings with `*` at the end; all without any. An empty list
        is an error."""
        params = _list_params(search, sort_by, descending, options)
        params += [("definition", name) for name in names(definitions, "definitions")]
        params += filter_params(filters)
        make = lambda record, answer: records.config("", record, answer)  # noqa: E731
        return self._listed(f"{ROOT}/config", params, page_size, None, None, make, options)

    def read_many(
        self, configs: Iterable[Pointer], *, revision: Optional[int] = None, **options: Unpack[ReadOptions]
    ) -> Flow[ManyConfigs]:
        """Up to 1000 configs, (definition, key), all of one revision."""
        checked(options, ReadOptions)
        asked = [{"config_definition_key": name, "config_key": key} for name, key in configs]
        body: Dict[str, Any] = {"configs": asked}
        if revision is not None:
            body["revision"] = revision
        path = read(f"{ROOT}/read", read_params(options)).target
        request = Request("POST", path, (("content-type", b"application/json"),), dumps(body))
        answer = yield from self._call(request, options)
        data = expect(answer, dict)
        found: Dict[Pointer, Config] = {}
        missing: Dict[Pointer, str] = {}
        for item in data["results"]:
            name, key = item["config_definition_key"], item["config_key"]
            if {"config_definition_key": name, "config_key": key} not in asked:
                raise ProtocolError(f"{answer.node} answered with {name}/{key}, which was not asked for")
            if item["status"] == "found":
                # The version is beside the config.
                record = {**item["config"], "variant": item.get("variant")}
                found[name, key] = records.config(name, record, answer, item["revision"])
            else:
                missing[name, key] = item["status"]
        return ManyConfigs(data["revision"], found, missing)

    def put(
        self,
        definition: str,
        key: str,
        data: Any,
        *,
        if_match: Optional[int] = None,
        create_only: bool = False,
        upsert: bool = False,
        **options: Unpack[WriteOptions],
    ) -> Flow[Written]:
        """Replaces a config. With `if_match` only at this revision, else `PreconditionFailed`; with `create_only` only
        where there is none; with `upsert` whether there is one or not."""
        request = write(
            "PUT",
            config_path(definition, key),
            {"data": stored(data)},
            options=options,
            params=[("upsert", "true")] if upsert else [],
            if_match=if_match,
            create_only=create_only,
        )
        return records.written((yield from self._call(request, options)))

    def upsert(self, definition: str, key: str, data: Any, **options: Unpack[WriteOptions]) -> Flow[Written]:
        """Creates or replaces a config."""
        return (yield from self.put(definition, key, data, upsert=True, **options))

    def patch(
        self,
        definition: str,
        key: str,
        change: Any,
        *,
        if_match: Optional[int] = None,
        **options: Unpack[WriteOptions],
    ) -> Flow[Written]:
        """Changes a part of a config: a dict is a merge patch (RFC 7396), a list a JSON patch (RFC 6902)."""
        kind = "json" if isinstance(change, list) else "merge"
        request = write(
            "PATCH",
            config_path(definition, key),
            to_data(change),
            options=options,
            if_match=if_match,
            content_type=f"application/{kind}-patch+json",
        )
        return records.written((yield from self._call(request, options)))

    def update(
        self,
        definition: str,
        key: str,
        change: Callable[[Any], Any],
        *,
        attempts: int = 64,
        **options: Unpack[NamedOptions],
    ) -> Flow[Written]:
        """Reads a config, computes other data, and writes them if nobody else has written meanwhile; else again.

        `change` may change the data that it is given and return None, or return others. It may be called several times.
        Where the key may not see a secret value, a marker stands in its place that keeps the value; it can't be moved.
        """
        checked(options, NamedOptions)
        for attempt in range(attempts):
            if attempt:
                yield Pause(min(0.002 * 2**attempt, 0.25) * random.random())
            # What is written back rests on what is proven: a candidate has no revision.
            proven = dataclasses.replace(read(config_path(definition, key)), is_proven=True)
            found = yield from self._read(definition, proven, key, {})
            data = editable(found.data, found.redacted)
            changed = change(data)
            data = data if changed is None else changed
            plain: WriteOptions = {**options}  # type: ignore[typeddict-item]
            try:
                return (yield from self.put(definition, key, data, if_match=found.revision, **plain))
            except PreconditionFailed as error:
                last = error
        raise last

    def delete(
        self, definition: str, key: str, *, if_match: Optional[int] = None, **options: Unpack[WriteOptions]
    ) -> Flow[Written]:
        """Deletes a config. Its history stays."""
        request = write("DELETE", config_path(definition, key), options=options, if_match=if_match)
        return records.written((yield from self._call(request, options)))

    def history(
        self, definition: str, key: str, *, page_size: int = _PAGE_SIZE, **options: Unpack[ReadOptions]
    ) -> Items[Past]:
        """The changes of a config, newest first; of a deleted one, too."""
        return self._past(config_path(definition, key, "history"), page_size, options)

    def rollback(
        self,
        definition: str,
        key: str,
        revision: int,
        *,
        if_match: Optional[int] = None,
        create_only: bool = False,
        **options: Unpack[WriteOptions],
    ) -> Flow[Written]:
        """Writes what the config was at a revision as a new change; brings a deleted one back."""
        path = config_path(definition, key, "rollback")
        body = {"revision": revision}
        request = write("POST", path, body, options=options, if_match=if_match, create_only=create_only)
        return records.written((yield from self._call(request, options)))

    # --- Several as one ---------------------------------------------------------------------------------------------

    def batch(self, operations: Sequence[Dict[str, Any]], **options: Unpack[WriteOptions]) -> Flow[BatchResult]:
        """Up to 1000 operations as one change: all are done, or none. `op` makes them."""
        return (yield from self._batch({"operations": list(operations)}, options))

    def transaction(
        self,
        conditions: Sequence[Dict[str, Any]],
        *,
        then: Sequence[Dict[str, Any]] = (),
        otherwise: Sequence[Dict[str, Any]] = (),
        **options: Unpack[WriteOptions],
    ) -> Flow[BatchResult]:
        """Does `then` if all conditions hold, else `otherwise`; `succeeded` says which. `op.check` makes conditions."""
        body = {"if": list(conditions), "then": list(then), "else": list(otherwise)}
        return (yield from self._batch(body, options))

    def propose(
        self,
        title: str,
        operations: Sequence[Dict[str, Any]],
        *,
        description: str = "",
        **options: Unpack[NamedOptions],
    ) -> Flow[Dict[str, Any]]:
        """Makes a change request of operations that write; nothing is changed before others have approved it and it is
        applied. The change request has its `change_id`, and the whole keys of its definitions."""
        checked(options, NamedOptions)
        body = {"title": title, "description": description, "operations": list(operations)}
        plain: WriteOptions = {**options}  # type: ignore[typeddict-item]
        request = write("POST", f"{ROOT}/change_request/", body, options=plain)
        return dict(expect((yield from self._call(request, plain)), dict))

    def _batch(self, body: Dict[str, Any], options: WriteOptions) -> Flow[BatchResult]:
        request = write("POST", f"{ROOT}/batch", body, options=options)
        return records.batch((yield from self._call(request, options)))

    # --- Changes ----------------------------------------------------------------------------------------------------

    def watch(
        self,
        *definitions: str,
        configs: Optional[Sequence[str]] = None,
        filters: Optional[Filters] = None,
        search: str = "",
        from_revision: Optional[int] = None,
        initial: bool = False,
        prev: bool = False,
        wait_s: int = 30,
        idle_events: bool = False,
    ) -> Items[Union[Event, State]]:
        """The changes, each once, in order, without an end: over lost connections and killed nodes.

        `definitions` are keys, or beginnings with `*` at the end; all without any. `from_revision` begins with the
        changes of that revision; `initial` with the present `State`. When the changes after its position are no longer
        retained, a watch with `initial` begins anew with a `State`, and one without raises `Expired`. With
        `idle_events` an event without changes comes at least every `wait_s` seconds while nodes answer.
        """
        following = Following(self.context, definitions, names(configs, "configs"), filters, search, prev)
        return following.watch(from_revision, initial, wait_s, idle_events)

    # --- The rest ---------------------------------------------------------------------------------------------------

    def whoami(self, **options: Unpack[ReadOptions]) -> Flow[Dict[str, Any]]:
        """Who the key is, its grants and quota."""
        checked(options, ReadOptions)
        return dict(expect((yield from self._call(read(f"{ROOT}/whoami"), options)), dict))

    def cluster(self, **options: Unpack[ReadOptions]) -> Flow[Dict[str, Any]]:
        """Members, leader, lag and alarms, as one node sees them."""
        checked(options, ReadOptions)
        return dict(expect((yield from self._call(read(f"{ROOT}/cluster"), options)), dict))

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Optional[Mapping[str, Any]] = None,
        idempotency_key: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> Flow[Answer]:
        """Any other request, with the same failover. A write is sent again after an unknown outcome only if it has an
        idempotency key, which its path must take."""
        if not path.startswith("/"):
            raise ValueError(f"a path begins with a slash: {path!r}")
        shape = read(path, filter_params({}) + [(name, str(value)) for name, value in (params or {}).items()])
        headers: Tuple[Tuple[str, bytes], ...] = ()
        if body is not None:
            headers += (("content-type", b"application/json"),)
        if idempotency_key is not None:
            headers += (("idempotency-key", idempotency_header(idempotency_key)),)
        data = to_data(body)
        check_names(data)
        encoded = None if body is None else dumps(data)
        is_write = method.upper() not in ("GET", "HEAD")
        request = Request(method.upper(), shape.target, headers, encoded, is_write, idempotency_key)
        return (yield from call(self.context, request, timeout))

    # --- Pages ------------------------------------------------------------------------------------------------------

    def _listed(
        self,
        path: str,
        params: Params,
        page_size: int,
        revision_name: Optional[str],
        revision: Optional[int],
        make: Callable[[Dict[str, Any], Answer], T],
        options: ReadOptions,
    ) -> Items[T]:
        """The records of a list. When the state that its cursor names is gone with its node, the list goes on at the
        revision of that state, which every node can make again."""
        params = [*params, ("limit", str(page_size))]
        pinned = [(revision_name, str(revision))] if revision is not None and revision_name is not None else []
        request, skipped, count = read(path, params + pinned), 0, 0
        state_revision, is_cursor = revision, False
        while True:
            try:
                answer = yield from self._call(request, options)
            except Expired:
                if not is_cursor or revision_name is None or state_revision is None:
                    raise
                is_cursor, skipped = False, count % page_size
                place = [(revision_name, str(state_revision)), ("page", str(count // page_size + 1))]
                # Which state it is has been said; how fresh it must be is settled.
                plain = [each for each in params if each[0] not in ("consistency", "max_staleness_ms")]
                request = read(path, plain + place)
                continue
            if state_revision is None:
                state_revision = answer.number("x-concord-revision")
            for record in expect(answer, dict)["results"][skipped:]:
                count += 1
                yield Item(make(record, answer))
            skipped = 0
            following = self._next(answer)
            if following is None:
                return
            request, is_cursor = Request("GET", following), True

    def _past(self, path: str, page_size: int, options: ReadOptions) -> Items[Past]:
        checked(options, ReadOptions)
        request = read(path, [*read_params(options), ("limit", str(page_size))])
        while True:
            answer = yield from self._call(request, options)
            for record in expect(answer, dict)["results"]:
                yield Item(records.past(record))
            following = self._next(answer)
            if following is None:
                return
            request = Request("GET", following)

    def _next(self, answer: Answer) -> Optional[str]:
        """The next page, as the answer names it: always at this cluster, whatever the header says."""
        environment = self.context.environment
        for link in answer.headers.get("link", "").split(", "):
            address, _, relation = link.partition(">")
            if 'rel="next"' in relation and address.startswith("</"):
                return environment.left(address[1:]) if environment else address[1:]
        return None


def _list_params(search: str, sort_by: Optional[str], descending: Optional[bool], options: ReadOptions) -> Params:
    checked(options, ReadOptions)
    params = read_params(options)
    if search:
        params.append(("search", search))
    if sort_by is not None:
        params.append(("sort_by", sort_by))
    if descending is not None:
        params.append(("sort_order", "desc" if descending else "asc"))
    return params


def _shape(fields: Optional[Sequence[str]]) -> Params:
    """What a record has. With `$` no index takes the parameter for its filter."""
    params = [("$include", "revision")]
    if fields is not None:
        params.append(("$fields", ",".join(fields)))
    return params
