//! What readers get of rollouts from a node: by reads, by watches and polls, from the feed and from the history.

use std::{cell::Cell, collections::BTreeMap, time::Duration};

use super::*;
use crate::{
    read::bulk::{BulkConfig, BulkRequest, ReadResult},
    request::WatchCount,
    testing::Scripted,
    watch::{Notice, OpenWatch, WatchRequest, WatchStart},
};
use concord_model::{
    access_key::Author,
    command::{Command, Proposal, Verdict},
    error::Invalid,
    key::Key,
    record::Revision,
    system::{change::ChangeId, rollout::Reader},
};
use concord_state::{
    State,
    feed::RecordChange,
    testing::rollouts::{Rolling, canary, other},
};

/// What a client has of a config: its data, its revision, and the change request whose candidate it is.
type Versions = BTreeMap<String, (String, Revision, Option<String>)>;

const CONSISTENCY: Consistency = Consistency { level: Level::Linearizable, min_revision: None };
const ID: &str = "changechange";

fn rolling() -> Rolling<'static> {
    let id = ChangeId::parse(ID).unwrap();
    Rolling { id, definition: "d", configs: &[("k", r#"{"new":1}"#), ("l", r#"{"new":2}"#)] }
}

struct World {
    node: Scripted,
    /// Whether time is real: the threads that read the history know no other.
    is_timed: Cell<bool>,
}

impl World {
    /// A definition with the configs `k`, `l` and `m`.
    async fn start() -> Self {
        let node = Scripted::start().await;
        node.fake.lead(Some(1));
        let world = Self { node, is_timed: Cell::new(false) };
        let definition =
            Command::CreateDefinition { key: Key::parse("d").unwrap(), indexes: Vec::new(), schema: None };
        world.decide(&Proposal::new(world.node.true_time(), "root", Author::Root, definition));
        for name in ["k", "l", "m"] {
            world.write(name, "{}");
        }
        world
    }

    fn state(&self) -> Arc<State> {
        self.node.service.cx.applied()
    }

    fn decide(&self, proposal: &Proposal) -> Revision {
        let verdict = self.node.fake.decide(proposal);
        assert!(matches!(verdict, Verdict::Decided(Ok(_))), "{proposal}: {verdict:?}");
        self.node.service.cx.revision()
    }

    fn write(&self, name: &str, data: &str) -> Revision {
        let (definition, key) = (Key::parse("d").unwrap(), Key::parse(name).unwrap());
        let (data, entries, expect) = (data.into(), Box::default(), Expect::Any);
        let command = Command::WriteConfig { definition, key, data, entries, expect };
        self.decide(&Proposal::new(self.node.true_time(), "root", Author::Root, command))
    }

    fn begin(&self) -> Revision {
        self.decide(&rolling().create(&self.state(), self.node.true_time()));
        self.decide(&rolling().begin(&self.state(), self.node.true_time()))
    }

    fn advance(&self) -> Revision {
        self.decide(&rolling().advance(&self.state(), self.node.true_time()))
    }

    fn abort(&self) -> Revision {
        self.decide(&rolling().abort(self.node.true_time()))
    }

    fn end(&self) -> Revision {
        self.decide(&rolling().end(self.node.true_time()))
    }

    async fn watch(
        &self,
        start: WatchStart,
        configs: &[&str],
        reader: Option<Reader>,
    ) -> Result<OpenWatch, Refusal> {
        let request = WatchRequest {
            of_change_requests: false,
            definitions: if configs.is_empty() { Vec::new() } else { vec!["d".into()] },
            configs: configs.iter().map(|name| (*name).to_owned()).collect(),
            filters: Vec::new(),
            has_prev: true,
            start,
            consistency: CONSISTENCY,
            reader,
            follows_rollouts: false,
        };
        self.node.service.watches.watch(Principal::root(), request).await
    }

    /// What a client reads of all configs.
    async fn read(&self, reader: Option<&Reader>) -> Versions {
        let name = |key: &str| BulkConfig { definition: "d".into(), key: key.into() };
        let configs = ["k", "l", "m"].map(name).into();
        let request = BulkRequest { configs, at: None, reader: reader.cloned() };
        let bulk = self.node.service.reads.read_bulk(&Principal::root(), CONSISTENCY, request).await.unwrap();
        let version = |(place, result): (usize, &ReadResult)| {
            let ReadResult::Found(config) = result else { panic!("{result:?}") };
            let variant = bulk.variants.get(&place).map(|variant| variant.change.to_string());
            (config.key.to_string(), (config.data.to_string(), config.revision, variant))
        };
        bulk.results.iter().enumerate().map(version).collect()
    }

    /// The history has everything, and the feed nothing: watches read the history, in real time.
    fn forget_feed(&self) {
        if !self.is_timed.replace(true) {
            tokio::time::resume();
        }
        let consensus = self.node.service.cx.consensus().unwrap();
        while consensus.figures().history < self.node.service.cx.revision() {
            std::thread::sleep(Duration::from_millis(1));
        }
        consensus.feed().reset(self.node.service.cx.revision());
    }
}

impl World {
    async fn stop(self) {
        if self.is_timed.get() {
            tokio::time::pause();
        }
        self.node.stop().await;
    }
}

/// Reads a watch up to a revision. Returns the revisions of its changes.
async fn follow(watch: &mut OpenWatch, upto: Revision, versions: &mut Versions) -> Vec<Revision> {
    let mut revisions = Vec::new();
    loop {
        match watch.next().await.unwrap() {
            Notice::State(chunk) => {
                for (place, (_, config)) in chunk.configs.iter().enumerate() {
                    let variant = chunk.variants.get(&place).map(ToString::to_string);
                    versions
                        .insert(config.key.to_string(), (config.data.to_string(), config.revision, variant));
                }
                if chunk.is_last && chunk.revision >= upto {
                    return revisions;
                }
            }
            Notice::Changes(event, ..) => {
                revisions.push(event.revision);
                for (place, item) in event.items.iter().enumerate() {
                    let RecordChange::Config { key, after: Some(config), .. } = item else { continue };
                    let variant = event.variants.get(&place).map(ToString::to_string);
                    let version = (config.data.to_string(), config.revision, variant);
                    versions.insert(key.to_string(), version);
                }
                if event.revision >= upto {
                    return revisions;
                }
            }
            Notice::Progress(revision) if revision >= upto => return revisions,
            Notice::Progress(_) => {}
            Notice::End(refusal) => panic!("{refusal:?}"),
        }
    }
}

/// What each of the clients reads.
async fn reads(world: &World) -> Vec<Versions> {
    let mut reads = Vec::new();
    for client in clients() {
        reads.push(world.read(client.as_ref()).await);
    }
    reads
}

/// An unidentified client, a reader of the first stage, and one of the last.
fn clients() -> [Option<Reader>; 3] {
    [None, Some(canary()), Some(other())]
}

/// A rollout that is taken back, and a write of another config meanwhile: the revisions, and what each client reads then.
async fn roll_back(world: &World, mut then: impl AsyncFnMut(Revision, &[Versions])) -> [Revision; 4] {
    let steps: [&dyn Fn() -> Revision; 4] =
        [&|| world.begin(), &|| world.write("m", r#"{"n":1}"#), &|| world.advance(), &|| world.abort()];
    let mut revisions = [0; 4];
    let mut is_in = [[false; 3]; 4];
    for (place, step) in steps.into_iter().enumerate() {
        revisions[place] = step();
        let reads = reads(world).await;
        is_in[place] = [0, 1, 2].map(|client: usize| reads[client]["k"].2.is_some());
        then(revisions[place], &reads).await;
    }
    let (none, first, all) = ([false; 3], [false, true, false], [false, true, true]);
    assert_eq!(is_in, [first, first, all, none]);
    revisions
}

#[tokio::test]
async fn a_watch_of_a_reader_has_what_its_reads_return_at_each_revision() {
    let world = World::start().await;
    let mut open = Vec::new();
    for (place, client) in clients().into_iter().enumerate() {
        for configs in [&[][..], &["k", "l", "m"]] {
            let watch = world.watch(WatchStart::InitialState, configs, client.clone()).await.unwrap();
            open.push((place, watch, Versions::new(), Vec::new()));
        }
    }
    let [begun, written, advanced, aborted] = roll_back(&world, async |revision, reads| {
        for (place, watch, versions, seen) in &mut open {
            seen.extend(follow(watch, revision, versions).await);
            assert_eq!(*versions, reads[*place], "{revision} {place}");
        }
    })
    .await;
    for (place, _, _, seen) in &open {
        let expected = [vec![written], vec![begun, written, aborted], vec![written, advanced, aborted]];
        assert_eq!(*seen, expected[*place], "{place}");
    }
    drop(open);
    world.stop().await;
}

#[tokio::test]
async fn a_watch_that_resumes_from_the_history_has_what_its_reader_sees() {
    let world = World::start().await;
    let mut known = Vec::new();
    let [begun, _, advanced, aborted] = roll_back(&world, async |revision, reads| {
        known.push((revision, reads.to_vec()));
    })
    .await;
    world.forget_feed();
    for (revision, versions) in &known[..3] {
        for (client, versions) in clients().into_iter().zip(versions) {
            let mut watch = world.watch(WatchStart::After(*revision), &[], client.clone()).await.unwrap();
            let mut versions = versions.clone();
            follow(&mut watch, aborted, &mut versions).await;
            assert_eq!(versions, world.read(client.as_ref()).await, "{revision} {client:?}");
        }
    }
    // The proven data of then are found, although they were replaced since.
    let last = world.write("k", r#"{"later":1}"#);
    world.forget_feed();
    for (place, client) in clients().into_iter().enumerate() {
        let mut watch = world.watch(WatchStart::After(begun), &["k"], client.clone()).await.unwrap();
        let mut versions = known[0].1[place].clone();
        let seen = follow(&mut watch, last, &mut versions).await;
        assert_eq!(versions["k"], world.read(client.as_ref()).await["k"], "{client:?}");
        assert_eq!(seen, [&[last][..], &[aborted, last], &[advanced, aborted, last]][place], "{client:?}");
    }
    world.stop().await;
}

#[tokio::test]
async fn at_the_end_every_watch_learns_the_new_revision_of_the_configs() {
    let world = World::start().await;
    let begun = world.begin();
    let clients = clients();
    let mut open = Vec::new();
    for client in &clients {
        let mut watch = world.watch(WatchStart::InitialState, &["k"], client.clone()).await.unwrap();
        let mut versions = Versions::new();
        follow(&mut watch, begun, &mut versions).await;
        open.push((client, watch, versions));
    }
    let advanced = world.advance();
    world.advance();
    let end = world.end();
    for (client, watch, versions) in &mut open {
        let seen = follow(watch, end, versions).await;
        let expected = match client {
            Some(reader) if *reader == other() => vec![advanced, end],
            Some(_) | None => vec![end],
        };
        assert_eq!(seen, expected, "{client:?}");
        assert_eq!(versions["k"], (r#"{"new":1}"#.into(), end, None), "{client:?}");
    }
    // What the reader had before is the candidate.
    world.forget_feed();
    let mut watch = world.watch(WatchStart::After(advanced), &["k"], Some(other())).await.unwrap();
    while let Some(notice) = watch.next().await {
        if let Notice::Changes(event, ..) = notice {
            let RecordChange::Config { before, .. } = &event.items[0] else { panic!("{event:?}") };
            assert!(format!("{before:?}").contains("new"), "{before:?}");
            break;
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn a_poll_returns_what_its_reader_sees_and_a_filtered_watch_has_no_reader() {
    let world = World::start().await;
    let before = world.node.service.cx.revision();
    let begun = world.begin();
    let request = |filters: &[(&str, &str)], reader| WatchRequest {
        of_change_requests: false,
        definitions: vec!["d".into()],
        configs: Vec::new(),
        filters: filters.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        has_prev: false,
        start: WatchStart::After(before),
        consistency: CONSISTENCY,
        reader,
        follows_rollouts: false,
    };
    let watches = &world.node.service.watches;
    let poll = |reader| watches.poll(Principal::root(), request(&[], reader), Duration::ZERO);
    let changes = poll(Some(canary())).await.unwrap();
    assert_eq!(changes.events.iter().map(|(event, ..)| event.revision).collect::<Vec<_>>(), [begun]);
    assert_eq!(changes.events[0].0.variants.values().map(Key::as_str).collect::<Vec<_>>(), [ID, ID]);
    for client in [None, Some(other())] {
        let changes = poll(client).await.unwrap();
        assert_eq!((changes.events.len(), changes.upto), (0, begun));
    }
    let filtered = watches.watch(Principal::root(), request(&[("config_key", "k")], Some(canary()))).await;
    let Err(Refusal::Invalid(Invalid::Violations(violations))) = filtered else { panic!("{filtered:?}") };
    assert_eq!(format!("{:?}", violations[0].loc), r#"[Name("header"), Name("x-concord-reader")]"#);
    world.stop().await;
}

#[tokio::test]
async fn a_view_that_nobody_can_compute_any_more_ends_its_watch() {
    let world = World::start().await;
    let begun = world.begin();
    world.abort();
    let delete = Command::DeleteDefinition {
        key: Key::parse("d").unwrap(),
        expect: Expect::Any,
        restrict: false,
        keep: None,
    };
    let gone = world.decide(&Proposal::new(world.node.true_time(), "root", Author::Root, delete));
    world.forget_feed();
    let mut lost = world.watch(WatchStart::After(begun), &[], Some(canary())).await.unwrap();
    let end = loop {
        match lost.next().await.unwrap() {
            Notice::Progress(revision) => assert_eq!(revision, begun),
            Notice::End(refusal) => break refusal,
            other @ (Notice::State(_) | Notice::Changes(..)) => panic!("{other:?}"),
        }
    };
    assert!(matches!(&end, Refusal::Expired(text) if text.contains("resync")), "{end:?}");
    for client in [None, Some(other())] {
        let mut watch = world.watch(WatchStart::After(begun), &[], client).await.unwrap();
        assert_eq!(follow(&mut watch, gone, &mut Versions::new()).await, [gone]);
    }
    world.stop().await;
}

#[tokio::test]
async fn the_watches_of_a_config_are_counted() {
    let world = World::start().await;
    let state = world.state();
    let definition = state.definition("d").unwrap().definition.id;
    let count =
        |name: &str| world.node.service.watches.watches_of(&state, definition, &Key::parse(name).unwrap());
    let one = world.watch(WatchStart::Now, &["k"], Some(canary())).await.unwrap();
    let two = world.watch(WatchStart::Now, &["k", "l"], None).await.unwrap();
    let all = world.watch(WatchStart::Now, &[], Some(other())).await.unwrap();
    assert_eq!(count("k"), WatchCount { identified: 2, unidentified: 1 });
    assert_eq!(count("l"), WatchCount { identified: 1, unidentified: 1 });
    drop((one, two, all));
    assert_eq!(count("k"), WatchCount::default());
    world.stop().await;
}

#[tokio::test]
async fn flags_are_evaluated_as_their_reader_sees_them_and_fetched_again_at_each_step() {
    let flag =
        |value: u8| format!(r#"{{"state":"ENABLED","variants":{{"it":{value}}},"defaultVariant":"it"}}"#);
    let world = World::start().await;
    for name in ["k", "l", "m"] {
        world.write(name, &flag(1));
    }
    let (id, new) = (ChangeId::parse(ID).unwrap(), flag(2));
    let rolling = Rolling { id, definition: "d", configs: &[("k", &new)] };
    let values = async || {
        let mut values = Vec::new();
        for reader in clients() {
            let request = FlagRequest {
                definition: "d",
                flag: Some("k"),
                context: concord_flags::Context::empty(),
                consistency: CONSISTENCY,
                reader,
            };
            let made = world.node.service.flags.evaluate(&Principal::root(), request).await.unwrap();
            let body: serde_json::Value = serde_json::from_slice(&made.body).unwrap();
            values.push(body["value"].as_u64().unwrap());
        }
        values
    };
    assert_eq!(values().await, [1, 1, 1]);
    let request = WatchRequest {
        of_change_requests: false,
        definitions: vec!["d".into()],
        configs: Vec::new(),
        filters: Vec::new(),
        has_prev: false,
        start: WatchStart::Now,
        consistency: CONSISTENCY,
        reader: None,
        follows_rollouts: true,
    };
    let mut watch = world.node.service.watches.watch(Principal::root(), request).await.unwrap();
    world.decide(&rolling.create(&world.state(), world.node.true_time()));
    let begun = world.decide(&rolling.begin(&world.state(), world.node.true_time()));
    assert_eq!(values().await, [1, 2, 1]);
    let advanced = world.decide(&rolling.advance(&world.state(), world.node.true_time()));
    assert_eq!(values().await, [1, 2, 2]);
    let aborted = world.decide(&rolling.abort(world.node.true_time()));
    assert_eq!(values().await, [1, 1, 1]);
    let steps = follow(&mut watch, aborted, &mut Versions::new()).await;
    assert_eq!(steps, [begun, advanced, aborted]);
    world.stop().await;
}
