//! Pages of the audit log of the receiving node or of another member, and the anchors of the logs of all nodes.
//!
//! **Invariant:** lines are sent exactly as in the log, so that the client can verify their chain.

use form_urlencoded::Serializer;

use super::{
    cluster::node_id,
    endpoints::AUDIT,
    extract::{BodyRequest, QueryErrors, QueryParams, ReadRequest, query_violation},
    json::Object,
    reply::{Problem, Reply},
};
use concord_model::{access_key::Verb, audit::AuditAnchors, query::QueryError, time::Timestamp};
use concord_service::{
    Service,
    audit::{AuditQuery, hex},
    audit_pages::MemberAuditPage,
};

/// Lines of a page where the client sets no `limit`.
const LIMIT_DEFAULT: u64 = 100;

/// Shows a page.
pub(super) async fn show(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    // Before anything is said about the request.
    request.principal.authorize(Verb::Audit, None)?;
    let query = query(&request.params, service.cx.limits().page_limit)?;
    let (ascends, limit) = (query.after.is_some(), query.limit);
    let [node] = request.params.numbers(["node"])?;
    let found = service.audit_pages.page(&request.principal, node, query).await?;
    let next =
        found.page.next.map(|next| link(&request.params, if ascends { "after" } else { "before" }, next));
    Ok(Reply::ok("audit lines found", &render(&found, limit)).next_link(next.as_deref()))
}

/// Shows the anchors of all logs.
pub(super) async fn anchors(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let (consistency, ()) = request.params.with_consistency(Ok(()))?;
    let view = service.anchors.anchors(&request.principal, consistency).await?;
    let logs: Vec<String> = view.logs.iter().map(|log| anchors_json(log)).collect();
    let data = Object::new().raw("logs", &format!("[{}]", logs.join(","))).finish();
    Ok(Reply::ok("audit anchors found", &data).state_revision(view.revision))
}

/// Accepts that the log of a node does not have its anchors.
pub(super) async fn accept(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let node = node_id(&request.name)?;
    let written = service.anchors.accept(request.caller, node).await?;
    let data = Object::new().value("node_id", &node).time("accepted_at", written.applied.at).finish();
    Ok(Reply::ok("audit log accepted", &data).for_write_without_record(&written))
}

fn anchors_json(of: &AuditAnchors) -> String {
    let anchors: Vec<String> = of
        .anchors
        .iter()
        .map(|anchor| {
            let object = Object::with_capacity(160).time("at", anchor.at).value("seq", &anchor.seq);
            object.value("hash", &hex(&anchor.sha256)).value("accepted", &of.is_accepted(anchor)).finish()
        })
        .collect();
    let accepted = of.accepted.as_ref().map_or_else(
        || "null".to_owned(),
        |accepted| {
            let object = Object::new().time("at", accepted.at).value("by", &accepted.by);
            object.value("reason", &accepted.reason).finish()
        },
    );
    Object::new()
        .value("cluster_id", &uuid::Uuid::from_bytes(of.log.cluster))
        .value("node_id", &of.log.node)
        .raw("accepted", &accepted)
        .raw("anchors", &format!("[{}]", anchors.join(",")))
        .finish()
}

fn query(params: &QueryParams, limit_max: usize) -> Result<AuditQuery, QueryError> {
    let mut errors = QueryErrors::default();
    let [after, before, limit] = ["after", "before", "limit"].map(|name| errors.number(params, name));
    let limit = limit.unwrap_or(LIMIT_DEFAULT.min(limit_max as u64));
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if limit == 0 || limit > limit_max {
        errors.violations.push(query_violation("limit", format!("`limit` must be 1 to {limit_max}")));
    }
    if after.is_some() && before.is_some() {
        errors.violations.push(query_violation(
            "before",
            "`after` and `before` can't be combined: `after` lists ascending, `before` descending",
        ));
    }
    let [since, until] = ["since", "until"].map(|name| {
        let text = params.get(name)?;
        let time = Timestamp::parse(text);
        if time.is_none() {
            errors.violations.push(query_violation(name, format!("`{name}` must be an RFC 3339 time")));
        }
        time
    });
    let text = |name: &str| params.get(name).filter(|text| !text.is_empty()).map(str::to_owned);
    let (key, definition, outcome) = (text("key"), text("definition"), text("outcome"));
    errors.finish(Some(AuditQuery { after, before, limit, since, until, key, definition, outcome }))
}

fn render(found: &MemberAuditPage, limit: usize) -> String {
    let page = &found.page;
    let meta = Object::new().value("limit", &limit).value("next", &page.next);
    let meta = meta.value("node", &found.node).value("nodes", &found.nodes);
    let meta = match &page.head {
        Some((seq, hash)) => meta.raw("head", &Object::new().value("seq", seq).value("hash", hash).finish()),
        None => meta,
    };
    // A line is an object of its own already.
    let lines = format!("[{}]", page.lines.join(","));
    Object::with_capacity(lines.len()).raw("results", &lines).raw("meta", &meta.finish()).finish()
}

/// The path and query of the next page.
fn link(params: &QueryParams, name: &str, next: u64) -> String {
    let others = params.0.iter().filter(|(other, _)| other != "after" && other != "before");
    let mut query = Serializer::new(String::new());
    query.extend_pairs(others).append_pair(name, &next.to_string());
    format!("{AUDIT}?{}", query.finish())
}
