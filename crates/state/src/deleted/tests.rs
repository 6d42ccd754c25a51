//! Deletions and their undoing, compared with the state before and with one that is rebuilt from its records.

use super::*;
use crate::{
    apply::tests::{decide, define, delete, key, proposal, rebuilt, same, write},
    feed::{self, RecordChange},
};
use concord_model::command::{BatchStep, Command, ContentThen, Expect, Verdict};

const ROOM: u64 = 1 << 20;

fn end(name: &str, keep: Option<u64>) -> Command {
    Command::DeleteDefinition { key: key(name), expect: Expect::Present, restrict: false, keep }
}

fn back(name: &str, of: DeletedId) -> Command {
    Command::UndeleteDefinition(Undeletion { key: key(name), of, back: Vec::new() })
}

fn done(state: &mut State, command: Command) -> Revision {
    decide(state, &proposal(command)).unwrap().revision
}

/// A definition with three configs, one of them written twice and one deleted.
fn filled() -> State {
    let mut state = State::new();
    decide(&mut state, &define("d")).unwrap();
    for name in ["a", "b", "c", "gone"] {
        decide(&mut state, &write(name, &format!(r#"{{"n":"{name}"}}"#), Expect::Any)).unwrap();
    }
    decide(&mut state, &write("a", r#"{"n":2}"#, Expect::Any)).unwrap();
    decide(&mut state, &delete("gone", Expect::Any)).unwrap();
    state
}

fn last_kept(state: &State, name: &str) -> DeletedId {
    state.last_deleted(name).unwrap().deleted_id()
}

fn configs(state: &State, name: &str) -> Vec<Arc<Config>> {
    state.definition(name).unwrap().configs().cloned().collect()
}

fn counts(state: &State) -> (u64, u64, u64) {
    (state.definition_count(), state.config_count(), state.deleted_config_count())
}

#[test]
fn a_deleted_definition_is_nowhere_and_returns_with_all_it_had() {
    let mut state = filled();
    let before = state.clone();
    let deleted = done(&mut state, end("d", Some(ROOM)));
    assert_eq!(counts(&state), (0, 0, 3));
    assert!(state.definition("d").is_none() && state.definitions().next().is_none());
    same(&rebuilt(&state), &state);
    assert_eq!(counts(&rebuilt(&state)), (0, 0, 3));
    let kept = last_kept(&state, "d");
    let undeleted = done(&mut state, back("d", kept));
    assert_eq!(counts(&state), (1, 3, 0));
    assert_eq!(configs(&state, "d"), configs(&before, "d"), "with their revisions, times and index entries");
    let (now, then) =
        (&state.definition("d").unwrap().definition, &before.definition("d").unwrap().definition);
    assert_eq!((now.id, now.created_at, &now.indexing), (then.id, then.created_at, &then.indexing));
    assert_eq!(now.revision, undeleted);
    assert_eq!(now.standing.absences, [Absence { deleted, undeleted }]);
    for at in [deleted - 1, deleted, undeleted - 1, undeleted] {
        assert_eq!(now.existed_at(at), at < deleted || at >= undeleted, "{at}");
    }
    same(&rebuilt(&state), &state);
    // It goes on as any other.
    let more = Command::WriteConfig {
        definition: key("d"),
        key: key("d"),
        data: "{}".into(),
        entries: Box::default(),
        expect: Expect::Absent,
    };
    done(&mut state, more);
    done(&mut state, end("d", Some(ROOM)));
    assert_eq!(counts(&state), (0, 0, 4));
    same(&rebuilt(&state), &state);
}

#[test]
fn what_can_not_return_is_rejected_or_stale() {
    let mut state = filled();
    done(&mut state, end("d", Some(ROOM)));
    let first = last_kept(&state, "d");
    decide(&mut state, &define("d")).unwrap();
    assert_eq!(decide(&mut state, &proposal(back("d", first))), Err(Rejection::DefinitionExists));
    // The one that has taken its key is deleted: both are kept, each with its own id.
    done(&mut state, end("d", Some(ROOM)));
    assert_ne!(last_kept(&state, "d").id, first.id);
    done(&mut state, back("d", first));
    assert_eq!(counts(&state), (1, 3, 0));
    // A second one at the same time finds it returned; one whose definition is gone is made again.
    assert_eq!(decide(&mut state, &proposal(back("d", first))), Err(Rejection::DefinitionExists));
    // So is one that was prepared before it returned and was deleted again: its configs may have changed.
    for keep in [Some(ROOM), None] {
        done(&mut state, end("d", keep));
        let (verdict, change) = state.apply(state.revision() + 1, &proposal(back("d", first)));
        assert!(matches!(verdict, Verdict::Stale) && change.is_none());
        let last = last_kept(&state, "d");
        done(&mut state, back("d", last));
    }
}

#[test]
fn what_is_kept_is_bounded_and_ends_with_its_history() {
    let mut state = filled();
    let bytes = state.definition("d").unwrap().bytes_in_memory();
    for keep in [None, Some(bytes - 1)] {
        let mut state = state.clone();
        done(&mut state, end("d", keep));
        assert_eq!((state.deleted().count(), state.bytes, counts(&state)), (0, 0, (0, 0, 0)), "{keep:?}");
    }
    decide(&mut state, &define("e")).unwrap();
    let deleted = done(&mut state, end("d", Some(bytes)));
    assert_eq!(state.deleted_bytes(), bytes);
    // The one that was deleted first makes room.
    let mut full = state.clone();
    let (_, change) = full.apply(full.revision() + 1, &proposal(end("e", Some(bytes))));
    assert!(matches!(change.unwrap().edits.last(), Some(Edit::Dropped { kept }) if kept.key == key("d")));
    assert!(full.last_deleted("d").is_none() && full.last_deleted("e").is_some());
    same(&rebuilt(&full), &full);
    for (to, kept) in [(deleted - 1, 1), (deleted, 0)] {
        done(&mut state, Command::Compact { compaction_revision: to });
        assert_eq!(state.deleted().count(), kept, "{to}");
        same(&rebuilt(&state), &state);
    }
    for number in 0..DELETED_DEFINITIONS_MAX + 5 {
        let name = format!("n{number}");
        decide(&mut state, &define(&name)).unwrap();
        done(&mut state, end(&name, Some(1 << 40)));
    }
    assert_eq!(state.deleted().count(), DELETED_DEFINITIONS_MAX);
    assert!(state.last_deleted("n4").is_none() && state.last_deleted("n5").is_some());
}

#[test]
fn a_batch_keeps_what_was_there_before_it() {
    let mut state = filled();
    let before = state.clone();
    let read = Some(state.definition("d").unwrap().definition.revision);
    let late = write("late", "{}", Expect::Any).command;
    let steps = vec![
        BatchStep { definition_read: read, command: late },
        BatchStep { definition_read: None, command: end("d", Some(ROOM)) },
        BatchStep { definition_read: None, command: define("d").command },
        BatchStep { definition_read: None, command: define("new").command },
        BatchStep { definition_read: None, command: end("new", Some(ROOM)) },
    ];
    let (_, change) = state.apply(state.revision() + 1, &proposal(Command::Batch(steps)));
    let is_kept =
        |edit: &Edit| matches!(edit, Edit::Deleted { kept: Some(kept), .. } if kept.key == key("d"));
    assert!(change.unwrap().edits.iter().any(is_kept));
    assert_eq!(state.deleted().count(), 1, "what the batch itself created is not kept");
    same(&rebuilt(&state), &state);
    done(&mut state, end("d", None));
    let kept = last_kept(&state, "d");
    done(&mut state, back("d", kept));
    assert_eq!(configs(&state, "d"), configs(&before, "d"));
    // No batch undoes a deletion.
    done(&mut state, end("d", Some(ROOM)));
    let kept = last_kept(&state, "d");
    let step = BatchStep { definition_read: None, command: back("d", kept) };
    let outcome = decide(&mut state, &proposal(Command::Batch(vec![step])));
    assert!(matches!(outcome, Err(Rejection::InBatch { .. })));
}

#[test]
fn configs_are_put_back_as_they_were_before_the_deletion() {
    let mut state = filled();
    let wanted = configs(&state, "d");
    decide(&mut state, &write("a", r#"{"n":"wrong"}"#, Expect::Any)).unwrap();
    decide(&mut state, &write("new", r#"{"n":"new"}"#, Expect::Any)).unwrap();
    decide(&mut state, &delete("b", Expect::Any)).unwrap();
    done(&mut state, end("d", Some(ROOM)));
    let kept = last_kept(&state, "d");
    let then = |name: &str| {
        let found = wanted.iter().find(|config| config.key == key(name));
        let then = found.map(|config| ContentThen {
            data: Arc::clone(&config.data),
            entries: config.entries.clone(),
            created_at: config.created_at,
        });
        ConfigThen { key: key(name), then }
    };
    let back = ["a", "b", "new"].map(then).to_vec();
    let undeleted =
        done(&mut state, Command::UndeleteDefinition(Undeletion { key: key("d"), of: kept, back }));
    let content = |configs: &[Arc<Config>]| -> Vec<_> {
        configs
            .iter()
            .map(|one| (one.key.clone(), one.data.clone(), one.entries.clone(), one.created_at))
            .collect()
    };
    let now = configs(&state, "d");
    assert_eq!(content(&now), content(&wanted));
    let revisions: Vec<bool> = now.iter().map(|config| config.revision == undeleted).collect();
    assert_eq!(revisions, [true, true, false], "only what was changed is written");
    same(&rebuilt(&state), &state);
}

#[test]
fn a_watch_learns_that_configs_returned_that_are_no_items() {
    let mut state = filled();
    let mut changes = Vec::new();
    let mut apply = |state: &mut State, command| {
        let (_, change) = state.apply(state.revision() + 1, &proposal(command));
        changes.push(Arc::new(change.unwrap()));
    };
    apply(&mut state, end("d", Some(ROOM)));
    let kept = last_kept(&state, "d");
    apply(&mut state, back("d", kept));
    let events = feed::events(&changes, &state);
    let counts: Vec<_> = events
        .iter()
        .map(|event| match &event.items[..] {
            [RecordChange::Definition { is_new, deleted_configs, undeleted_configs, .. }] => {
                (*is_new, *deleted_configs, *undeleted_configs)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(counts, [(false, Some(3), None), (true, None, Some(3))]);
}

#[test]
fn absences_are_bounded_and_leave_no_gap_between_them() {
    let mut state = filled();
    for _ in 0..ABSENCES_MAX + 3 {
        done(&mut state, end("d", Some(ROOM)));
        let kept = last_kept(&state, "d");
        done(&mut state, back("d", kept));
    }
    let absences = &state.definition("d").unwrap().definition.standing.absences;
    assert_eq!(absences.len(), ABSENCES_MAX);
    assert!(absences.is_sorted_by_key(|absence| absence.deleted));
    let compaction_revision = state.revision() - 4;
    done(&mut state, Command::Compact { compaction_revision });
    done(&mut state, end("d", Some(ROOM)));
    let kept = last_kept(&state, "d");
    done(&mut state, back("d", kept));
    let absences = &state.definition("d").unwrap().definition.standing.absences;
    assert!(absences.len() <= 3 && absences.iter().all(|one| one.undeleted > compaction_revision));
    same(&rebuilt(&state), &state);
}
