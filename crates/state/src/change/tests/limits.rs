//! The limits of change requests: of one, of a person, of an environment, of the cluster.

use super::{super::decide::record_bytes, *};

/// One more than a change request touches.
fn many_definitions() -> Vec<String> {
    (0..=CHANGE_DEFINITIONS_MAX).map(|number| format!("d{number:03}")).collect()
}

#[test]
fn limits_of_one_change_request() {
    let too_large = |bound| Err(Rejection::ChangeTooLarge(bound));
    let mut world = ChangeWorld::new();
    let many = many_definitions();
    let names: Vec<&str> = many.iter().map(String::as_str).collect();
    let base = Guard::Environment { name: key("e"), revision: None };
    let with_bases =
        |count: usize| NewEdition { content: Content::new(vec![base.clone(); count], [0; 32]), ..edition(1) };
    let with_content = |bytes: u64| NewEdition {
        operations: "x".repeat(usize::try_from(bytes).unwrap()).into(),
        ..edition(1)
    };
    let with_text = |bytes: usize| NewEdition { text: "x".repeat(bytes).into(), ..edition(1) };
    let cases = [
        (edition_of(1, &names[1..]), Ok(())),
        (edition_of(1, &names), too_large(ChangeBound::Definitions)),
        (edition_of(1, &["b", "a"]), Err(Rejection::ChangeDigest)),
        (edition_of(1, &["a", "a"]), Err(Rejection::ChangeDigest)),
        (edition_of(1, &[]), Err(Rejection::ChangeDigest)),
        (with_bases(GUARDS_MAX), Ok(())),
        (with_bases(GUARDS_MAX + 1), too_large(ChangeBound::Bases)),
        (with_content(CHANGE_CONTENT_BYTES_MAX), Ok(())),
        (with_content(CHANGE_CONTENT_BYTES_MAX + 1), too_large(ChangeBound::Content)),
        (with_text(32 << 10), too_large(ChangeBound::Record)),
        (with_text(31 << 10), Ok(())),
    ];
    for (place, (edition, expected)) in cases.into_iter().enumerate() {
        let number = 10 + place as u64;
        let created = world.act("ann", number, ChangeAction::Create(edition.clone().into()));
        assert_eq!(created, expected, "{place}");
        // The same of another edition.
        let mut world = at_stage(Open);
        let edit = ChangeAction::Edit { after: 1, expect: Expect::Any, edition: edition.into() };
        assert_eq!(world.act("ann", 1, edit), expected, "{place}");
    }
}

#[test]
fn what_was_said_of_earlier_editions_makes_room_for_votes_and_editions() {
    let mut world = ChangeWorld::new();
    let large = |digest: u8| NewEdition { text: "x".repeat(31 << 10).into(), ..edition(digest) };
    world.act("ann", 1, ChangeAction::Create(large(1).into())).unwrap();
    let judge = |world: &mut ChangeWorld, who: &str, opinion| {
        let Edition { number, digest, .. } = world.state.change(&id(1)).unwrap().edition;
        let comment = "x".repeat(CHANGE_COMMENT_BYTES_MAX);
        let vote = NewVote { opinion, edition: number, digest, is_redacted: false, comment };
        world.act(who, 1, ChangeAction::Vote(vote.into()))
    };
    // More than the record has room for.
    for number in 1..40 {
        judge(&mut world, "cid", Opinion::Rejection).unwrap();
        let edition = large(number + 1).into();
        let edit = ChangeAction::Edit { after: number.into(), expect: Expect::Any, edition };
        world.act("ann", 1, edit).unwrap();
    }
    judge(&mut world, "bob", Opinion::Approval).unwrap();
    let change = world.state.change(&id(1)).unwrap();
    let kept: Vec<u32> = change.votes.iter().map(|vote| vote.edition).collect();
    let first = kept[0];
    assert!(first > 1 && kept.len() > 20, "{kept:?}");
    assert!(kept.iter().copied().eq(first..=40), "the oldest ones go: {kept:?}");
}

