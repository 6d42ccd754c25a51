//! The parameters that operations share, by path, query and header.
//!
//! **Invariants:** no schema has a `default`: generated clients would send it with each request, although `page` excludes
//! `cursor`, and `pretty` may be a filter. Where two parameters have the same name and different meanings, as `sort_by`
//! has, each is a component of its own; the first name in its entry is that of the component.

use serde_json::json;
use utoipa::openapi::{
    ArrayBuilder, ComponentsBuilder, ObjectBuilder, RefOr, Required, Schema, Type,
    path::{Parameter, ParameterBuilder, ParameterIn, ParameterStyle},
};

use super::schemas::{boolean, integer, key, pattern_of_keys, text, time};
use concord_model::limits::{
    IDEMPOTENCY_KEY_BYTES_MAX, LIST_PATTERNS_MAX, Limits, POLL_WAIT_DEFAULT_S, POLL_WAIT_MAX_S,
    READER_BYTES_MAX, READER_LABELS_BYTES_MAX, REASON_BYTES_MAX, WATCH_KEYS_MAX,
};

/// Adds all parameters to the components.
pub(super) fn add_to(mut components: ComponentsBuilder, limits: &Limits) -> ComponentsBuilder {
    let parameters = [
        path_parameters(),
        list_parameters(limits),
        other_parameters(),
        change_request_parameters(),
        audit_and_change_parameters(),
        naming_parameters(),
        header_parameters(),
    ];
    for (name, parameter) in parameters.into_iter().flatten().chain([("filters", filters())]) {
        components = components.parameter(name, parameter);
    }
    components
}

fn parameter(name: &str, location: ParameterIn, about: &str, schema: impl Into<RefOr<Schema>>) -> Parameter {
    let required = if matches!(location, ParameterIn::Path) { Required::True } else { Required::False };
    ParameterBuilder::new()
        .name(name)
        .parameter_in(location)
        .description(Some(about))
        .required(required)
        .schema(Some(schema))
        .build()
}

fn path_parameters() -> Vec<(&'static str, Parameter)> {
    let path = |name, about, schema: ObjectBuilder| (name, parameter(name, ParameterIn::Path, about, schema));
    vec![
        path("config_definition_key", "The definition's key.", key().examples([json!("app")])),
        path("flag", "The flag's key: that of its config.", key().examples([json!("new-checkout")])),
        path("config_key", "The config's key within its definition.", key().examples([json!("prod")])),
        path("id", "The node's id.", integer(1)),
        path("key_id", "The access key's id.", text().examples([json!("4kPq0sWc7RtZ")])),
        path("change_id", "The change request's id.", text().examples([json!("7hQx2mVb9KsT")])),
        path(
            "name",
            "The name of the environment, identity provider or role.",
            text().examples([json!("prod")]),
        ),
        path("session_id", "The session's id, or `current`.", text().examples([json!("4kPq0sWc7RtZ")])),
        path("gate", "The gate's name.", text().examples([json!("errors")])),
    ]
}

