//! Every operation on records, with keys that have the permission, another verb, or another definition.
//!
//! The node belongs to no cluster. So an authorized request fails for that reason, and no other request does: permissions
//! are checked before anything is looked up.

use std::time::Duration;

use super::*;
use crate::{
    Caller, Check, CheckCondition, EnvironmentRules, FlagRequest, LazySchema, MemberChange, NewProtection,
    NewSchema, NewUnique, Restored, Rollback, Undelete, Write,
    audit::AuditQuery,
    read::list::{ListRequest, ListScope, PageSource},
    testing::{key, service},
    watch::{LatestRequest, ListedChanges, WatchRequest, WatchStart},
};
use concord_model::{
    access_key::Verb,
    command::Expect,
    document::Document,
    key_set::KeySet,
    limits::Limits,
    patch::{Patch, PatchFormat},
    query::Page,
};
use concord_net::Member;

const LINEARIZABLE: Consistency = Consistency::LINEARIZABLE;

fn object() -> Document {
    Document::new(serde_json::json!({}))
}

const DEFINE: &[Verb] = &[Verb::Define];
const DELETE: &[Verb] = &[Verb::Delete];
const UNDELETE: &[Verb] = &[Verb::Define, Verb::Write];
const READ: &[Verb] = &[Verb::Read];
const WRITE: &[Verb] = &[Verb::Write];
const CHANGE: &[Verb] = &[Verb::Write, Verb::Read];

fn writes() -> Vec<(Write, &'static [Verb])> {
    let (d, k) = (|| String::from("billing.eu"), || String::from("k"));
    let expect = Expect::Present;
    let schema = NewSchema {
        key: d(),
        schema: None,
        format_assertion: None,
        expect,
        force: false,
        compiled: LazySchema::default(),
    };
    let patch = Patch { format: PatchFormat::Merge, document: object() };
    let rollback =
        Rollback { definition: d(), key: k(), restored: Restored::Found { id: 1, data: object() }, expect };
    let all = vec![
        (Write::CreateDefinition { key: d(), indexes: vec![], schema: None, format_assertion: None }, DEFINE),
        (Write::SetIndexes { key: d(), indexes: vec![], expect }, DEFINE),
        (Write::DeleteDefinition { key: d(), expect, restrict: false, purge: false }, DELETE),
        (Write::UndeleteDefinition(Undelete { key: d(), then: None }), UNDELETE),
        (Write::SetSchema(schema), DEFINE),
        (Write::SetUnique(NewUnique { key: d(), paths: vec![], expect }), DEFINE),
        (Write::SetProtection(NewProtection { key: d(), protected: true, expect }), DEFINE),
        (Write::WriteConfig { definition: d(), key: k(), data: object(), expect }, WRITE),
        (Write::DeleteConfig { definition: d(), key: k(), expect }, WRITE),
        (Write::PatchConfig { definition: d(), key: k(), patch, expect }, CHANGE),
        (Write::Rollback(rollback), CHANGE),
        (Write::Check(Check { definition: d(), key: k(), condition: CheckCondition::Exists(true) }), READ),
        (Write::Read { definition: d(), key: k() }, READ),
    ];
    for (write, _) in &all {
        // A new kind of write does not compile here until it is added above.
        match write {
            Write::CreateDefinition { .. }
            | Write::SetIndexes { .. }
            | Write::DeleteDefinition { .. }
            | Write::UndeleteDefinition(_)
            | Write::SetProtection(_)
            | Write::SetSchema(_)
            | Write::SetUnique(_)
            | Write::WriteConfig { .. }
            | Write::DeleteConfig { .. }
            | Write::PatchConfig { .. }
            | Write::Rollback(_)
            | Write::Access(_)
            | Write::Audit(_)
            | Write::Environment(_)
            | Write::Change(_)
            | Write::Identity(_)
            | Write::Check(_)
            | Write::Read { .. }
            | Write::Transaction(_)
            | Write::Batch(_) => {}
        }
    }
    all
}