#[test]
fn a_bypass_touches_no_more_definitions_and_its_text_is_as_short() {
    let too_large = |bound| Err(Rejection::ChangeTooLarge(bound));
    let many = many_definitions();
    let steps = |count: usize| Command::Batch(many[..count].iter().map(|name| step(create(name))).collect());
    let mut world = ChangeWorld::new();
    world.bypass("ann", 1, steps(CHANGE_DEFINITIONS_MAX)).unwrap();
    let mut world = ChangeWorld::new();
    let rejected = world.bypass("ann", 1, steps(CHANGE_DEFINITIONS_MAX + 1)).map(drop);
    assert_eq!(rejected, too_large(ChangeBound::Definitions));
    let source =
        Source::Bypass(Bypass { id: id(1), digest: [1; 32], text: "x".repeat(64 << 10).into() }.into());
    let tail = Tail::of(source, Vec::new());
    let proposal = Proposal { tail, ..world.proposal("ann", write("prod.d", "k")) };
    assert_eq!(world.decide(&proposal).map(drop), too_large(ChangeBound::Record));
}

#[test]
fn limits_of_authors_and_votes() {
    let mut world = at_stage(Open);
    for number in 0..CHANGE_AUTHORS_MAX + 1 {
        let who = format!("m{number}x");
        world.make_key("root", &who, None, Quota::default());
        let edited = world.edit(&who, 1, 2);
        let is_last = number == CHANGE_AUTHORS_MAX - 1 || number == CHANGE_AUTHORS_MAX;
        assert_eq!(
            edited,
            if is_last { Err(Rejection::ChangeTooLarge(ChangeBound::Authors)) } else { Ok(()) }
        );
    }
    // An author of before may go on.
    world.edit("ann", 1, 3).unwrap();
    let mut world = at_stage(Open);
    for number in 0..CHANGE_VOTES_MAX + 1 {
        let who = format!("v{number}x");
        world.make_key("root", &who, Some(&who), Quota::default());
        if number == 1 {
            // A rejection of an earlier edition makes room for one more.
            world.edit("ann", 1, 2).unwrap();
        }
        let opinion = if number == 0 { Opinion::Rejection } else { Opinion::Approval };
        world.vote(&who, 1, opinion).unwrap();
    }
    assert_eq!(world.vote("bob", 1, Opinion::Approval), Err(Rejection::ChangeTooLarge(ChangeBound::Votes)));
    assert_eq!(world.state.change(&id(1)).unwrap().votes.len(), CHANGE_VOTES_MAX);
}

#[test]
fn limits_of_a_person_an_environment_and_the_cluster() {
    let too_many = |quota| Err(Rejection::TooManyChanges(quota));
    let mut world = ChangeWorld::new();
    for number in 0..OPEN_CHANGES_OF_PARTY_MAX {
        world.create(if number % 2 == 0 { "ann" } else { "ann2" }, number);
    }
    let create = |edition: NewEdition| ChangeAction::Create(edition.into());
    for who in ["ann", "ann2"] {
        assert_eq!(world.act(who, 900, create(edition(1))), too_many(ChangeQuota::OfParty));
    }
    // An edit of one's own takes no more room; taking over another's does.
    world.edit("ann", 0, 2).unwrap();
    world.create("bob", 1000);
    assert_eq!(world.edit("ann", 1000, 2), too_many(ChangeQuota::OfParty));
    world.act("ann", 0, withdraw()).unwrap();
    world.edit("ann", 1000, 2).unwrap();
    // Each sender leaves to others as much as they take. An environment that is full for one is not for the next.
    let mut number = 2000;
    let mut fill = |world: &mut ChangeWorld, who: &str| {
        let (begin, mut rejected) = (number, None);
        while rejected.is_none() {
            rejected = world.act(who, number, create(edition(1))).err();
            number += u64::from(rejected.is_none());
        }
        assert_eq!(rejected, Some(Rejection::TooManyChanges(ChangeQuota::OfEnvironment)), "{who}");
        number - begin
    };
    assert_eq!(["bob", "cid", "dan"].map(|who| fill(&mut world, who)), [150, 75, 37]);
    // A key with a name of its own that nobody has attested is no other sender than its maker says, and is one of many.
    assert_eq!(["eve", "bot"].map(|who| fill(&mut world, who)), [19, 9]);
    for number in 0..10 {
        let who = format!("x{number}");
        world.make_key("root", &who, None, Quota::default());
        assert!(fill(&mut world, &who) >= u64::from(number < 4), "{who}");
    }
    assert_eq!(world.state.pending_change_count(), OPEN_CHANGES_OF_ENVIRONMENT_MAX);
    // One that is full for everybody is for them alone.
    assert_eq!(world.act("root", 4000, create(edition(1))), too_many(ChangeQuota::OfEnvironment));
    world.act("root", 4000, create(edition_of(1, &["dev.d"]))).unwrap();
    let both = edition_of(1, &["dev.d", "prod.d"]);
    assert_eq!(world.act("root", 4001, create(both)), too_many(ChangeQuota::OfEnvironment));
    expect_sound(&world.state);
}