/// The query parameters of dry runs, history, changes of schemas, and watches.
fn other_parameters() -> Vec<(&'static str, Parameter)> {
    let seconds = format!("Seconds to wait for a change; {POLL_WAIT_DEFAULT_S} by default.");
    let query =
        |id, name, about, schema: RefOr<Schema>| (id, parameter(name, ParameterIn::Query, about, schema));
    let plain = |name, about, schema: ObjectBuilder| query(name, name, about, schema.into());
    vec![
        plain("pretty", "`true` indents the JSON of the response.", boolean()),
        plain("writes", "`true`: the node must also take writes that need space on its disk.", boolean()),
        plain(
            "upsert",
            "`true` creates the config where there is none; without a condition only.",
            boolean(),
        ),
        plain(
            "include",
            "`revision` adds its revision to each record. In a list of configs that has an index of this name, that is \
             a filter, and `$include` is this parameter.",
            text().enum_values(Some(["revision"])),
        ),
        plain(
            "fields",
            "Paths of members with commas between, such as `db.port,name`: `data` has these only. A backslash stands \
             before a dot, comma or backslash of a name. In a list of configs that has an index of this name, that is a \
             filter, and `$fields` is this parameter.",
            text().min_length(Some(1)),
        ),
        plain(
            "dry_run",
            "`true` gives the response of the write, and stores nothing. So does `all-violations`; of data that no variant \
             of a union accepts, it lists the violations of all variants, each with its place in the schema.",
            text().enum_values(Some(["false", "true", "all-violations"])),
        ),
        plain("purge", "`true` deletes it for good: the deletion can't be undone.", boolean()),
        plain(
            "revision",
            "The config as of this revision; 422 when the revision does not exist yet.",
            integer(0),
        ),
        query(
            "list_revision",
            "revision",
            "The list as it was at this revision; 422 when the revision does not exist yet. `$revision` where an indexed \
             path has the name `revision`, which is a filter then.",
            integer(0).into(),
        ),
        plain("before", "Only changes before this revision.", integer(0)),
        plain(
            "policy",
            "`force` stores a schema that configs do not fit.",
            text().enum_values(Some(["force"])),
        ),
        plain("from", "Begins with the changes of this revision.", integer(0)),
        plain("initial", "`true` begins with the current state; not together with `from`.", boolean()),
        plain("prev", "`true` returns the data of configs before each change, too.", boolean()),
        plain(
            "change_requests",
            "`true` returns the changes of change requests in place of those of records. No other parameter says which.",
            boolean(),
        ),
        plain("wait", &seconds, integer(0).maximum(Some(f64::from(POLL_WAIT_MAX_S)))),
    ]
}

/// The query parameters of the audit log, and of the list of the latest changes.
fn audit_and_change_parameters() -> Vec<(&'static str, Parameter)> {
    let query =
        |id, name, about, schema: RefOr<Schema>| (id, parameter(name, ParameterIn::Query, about, schema));
    let plain = |name, about, schema: ObjectBuilder| query(name, name, about, schema.into());
    vec![
        query(
            "audit_node",
            "node",
            "The id of the member whose log is read; the receiving node without it.",
            integer(1).into(),
        ),
        query(
            "audit_after",
            "after",
            "Oldest first, after the line with this number; not together with `before`.",
            integer(0).into(),
        ),
        query("after_session", "after", "Only sessions with a later id.", text().into()),
        query("audit_before", "before", "Newest first, before the line with this number.", integer(0).into()),
        query("audit_key", "key", "Only lines of this key.", text().into()),
        query(
            "audit_definition",
            "definition",
            "Only lines that name this definition; empty for all.",
            text().into(),
        ),
        plain("since", "Only lines from this time on, as RFC 3339 has it.", time()),
        plain("ticket", "The ticket of `eventStreams`, in place of the header `Authorization`.", text()),
        plain("until", "Only lines before this time, as RFC 3339 has it.", time()),
        plain("outcome", "Only lines with this outcome: `ok`, or the type of an error.", text()),
        plain(
            "latest",
            "Lists at most so many of the latest revisions, newest first, instead of waiting for a change.",
            integer(1),
        ),
        query(
            "changes_before",
            "before",
            "With `latest`: only changes before this revision.",
            integer(0).into(),
        ),
        query(
            "changes_since",
            "since",
            "With `latest`: only changes from this time on (RFC 3339).",
            time().into(),
        ),
        query(
            "changes_by",
            "by",
            "With `latest`: only changes of this author: the id or the name of an access key, or the label of its person.",
            text().into(),
        ),
    ]
}

/// The query parameters of change requests, and of what passes the rules that need them.
fn change_request_parameters() -> Vec<(&'static str, Parameter)> {
    let query =
        |id, name, about, schema: RefOr<Schema>| (id, parameter(name, ParameterIn::Query, about, schema));
    let plain = |name, about, schema: ObjectBuilder| query(name, name, about, schema.into());
    vec![
        plain(
            "bypass",
            "`true` passes the rules of environments: the write is carried out at once, in a restricted or frozen \
             environment too, and leaves a change request that others must review. It needs the permission `bypass` and \
             `X-Change-Reason`.",
            boolean(),
        ),
        query(
            "change_include",
            "include",
            "`preview` adds what the change request would change: each record before and after.",
            text().enum_values(Some(["preview"])).into(),
        ),
        plain(
            "phase",
            "Only change requests in this phase.",
            text().enum_values(Some(crate::change_requests::PHASES)),
        ),
        plain("environment", "Only change requests for which the rules of this environment count.", text()),
        plain("unreviewed", "`true`: only bypasses that wait for a review.", boolean()),
        plain("mine", "`true`: only those of which the client has sent an edition.", boolean()),
        plain(
            "needs_me",
            "`true`: only those that wait for a vote which the client may give and has not given.",
            boolean(),
        ),
        plain(
            "revert",
            "Only applied change requests whose revert is in this state.",
            text().enum_values(Some(crate::change_requests::REVERTS)),
        ),
    ]
}