fn caller(principal: &Principal) -> Caller {
    Caller {
        principal: principal.clone(),
        reason: None,
        idempotency_key: None,
        dry_run: false,
        listed_variants: concord_model::schema::ListedVariants::default(),
        bypass: None,
    }
}

fn is_forbidden<T: std::fmt::Debug>(result: Result<T, Refusal>) -> bool {
    let refusal = result.unwrap_err();
    let refusal = if let Refusal::OfOperation(_, of_operation) = refusal { *of_operation } else { refusal };
    let is_forbidden = matches!(refusal, Refusal::Forbidden { .. });
    assert!(is_forbidden || matches!(refusal, Refusal::Unavailable(_)), "{refusal:?}");
    is_forbidden
}

#[tokio::test]
async fn every_read_is_authorized_before_any_lookup() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path(), Limits::default());
    for (principal, expected) in [
        (Principal::root(), false),
        (key(&[(&[Verb::Read], &["billing.*"])]), false),
        (key(&[(&[Verb::Read], &["other"])]), true),
        (key(&[(&[Verb::Write, Verb::Define, Verb::Backup, Verb::Cluster], &["*"])]), true),
        (key(&[]), true),
    ] {
        let d = "billing.eu";
        let name = ConfigName { definition: d, key: "k" };
        let range = HistoryRange { before: None, limit: 1 };
        let page = || Page { page: 1, limit: 1, descending: false, search: String::new() };
        let fresh = PageSource::Fresh(LINEARIZABLE);
        let list = ListRequest { scope: ListScope::Configs(d.into()), params: Vec::new() };
        let watch = |definition: &str| WatchRequest {
            of_change_requests: false,
            definitions: vec![definition.into()],
            configs: Vec::new(),
            filters: Vec::new(),
            has_prev: false,
            start: WatchStart::Now,
            consistency: LINEARIZABLE,
            reader: None,
            follows_rollouts: false,
        };
        let flags = |definition| FlagRequest {
            definition,
            flag: None,
            context: concord_flags::Context::empty(),
            consistency: LINEARIZABLE,
            reader: None,
        };
        let latest = |definition: &str| LatestRequest {
            definitions: vec![definition.into()],
            configs: Vec::new(),
            has_prev: false,
            consistency: LINEARIZABLE,
            before: None,
            limit: 1,
            listed: ListedChanges::default(),
        };
        let listed = service.reads.list(&principal, list, page(), fresh).await;
        let answers = [
            is_forbidden(service.reads.read(&principal, Verb::Read, d, LINEARIZABLE).await),
            is_forbidden(service.history.config_history(&principal, LINEARIZABLE, name, range).await),
            is_forbidden(service.reports.readers(&principal, name, LINEARIZABLE).await),
            is_forbidden(service.history.definition_history(&principal, LINEARIZABLE, d, range).await),
            is_forbidden(service.history.config_at(&principal, LINEARIZABLE, name, 1).await),
            is_forbidden(listed.map_err(|error| error.refusal)),
            is_forbidden(service.flags.evaluate(&principal, flags(d)).await),
            is_forbidden(service.flags.document(&principal, d, LINEARIZABLE, None).await),
            is_forbidden(service.watches.watch(principal.clone(), watch(d)).await),
            is_forbidden(service.watches.watch(principal.clone(), watch("billing.*")).await),
            is_forbidden(service.watches.poll(principal.clone(), watch(d), Duration::ZERO).await),
            is_forbidden(service.watches.latest(principal.clone(), latest(d)).await),
            is_forbidden(service.watches.latest(principal.clone(), latest("billing.*")).await),
        ];
        assert_eq!(answers, [expected; 13], "{principal:?}");
        // Of change requests: whoever may read something may ask, and sees those of which they may read all.
        let requests = WatchRequest { of_change_requests: true, definitions: Vec::new(), ..watch(d) };
        let may_read = principal.authorize(Verb::Read, None).is_ok();
        let polled = service.watches.poll(principal.clone(), requests.clone(), Duration::ZERO).await;
        assert_eq!(is_forbidden(polled), !may_read, "{principal:?}");
        assert_eq!(is_forbidden(service.watches.watch(principal.clone(), requests).await), !may_read);
        let mut both = watch(d);
        both.definitions.push("secret".into());
        let may_both = principal.is_unbounded();
        assert_eq!(
            is_forbidden(service.watches.watch(principal.clone(), both).await),
            !may_both,
            "each definition is authorized"
        );
    }
}