#[test]
fn a_key_that_nobody_has_attested_uses_up_nothing_of_the_person_that_it_names() {
    let mut world = ChangeWorld::restricted();
    // With `keys` alone: a key that names ann, who knows nothing of it.
    world.make_key("bot", "fake", Some("ann"), Quota::default());
    let create = |edition: NewEdition| ChangeAction::Create(edition.into());
    for number in 0..OPEN_CHANGES_OF_PARTY_MAX {
        world.act("fake", number, create(edition_of(1, &["dev.d"]))).unwrap();
    }
    let rejected = world.act("fake", 900, create(edition(1)));
    assert_eq!(rejected, Err(Rejection::TooManyChanges(ChangeQuota::OfParty)));
    world.create("ann", 901);
    for number in 0..UNREVIEWED_BYPASSES_MAX {
        world.bypass("fake", 1000 + number, write("prod.d", "k")).unwrap();
    }
    assert!(world.bypass("fake", 1900, write("prod.d", "k")).is_err());
    world.bypass("ann", 1901, write("prod.d", "k")).unwrap();
    expect_sound(&world.state);
}

#[test]
fn limits_of_bytes() {
    let too_many = |quota| Err(Rejection::TooManyChanges(quota));
    let create = |edition: NewEdition| ChangeAction::Create(edition.into());
    // An edition of so many bytes, with what it adds to the record.
    let large = |bytes: u64| NewEdition {
        operations: "x".repeat(usize::try_from(bytes - record_bytes(&edition(1))).unwrap()).into(),
        ..edition(1)
    };
    let half = OPEN_CHANGE_BYTES_OF_PARTY_MAX / 2;
    let mut world = ChangeWorld::new();
    for number in 0..2 {
        world.act("ann", number, create(large(half))).unwrap();
    }
    assert_eq!(world.act("ann2", 2, create(edition(1))), too_many(ChangeQuota::BytesOfParty));
    // Whoever comes later has half of what is left: 8 MiB while there are 16, then 4, and so on.
    let mut number = 10;
    let taken: Vec<u64> = (0..9)
        .map(|sender| {
            let who = format!("o{sender}x");
            world.make_key("root", &who, None, Quota::default());
            let (before, mut bytes) = (world.state.change_content_bytes(), half);
            while bytes > 1 << 16 {
                match world.act(&who, number, create(large(bytes))) {
                    Ok(()) => number += 1,
                    Err(Rejection::ChangesFull) => bytes /= 2,
                    Err(rejection) => {
                        assert_eq!(rejection, Rejection::TooManyChanges(ChangeQuota::BytesOfParty));
                        break;
                    }
                }
            }
            world.state.change_content_bytes() - before
        })
        .collect();
    let [mib, rest] = [1 << 20, 8 << 20];
    assert_eq!(taken, [rest, rest, rest, rest, rest, rest, 4 * mib, 2 * mib, mib]);
    assert!(world.state.change_content_bytes() < CHANGE_CONTENTS_BYTES_MAX);
    world.act("bob", 100, create(edition(1))).unwrap();
    assert_eq!(world.act("cid", 101, create(large(half))), Err(Rejection::ChangesFull));
    world.act("ann", 0, withdraw()).unwrap();
    world.act("ann", 1, withdraw()).unwrap();
    world.act("cid", 101, create(large(half))).unwrap();
}

#[test]
fn a_person_has_so_many_bypasses_without_review() {
    let mut world = ChangeWorld::new();
    for number in 0..UNREVIEWED_BYPASSES_MAX {
        world.bypass(if number % 2 == 0 { "ann" } else { "ann2" }, number, write("prod.d", "k")).unwrap();
    }
    let rejected = world.bypass("ann", 900, write("prod.d", "k")).map(drop);
    assert_eq!(rejected, Err(Rejection::TooManyChanges(ChangeQuota::Unreviewed)));
    world.vote("bob", 0, Opinion::Review).unwrap();
    world.bypass("ann", 900, write("prod.d", "k")).unwrap();
}