/// The query parameters that name definitions and configs.
fn naming_parameters() -> Vec<(&'static str, Parameter)> {
    let query =
        |id, name, about, schema: RefOr<Schema>| (id, parameter(name, ParameterIn::Query, about, schema));
    let keys = || ArrayBuilder::new().items(key()).max_items(Some(WATCH_KEYS_MAX)).into();
    let patterns = || ArrayBuilder::new().items(pattern_of_keys()).max_items(Some(LIST_PATTERNS_MAX)).into();
    vec![
        query(
            "definition",
            "definition",
            "Only this definition and its configs, or, with `*` at the end, those whose keys begin so; may be repeated. \
             It need not exist yet.",
            ArrayBuilder::new().items(pattern_of_keys()).max_items(Some(WATCH_KEYS_MAX)).into(),
        ),
        query(
            "definition_patterns",
            "definition",
            "A definition's key, or the beginning of keys with `*` at its end; may be repeated.",
            patterns(),
        ),
        query(
            "watched_config",
            "config_key",
            "Only this config of the one `definition`; may be repeated.",
            keys(),
        ),
    ]
}

/// The query parameters of lists and reads, and `mode` of a delete.
fn list_parameters(limits: &Limits) -> Vec<(&'static str, Parameter)> {
    let query =
        |id, name, about, schema: ObjectBuilder| (id, parameter(name, ParameterIn::Query, about, schema));
    let plain = |name, about, schema: ObjectBuilder| query(name, name, about, schema);
    let by = |names: [&'static str; 3]| text().enum_values(Some(names));
    let limit = integer(1).maximum(Some(limits.page_limit));
    let order = text().enum_values(Some(["asc", "desc"]));
    let level = text().enum_values(Some(["linearizable", "lease", "local"]));
    vec![
        plain(
            "page",
            "The number of the page, from 1, which is the default. A page past the end is empty.",
            integer(1),
        ),
        plain("limit", "Records per page; 10 by default, 100 of sessions and in the audit log.", limit),
        query(
            "sort_definitions",
            "sort_by",
            "`modified_at` by default. Ties are broken by key, ascending.",
            by(["config_definition_key", "created_at", "modified_at"]),
        ),
        query(
            "sort_across",
            "sort_by",
            "`modified_at` by default. Ties are broken by the config's key, then by the definition's, ascending.",
            text().enum_values(Some(["config_definition_key", "config_key", "created_at", "modified_at"])),
        ),
        query(
            "sort_api_keys",
            "sort_by",
            "`modified_at` by default. Ties are broken by id, ascending.",
            text().enum_values(Some(["key_id", "name", "created_at", "modified_at"])),
        ),
        query(
            "sort_configs",
            "sort_by",
            "`config_key`, `created_at`, `modified_at` (the default) or an indexed path of scalars; configs without a value come \
             last in both directions, ties are broken by key, ascending.",
            text(),
        ),
        plain("sort_order", "The direction; `desc` by default.", order),
        plain(
            "search",
            "Only records whose key contains this text, case-insensitively; empty for all.",
            text(),
        ),
        plain(
            "cursor",
            "Taken from the `Link` of a page: the page after it, of the same state. The other parameters must be those \
             of the first page, and `page` must be absent.",
            text().pattern(Some("^[A-Za-z0-9_-]*$")),
        ),
        plain(
            "consistency",
            "`linearizable` is the default. `local` reads this node's state without asking the leader. `lease` rests on the leader's lease, where the \
             settings allow it.",
            level,
        ),
        plain(
            "max_staleness_ms",
            "The greatest age of the state of a `local` read; an older state is confirmed with the leader first.",
            integer(0),
        ),
        plain(
            "min_revision",
            "Waits until this node has applied this revision; 504 when that takes too long.",
            integer(0),
        ),
        plain(
            "mode",
            "`restrict` refuses to delete a definition that has configs.",
            text().enum_values(Some(["restrict"])),
        ),
    ]
}

/// The filters of a list of configs: all parameters that have no other meaning.
fn filters() -> Parameter {
    let about = "Any further parameter is a filter on an indexed path: `db.port=5432` (repeated: any of the values), \
        `n[gte]=`, `n[gt]=`, `n[lte]=`, `n[lt]=`, `n[ne]=`, `name[prefix]=`, `name[in]=a,b`, `n[exists]=true`; also on \
        `created_at`, `modified_at` and `config_key`. Filters on several paths must all hold. A path that is not \
        indexed is refused; of the pattern `labels.*` a filter names a member (`labels.team=search`), of `items[].name` it is \
        the path itself. `data.<path>` names a path that has the name of a parameter.";
    let any = ObjectBuilder::new()
        .schema_type(Type::Object)
        .additional_properties(Some(RefOr::T(Schema::from(text().build()))));
    let mut filters = parameter("filters", ParameterIn::Query, about, any);
    filters.style = Some(ParameterStyle::Form);
    filters.explode = Some(true);
    filters
}

fn header_parameters() -> Vec<(&'static str, Parameter)> {
    let header =
        |id, name, about, schema: ObjectBuilder| (id, parameter(name, ParameterIn::Header, about, schema));
    let visible = |length_max| text().pattern(Some("^[!-~]+$")).max_length(Some(length_max));
    vec![
        header(
            "X-Request-ID",
            "X-Request-ID",
            "An id for logs, 1 to 128 visible ASCII characters; any other is replaced by a new one.",
            text(),
        ),
        header(
            "If-Match",
            "If-Match",
            "Entity tags with commas between, one of which must be the `ETag` of the record, or `*` for any existing \
             record. A weak tag matches no write.",
            text().pattern(Some("^(\\*|(W/)?\"[!#-~]*\"(, ?(W/)?\"[!#-~]*\")*)$")),
        ),
        header(
            "If-None-Match",
            "If-None-Match",
            "Entity tags that the client has: 304 when one of them is current.",
            text(),
        ),
        header(
            "unless",
            "If-None-Match",
            "`*` creates, and fails when the record exists; entity tags with commas between: fails when the record has \
             one of them.",
            text().pattern(Some("^(\\*|(W/)?\"[!#-~]*\"(, ?(W/)?\"[!#-~]*\")*)$")),
        ),
        header(
            "unless_tag",
            "If-None-Match",
            "Entity tags with commas between: fails when the record has one of them.",
            text().pattern(Some("^(W/)?\"[!#-~]*\"(, ?(W/)?\"[!#-~]*\")*$")),
        ),
        header(
            "create_only",
            "If-None-Match",
            "`*` creates, and fails when the record exists.",
            text().enum_values(Some(["*"])),
        ),
        header(
            "Idempotency-Key",
            "Idempotency-Key",
            "Makes the request safe to retry: a retry gets the stored response. 422 if another request had the same key.",
            visible(IDEMPOTENCY_KEY_BYTES_MAX),
        ),
        header(
            "Last-Event-ID",
            "Last-Event-ID",
            "The `id` of the last event that the client received: the stream continues after it, whatever `from` and \
             `initial` say.",
            text().pattern(Some("^[0-9]*$")),
        ),
        header(
            "X-Concord-Reader",
            "X-Concord-Reader",
            "The name of the program that reads: it sees the candidates of the rollouts that it is in. It is no secret.",
            text().max_length(Some(READER_BYTES_MAX)),
        ),
        header(
            "X-Concord-Labels",
            "X-Concord-Labels",
            "The labels of the reader, by which stages choose: `ring=canary,region=eu`. Only beside `X-Concord-Reader`.",
            text().max_length(Some(READER_LABELS_BYTES_MAX)),
        ),
        header(
            "X-Change-Reason",
            "X-Change-Reason",
            "The reason of the change, stored in the history. UTF-8.",
            text().max_length(Some(REASON_BYTES_MAX)),
        ),
    ]
}