#[tokio::test]
async fn a_list_or_watch_of_everything_covers_what_a_key_may_read() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path(), Limits::default());
    let everything = || WatchRequest {
        of_change_requests: false,
        definitions: Vec::new(),
        configs: Vec::new(),
        filters: Vec::new(),
        has_prev: false,
        start: WatchStart::Now,
        consistency: LINEARIZABLE,
        reader: None,
        follows_rollouts: false,
    };
    let list = || ListRequest { scope: ListScope::Definitions, params: Vec::new() };
    let page = || Page { page: 1, limit: 1, descending: false, search: String::new() };
    for (principal, expected) in
        [(key(&[(&[Verb::Read], &["other"])]), false), (key(&[(&[Verb::Write], &["*"])]), true)]
    {
        let listed = service.reads.list(&principal, list(), page(), PageSource::Fresh(LINEARIZABLE)).await;
        assert_eq!(is_forbidden(listed.map_err(|error| error.refusal)), expected);
        assert_eq!(is_forbidden(service.watches.watch(principal, everything()).await), expected);
    }
    let both = key(&[
        (&[Verb::Read], &["a.*", "b"]),
        (&[Verb::Read, Verb::Write], &["a.b", "c*"]),
        (&[Verb::Write], &["d"]),
    ]);
    let keys = both.visible(Verb::Read);
    let seen = ["a", "a.b", "b", "bb", "cc", "d"].map(|key| keys.contains(key));
    assert_eq!(seen, [false, true, true, false, true, false]);
    assert_eq!(Principal::root().visible(Verb::Read), KeySet::ALL);
}

#[tokio::test]
async fn every_write_is_authorized_alone_and_in_a_batch() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path(), Limits::default());
    for (write, needed) in writes() {
        let allowed = key(&[(needed, &["billing.*"])]);
        let elsewhere = key(&[(needed, &["billing", "other*"]), (&Verb::ALL, &["elsewhere"])]);
        let without = |verb: Verb| {
            let others: Vec<Verb> = Verb::ALL.into_iter().filter(|other| *other != verb).collect();
            key(&[(&others, &["*"])])
        };
        let mut principals = vec![(allowed, false), (elsewhere, true)];
        principals.extend(needed.iter().map(|verb| (without(*verb), true)));
        for (principal, expected) in principals {
            for dry_run in [false, true] {
                let caller = || Caller { dry_run, ..caller(&principal) };
                let single = service.writes.write(caller(), write.clone()).await;
                assert_eq!(is_forbidden(single), expected, "{write:?} {principal:?}");
                let other = Write::DeleteConfig {
                    definition: "free".into(),
                    key: "k".into(),
                    expect: Expect::Present,
                };
                let batched =
                    service.writes.write(caller(), Write::Batch(vec![other.clone(), write.clone()])).await;
                // The other operation is forbidden, unless all definitions are granted.
                let refused = batched.unwrap_err();
                assert!(matches!(refused, Refusal::OfOperation(0, _)) || expected, "{write:?}: {refused:?}");
                assert!(is_forbidden(Err::<(), _>(refused)), "{write:?} and another one");
            }
        }
        let both = key(&[(needed, &["billing.*"]), (&[Verb::Write], &["free"])]);
        let other =
            Write::DeleteConfig { definition: "free".into(), key: "k".into(), expect: Expect::Present };
        let batch = |operations| service.writes.write(caller(&both), Write::Batch(operations));
        assert!(!is_forbidden(batch(vec![other.clone(), write.clone()]).await), "{write:?}");
        let foreign =
            Write::DeleteConfig { definition: "z".into(), key: "k".into(), expect: Expect::Present };
        let last = batch(vec![other, write, foreign]).await.unwrap_err();
        assert_eq!(last, Refusal::Forbidden { verb: Verb::Write }.of_operation(2));
    }
}

#[tokio::test]
async fn operations_that_also_read_configs_need_read() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path(), Limits::default());
    let d = || String::from("d");
    let schema = || NewSchema {
        key: d(),
        schema: None,
        format_assertion: None,
        expect: Expect::Present,
        force: true,
        compiled: LazySchema::default(),
    };
    let unique = || NewUnique { key: d(), paths: Vec::new(), expect: Expect::Present };
    for (verbs, expected) in [
        (&[Verb::Define, Verb::Read][..], false),
        (&[Verb::Define], true),
        (&[Verb::Read, Verb::Write], true),
    ] {
        let principal = key(&[(verbs, &["d"])]);
        let caller = || Caller { dry_run: true, ..caller(&principal) };
        assert_eq!(is_forbidden(service.writes.try_schema(caller(), schema()).await), expected, "{verbs:?}");
        assert_eq!(is_forbidden(service.writes.try_unique(caller(), unique()).await), expected, "{verbs:?}");
    }
    let definer = key(&[(&[Verb::Define], &["d"])]);
    assert!(service.writes.breaking(&definer, schema()).await.unwrap().is_none(), "stored, and no report");
    for (verbs, expected) in
        [(&[Verb::Write, Verb::Read][..], false), (&[Verb::Write], true), (&[Verb::Read], true)]
    {
        let caller = caller(&key(&[(verbs, &["d"])]));
        let (definition, key, restored) = ("d".into(), "k".into(), Restored::At(1));
        let rollback = Rollback { definition, key, restored, expect: Expect::Present };
        let rolled_back = service.writes.rollback(caller, rollback).await;
        assert_eq!(is_forbidden(rolled_back), expected, "{verbs:?}");
    }
}

#[tokio::test]
async fn cluster_changes_and_backups_need_their_own_verbs() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path(), Limits::default());
    for verb in Verb::ALL {
        let principal = key(&[(&[verb], &["*"])]);
        let is_cluster = verb == Verb::Cluster;
        let may_look = is_cluster || verb == Verb::Observe;
        assert_eq!(service.members.cluster(&principal).is_ok(), may_look, "{verb}");
        assert_eq!(service.metrics(&principal).await.is_ok(), may_look, "{verb}");
        assert_eq!(service.usage(&principal).await.is_ok(), may_look, "{verb}");
        let changed = service.members.change(&principal, MemberChange::Promote(2)).await;
        assert_eq!(is_forbidden(changed), !is_cluster, "{verb}");
        let members = vec![Member { id: 9, api_addr: "a:1".into(), peer_addr: "a:2".into() }];
        let formed = service.members.init(&principal, members).await.unwrap_err();
        assert_eq!(matches!(formed, Refusal::Forbidden { .. }), !is_cluster, "{verb} {formed:?}");
        let accepted = service.anchors.accept(caller(&principal), 1).await;
        assert_eq!(is_forbidden(accepted), !is_cluster, "{verb}");
        let anchors = service.anchors.anchors(&principal, LINEARIZABLE).await;
        assert_eq!(is_forbidden(anchors), verb != Verb::Audit, "{verb}");
        for node in [None, Some(7)] {
            let page = service.audit_pages.page(&principal, node, AuditQuery::default()).await;
            // This service has no audit log.
            let is_forbidden = matches!(page, Err(Refusal::Forbidden { .. }));
            assert_eq!(is_forbidden, verb != Verb::Audit, "{verb}");
        }
        assert_eq!(
            is_forbidden(service.backups.backup(&principal, LINEARIZABLE).await),
            verb != Verb::Backup,
            "{verb}"
        );
    }
}

#[tokio::test]
async fn an_environment_is_changed_by_who_defines_all_that_it_can_have() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path(), Limits::default());
    let all = |verb| key(&[(&[verb], &["*"])]);
    for (principal, name, expected) in [
        (Principal::root(), "prod", false),
        (Principal::root(), "default", false),
        (all(Verb::Define), "prod", false),
        (all(Verb::Define), "default", false),
        (key(&[(&[Verb::Define], &["prod.*"])]), "prod", false),
        (key(&[(&[Verb::Define], &["prod*"])]), "prod", false),
        (key(&[(&[Verb::Define], &["prod.*"])]), "prod2", true),
        (key(&[(&[Verb::Define], &["prod.*"])]), "default", true),
        (key(&[(&[Verb::Define], &["prod.a*", "prod.b*", "prod", "default.*"])]), "prod", true),
        (key(&[(&[Verb::Define], &["default.*"])]), "default", true),
        (key(&[(&[Verb::Read, Verb::Write, Verb::Delete, Verb::Keys], &["*"])]), "prod", true),
    ] {
        for dry_run in [false, true] {
            let caller = || Caller { dry_run, ..caller(&principal) };
            let rules = EnvironmentRules::default();
            let put = service.environments.put(caller(), name.into(), rules, Expect::Any).await;
            assert_eq!(is_forbidden(put), expected, "{name} {principal:?}");
            let deleted = service.environments.delete(caller(), name.into(), Expect::Present).await;
            assert_eq!(is_forbidden(deleted), expected, "{name} {principal:?}");
        }
    }
    let reader = key(&[(&[Verb::Write], &["prod.limits", "test*", "free"])]);
    let sees = |name: &str, all: &[&str]| reader.may_see_environment(name, all.iter().copied());
    let all = ["default", "prod", "test"];
    assert_eq!(
        ["prod", "test", "te", "default", "pro", "limits"].map(|name| sees(name, &all)),
        [true, true, false, true, false, false]
    );
    let within = key(&[(&[Verb::Read], &["prod.limits", "test.*"])]);
    assert!(!within.may_see_environment("default", all.into_iter()), "it may name nothing in `default`");
    assert!(
        within.may_see_environment("default", ["default", "prod"].into_iter()),
        "`test.*` is in `default` now"
    );
    assert!(!key(&[(&[Verb::Keys], &["prod.*"])]).may_see_environment("prod", all.into_iter()));
}

#[tokio::test]
async fn a_report_is_authorized_before_any_lookup() {
    use crate::{GateWord, ReaderReport, ReaderState, ReportAbout};
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path(), Limits::default());
    for (principal, expected) in [
        (Principal::root(), false),
        (key(&[(&[Verb::Report], &["billing.*"])]), false),
        (key(&[(&[Verb::Approve], &["billing.*"])]), false),
        (key(&[(&[Verb::Report], &[])]), true),
        (key(&[(&[Verb::Read, Verb::Write, Verb::Propose, Verb::Bypass], &["*"])]), true),
        (key(&[]), true),
    ] {
        let [change, reader, labels, detail] = ["AbCdEf012345", "a", "", ""].map(str::to_owned);
        let about = ReportAbout::Rollout(change);
        let state = ReaderState::Healthy;
        let report = ReaderReport { about, reader, labels, instance: None, state, detail };
        assert_eq!(is_forbidden(service.reports.report(&principal, report.clone()).await), expected);
        // Of a config, the key must be able to report of its definition.
        let config = |definition: &str| ReportAbout::Config {
            definition: definition.into(),
            key: "absent".into(),
            revision: 1,
        };
        for (definition, is_else) in [("billing.a", false), ("other", !principal.is_unbounded())] {
            let report = ReaderReport { about: config(definition), ..report.clone() };
            let is_denied = is_forbidden(service.reports.report(&principal, report).await);
            assert_eq!(is_denied, expected || is_else, "{principal:?}");
        }
        let word = GateWord { gate: "errors".into(), is_ok: true, evidence: String::new() };
        assert_eq!(is_forbidden(service.reports.say(&principal, word).await), expected, "{principal:?}");
    }
}
