//! The limits that a client or an operator can reach, each with its unit, its reason and its setting.
//!
//! A limit belongs here when it decides a response: a request is rejected, a list is cut, a remembered outcome expires.
//! Constants that only tune a layer (buffer sizes, batch sizes, intervals) are where they are used. [`Limits`] holds
//! what an operator can set. Every other limit is fixed: the constants bound the work of one request or of one log
//! entry.
//!
//! **Invariant:** limits are applied when a request is accepted, on the node that accepts it. A decision of the log is
//! never rejected later, so nodes with different settings still agree. The fixed limits that `state` applies
//! (remembered requests, build steps) decide what an entry does and are the same on every node.

use std::{ops::RangeInclusive, time::Duration};

use serde::{Deserialize, Serialize};

// Requests.

/// Parameters of a query. A filter of a thousand values has as many; each is two texts to decode. Fixed.
pub const QUERY_PARAMETERS_MAX: usize = 4096;
/// Bytes of a key. What a path segment of common file systems and proxies holds. Fixed.
pub const KEY_BYTES_MAX: usize = 255;
/// Bytes of a change's reason (`X-Change-Reason`). It is part of every log entry. Fixed.
pub const REASON_BYTES_MAX: usize = 1024;
/// Bytes of an idempotency key. A UUID has 36, a digest in hex 64. Fixed.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
/// Outcomes of requests with an idempotency key that are remembered, about 200 bytes each in memory, and one more for
/// each operation of a batch. The oldest is forgotten first, but none younger than [`REMEMBERED_AT_LEAST_US`]: while
/// there is none to forget, requests with a key get 429. One stored access key may fill half of what the others leave,
/// so that there is always room for another key. Fixed: it is part of the state.
pub const REMEMBERED_MAX: u64 = 200_000;

/// [`REMEMBERED_MAX`], but in a simulation, where one run fills a smaller one.
#[cfg(not(feature = "simulation"))]
#[must_use]
pub const fn remembered_max() -> u64 {
    REMEMBERED_MAX
}

#[cfg(feature = "simulation")]
static SIMULATED_REMEMBERED_MAX: std::sync::atomic::AtomicU64 =
    std::sync::atomic::AtomicU64::new(REMEMBERED_MAX);

/// [`REMEMBERED_MAX`], or what a simulation has set before it began.
#[cfg(feature = "simulation")]
#[must_use]
pub fn remembered_max() -> u64 {
    SIMULATED_REMEMBERED_MAX.load(std::sync::atomic::Ordering::Relaxed)
}

/// Sets it for all nodes of this process.
#[cfg(feature = "simulation")]
pub fn set_remembered_max(max: u64) {
    SIMULATED_REMEMBERED_MAX.store(max, std::sync::atomic::Ordering::Relaxed);
}

/// How long a node sends a request with an idempotency key again by itself after it came in; when it was not answered
/// by then, the caller gets 504. Fixed: [`REMEMBERED_AT_LEAST_US`] rests on it.
pub const RESEND_TIME_MAX: Duration = Duration::from_secs(30);
/// Microseconds of the log's time for which an outcome is remembered at least, however many there are:
/// [`RESEND_TIME_MAX`], and what the log's time may advance at once. Fixed: as above.
pub const REMEMBERED_AT_LEAST_US: u64 = 45 * 1_000_000;
/// Outcomes that one entry forgets at most because they are too old: a millisecond of work. Fixed: as above.
pub const FORGOTTEN_PER_ENTRY_MAX: usize = 256;
/// Microseconds for which such an outcome is remembered, by the log's time: a day, as payment services do. Fixed: it
/// is part of the state.
pub const REMEMBERED_REQUEST_AGE_US: u64 = 24 * 60 * 60 * 1_000_000;
/// Deleted definitions that are kept at most, so that their deletion can be undone: they are searched one by one.
pub const DELETED_DEFINITIONS_MAX: usize = 1000;
/// How often the deletion of one definition can be undone within the retained history: its record names each time.
pub const ABSENCES_MAX: usize = 64;
/// Violations that one response lists: enough to fix a document, bounded for a hostile one. Fixed.
pub const VIOLATIONS_MAX: usize = 1000;
/// Bytes of one violation's text. The validator quotes the data, which may be a megabyte. Fixed.
pub const VIOLATION_TEXT_BYTES_MAX: usize = 300;
/// Operations of a batch, as far as `--batch-operations` can be raised: the ids of the definitions that one log
/// entry creates allow this many (`record::STEP_BITS`). Fixed.
pub const BATCH_STEPS_MAX: usize = 1024;

// Feature flags.

/// Steps that an evaluation of a flag's rule may take, as they are bounded before it begins: some ten milliseconds, and
/// some 50 MB. Ordinary rules are bounded by a thousand. Fixed.
pub const FLAG_STEPS_MAX: u64 = 1_000_000;
/// The same for a request that evaluates all flags; the flags that are left then fail. Fixed.
pub const FLAGS_STEPS_MAX: u64 = 20_000_000;
/// Values of a rule with its shared rules (`$ref`) in their places; 32 bytes of text count as one. Fixed.
pub const FLAG_RULE_VALUES_MAX: usize = 20_000;
/// The same of all flags of a definition, also of those whose rule can't be used: some 300 bytes of memory each. Fixed.
pub const FLAG_RULES_VALUES_MAX: usize = 400_000;
/// Levels of an evaluation context; the engine of rules is recursive. Fixed.
pub const FLAG_CONTEXT_DEPTH_MAX: usize = 64;
/// Bytes of a request with an evaluation context. It says who reads, in some hundred bytes. Fixed.
pub const FLAG_REQUEST_BYTES_MAX: usize = 256 << 10;
/// Bytes of the configs of a definition that is evaluated as flags or fetched as one document. A thousand flags with
/// long rules have one megabyte. Fixed.
pub const FLAGS_BYTES_MAX: u64 = 4 << 20;
/// Bytes of the configs that are read without pages: whole definitions, for programs that know no pages. Fixed.
pub const WHOLE_BYTES_MAX: u64 = 4 << 20;
/// Bytes of a response with the evaluations of all flags: each has the metadata of the definition. Fixed.
pub const FLAGS_RESPONSE_BYTES_MAX: usize = 16 << 20;
/// Bytes of compiled flags that a node keeps, of all definitions. Fixed.
pub const CACHED_FLAGS_BYTES_MAX: usize = 128 << 20;

// Access keys.

/// Access keys of a cluster, some hundred bytes each in the memory of every node: far more than applications. Fixed:
/// every node must decide the same.
pub const ACCESS_KEYS_MAX: u64 = 10_000;
/// Bytes of a key's name. Fixed.
pub const KEY_NAME_BYTES_MAX: usize = 255;
/// Grants of a key. Each request may look at all of them. Fixed.
pub const GRANTS_MAX: usize = 64;
/// Patterns of all grants of a key. Each request may compare all of them: some microseconds. Fixed.
pub const GRANT_PATTERNS_MAX: usize = 128;
/// How long the previous secret may remain valid when a key is rotated: a month, in seconds. Fixed.
pub const ROTATION_GRACE_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Keys that one entry marks as used. Fixed.
pub const KEYS_MARKED_MAX: usize = 256;
/// How long a node that has lost the cluster still accepts stored keys: one of them may have been revoked since. Longer
/// than an election. Fixed.
pub const KEYS_UNCONFIRMED_MAX: Duration = Duration::from_secs(5);

/// Persons that access keys name: each key can have one of its own. Fixed: every node must
/// decide the same.
pub const PERSONS_MAX: u64 = ACCESS_KEYS_MAX;
/// Bytes of a person's label: an e-mail address has at most as many. Fixed.
pub const PERSON_LABEL_BYTES_MAX: usize = 254;

// Identity providers. All fixed: every node must judge alike.

/// Bytes of a token. Entra sends up to 200 groups in some 10 KiB.
pub const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Levels of the JSON of a token, a key set and a discovery document: Kubernetes has 4.
pub const TOKEN_DEPTH_MAX: usize = 8;
/// Values of `aud` in a token.
pub const TOKEN_AUDIENCES_MAX: usize = 32;
/// Seconds that the times of a token may be ahead: clocks differ.
pub const TOKEN_AHEAD_S_MAX: u64 = 60;
/// Seconds after `iat` for which a token is accepted: the range that a provider can set.
pub const TOKEN_AGE_S: RangeInclusive<u64> = 60..=24 * 60 * 60;
/// The same, unless the provider sets it: an hour, as long as most tokens are valid.
pub const TOKEN_AGE_S_DEFAULT: u64 = 60 * 60;
/// Bytes of what a provider answers: a discovery document or a key set. A hundred keys with certificates fit.
pub const PROVIDER_ANSWER_BYTES_MAX: usize = 256 << 10;
/// Keys that are kept of a key set: a token is checked with one of them, and they are in the log.
pub const KEY_SET_KEYS_MAX: usize = 32;
/// Bytes of them as text.
pub const KEY_SET_BYTES_MAX: usize = 16 << 10;
/// Bytes of what is kept of a token's claims: each session has them in the memory of every node.
pub const CLAIMS_BYTES_MAX: usize = 4 << 10;
/// Bytes of an issuer, as `iss` has it.
pub const ISSUER_BYTES_MAX: usize = 512;
/// Bytes of any other URL of a provider.
pub const PROVIDER_URL_BYTES_MAX: usize = 2 << 10;
/// Bytes of the certificates with which the host of a key set is checked.
pub const PROVIDER_CA_BYTES_MAX: usize = 16 << 10;
/// Audiences of a provider.
pub const PROVIDER_AUDIENCES_MAX: usize = 8;
/// Other hosts that a provider's endpoints may have.
pub const PROVIDER_HOSTS_MAX: usize = 8;
/// Claims that a provider keeps.
pub const KEPT_CLAIMS_MAX: usize = 32;
/// Values or patterns of one kept claim.
pub const KEPT_VALUES_MAX: usize = 64;
/// Domains of the persons of a provider.
pub const PERSON_DOMAINS_MAX: usize = 32;
/// Seconds for which the claims of a person's last login count: the range that a provider can set, up to a month.
pub const CLAIMS_AGE_S: RangeInclusive<u64> = 60 * 60..=30 * 24 * 60 * 60;
/// The same, unless the provider sets it: a week.
pub const CLAIMS_AGE_S_DEFAULT: u64 = 7 * 24 * 60 * 60;
/// Bytes of the label of a person who logs in.
pub const LOGIN_LABEL_BYTES_MAX: usize = 128;
/// Scopes of a login.
pub const LOGIN_SCOPES_MAX: usize = 16;
/// Redirect URIs of a login: the console of each environment, under each of its names.
pub const REDIRECT_URIS_MAX: usize = 8;
/// Members of a role.
pub const ROLE_MEMBERS_MAX: usize = 16;
/// Claims of one member of a role, and claims that a provider requires.
pub const MATCH_CLAIMS_MAX: usize = 8;
/// Values of one of these claims.
pub const MATCH_VALUES_MAX: usize = 16;
/// Bytes of a claim's name, and of an audience, a client id and a scope.
pub const CLAIM_TEXT_BYTES_MAX: usize = 255;
/// Bytes of a value that a claim is compared with: a role can match each `sub` that a machine may have.
pub const CLAIM_VALUE_BYTES_MAX: usize = MACHINE_SUBJECT_BYTES_MAX;
/// Bytes of the `sub` of a person: `OpenID` Connect allows no more.
pub const PERSON_SUBJECT_BYTES_MAX: usize = 255;
/// Bytes of the `sub` of a machine: GitHub and GitLab put paths, branches and further claims into it.
pub const MACHINE_SUBJECT_BYTES_MAX: usize = 1 << 10;
/// Bytes of a machine's `sub` that its name in the history has.
pub const MACHINE_NAME_BYTES_MAX: usize = 255;
/// Bytes of the document of a provider: its keys and certificates take most.
pub const PROVIDER_BYTES_MAX: usize = 64 << 10;
/// Bytes of the members of a role.
pub const ROLE_BYTES_MAX: usize = 64 << 10;
/// Members of all roles together: all are compared with the claims of each login.
pub const ROLE_MEMBERS_IN_ALL_MAX: usize = 1024;
/// Values of all members together.
pub const MATCH_VALUES_IN_ALL_MAX: usize = 8192;
/// Providers of a cluster: each token is evaluated by one, and all are compared when one changes.
pub const PROVIDERS_MAX: usize = 16;
/// Roles of a cluster: all are compared with the claims of each login.
pub const ROLES_MAX: usize = 256;
/// Sessions of machines. Each has up to 4 KiB of claims in the memory of every node. A provider has at most half of what the
/// others leave, so no one of them shuts the others out.
pub const MACHINE_SESSIONS_MAX: u64 = 15_000;
/// Sessions of one owner: the pods of one service account, the jobs of one branch. The oldest goes.
pub const SESSIONS_OF_OWNER_MAX: u64 = 1_000;
/// Ended sessions that an entry removes.
pub const SESSIONS_SWEPT_MAX: usize = 64;
/// Seconds of a session: five minutes to twelve hours.
pub const SESSION_S: RangeInclusive<u64> = 300..=12 * 60 * 60;
/// The same, unless the role sets it: a working day.
pub const SESSION_S_DEFAULT: u64 = 8 * 60 * 60;

// Environments.

/// Environments of a cluster. Each is looked at in every list of them, and in the memory of every node. Fixed: every node
/// must decide the same.
pub const ENVIRONMENTS_MAX: usize = 32;
/// Bytes of an environment's name: a quarter of a definition's key, which begins with it. Fixed.
pub const ENVIRONMENT_NAME_BYTES_MAX: usize = 64;
/// Microseconds that a freeze may last, and may be ahead, that one person adds where other changes of the environment
/// need another person: a day, until somebody else is there. Fixed: every node must decide the same.
pub const SHORT_FREEZE_US_MAX: u64 = 24 * 60 * 60 * 1_000_000;

/// Persons who must approve a change of an environment. Fixed.
pub const APPROVALS_MAX: u8 = 10;
/// Freezes of an environment. Each change of it looks at all of them. Fixed.
pub const FREEZES_MAX: usize = 16;
/// How long a freeze may last: a year. Fixed.
pub const FREEZE_LENGTH_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// Bytes of a freeze's reason. Fixed.
pub const FREEZE_REASON_BYTES_MAX: usize = 255;

// Change requests. All are fixed: every node must decide the same.

/// Guards of a proposal, and bases of a change request: one for each operation, and some for keys and environments. Each
/// is a look-up in the state.
pub const GUARDS_MAX: usize = 1200;
/// Operations of a change request: as many as a batch has by default.
pub const CHANGE_OPERATIONS_MAX: usize = 1000;
/// Definitions that a change request touches. Its record names all of them, and each list looks at them.
pub const CHANGE_DEFINITIONS_MAX: usize = 200;
/// Bytes of the content of a change request: half of an entry's largest batch.
pub const CHANGE_CONTENT_BYTES_MAX: u64 = 4 << 20;
/// Senders of the editions of a change request: none may approve it.
pub const CHANGE_AUTHORS_MAX: usize = 32;
/// Approvals and rejections of a change request, or reviews of a bypass. Rejections of earlier editions make room.
pub const CHANGE_VOTES_MAX: usize = 64;
/// Bytes of the title of a change request.
pub const CHANGE_TITLE_BYTES_MAX: usize = 255;
/// Bytes of the description of a change request.
pub const CHANGE_DESCRIPTION_BYTES_MAX: usize = 4 << 10;
/// Bytes of the comment of a vote or a withdrawal.
pub const CHANGE_COMMENT_BYTES_MAX: usize = 1 << 10;
/// Bytes of the record of a change request.
pub const CHANGE_RECORD_BYTES_MAX: u64 = 64 << 10;
/// Bytes of the definitions and texts of an edition: half of the record. Votes have the other half, so an edition that was
/// accepted can be approved.
pub const CHANGE_EDITION_BYTES_MAX: u64 = CHANGE_RECORD_BYTES_MAX / 2;
/// Microseconds after which an edition expires: a month.
pub const EDITION_AGE_US_MAX: u64 = 30 * 24 * 60 * 60 * 1_000_000;
/// Seconds after which the cluster takes a change request back at the latest: a week.
pub const REVERT_AFTER_S_MAX: u32 = 7 * 24 * 60 * 60;
/// Bytes of what the configs were before a change request: what takes it back is one entry.
pub const REVERT_BYTES_MAX: u64 = 1 << 20;
/// Microseconds for which a person may take a change request back that the cluster does not take back: a day.
pub const REVERT_BY_HAND_US: u64 = 24 * 60 * 60 * 1_000_000;

// Rollouts. All fixed: the log decides by them.

/// Rollouts that run at once; one sender may have half of what the others leave. Each watch with a reader compares its view at each of their stages.
pub const ROLLOUTS_MAX: usize = 64;
/// Configs of one rollout: all of them are one record, and one event.
pub const ROLLOUT_CONFIGS_MAX: usize = 64;
/// Bytes of the configs of one rollout.
pub const ROLLOUT_CANDIDATE_BYTES_MAX: u64 = 1 << 20;
/// Stages of one rollout.
pub const ROLLOUT_STAGES_MAX: usize = 10;
/// Seconds of all stages of one rollout, and of each other time of its plan: a week.
pub const ROLLOUT_TIME_S_MAX: u32 = 7 * 24 * 60 * 60;
/// The largest name of a reader, in bytes.
pub const READER_BYTES_MAX: usize = 255;
/// The labels of a reader as it sends them, in bytes.
pub const READER_LABELS_BYTES_MAX: usize = 1024;
/// Labels of a reader, and labels and values of a stage.
pub const ROLLOUT_LABELS_MAX: usize = 16;
/// Bytes of the name or the value of a label.
pub const LABEL_BYTES_MAX: usize = 255;
/// Bytes of the names and the values of the labels of all stages of one rollout: a plan is kept as long as its change request
/// is pending.
pub const ROLLOUT_LABELS_BYTES_MAX: usize = 16 << 10;
/// Gates of one rollout.
pub const ROLLOUT_GATES_MAX: usize = 16;
/// Bytes of the name of a gate.
pub const GATE_NAME_BYTES_MAX: usize = 64;
/// Reports about one rollout, and about one config, that the leader has. A reader has one for each of its instances.
pub const ROLLOUT_READERS_MAX: usize = 10_000;
/// Reports that the leader has in all: with the names of their readers, less than 96 MiB.
pub const REPORTS_MAX: usize = 100_000;
/// Those of them that are about configs outside rollouts. They leave the rest to rollouts.
pub const CONFIG_REPORTS_MAX: usize = 50_000;
/// Those of them that one access key has sent. It leaves the rest to other keys. Of one config it may send half of what the
/// others leave.
pub const CONFIG_REPORTS_OF_KEY_MAX: usize = 10_000;
/// Failures of one rollout, and of one config, of which the leader keeps the labels and what they say.
pub const REPORT_DETAILS_MAX: usize = 50;
/// The same of all configs: some 3 KiB each.
pub const CONFIG_REPORT_DETAILS_MAX: usize = 4_000;
/// Those of them that one access key has sent.
pub const CONFIG_REPORT_DETAILS_OF_KEY_MAX: usize = 800;
/// Bytes of the name of an instance of a reader.
pub const INSTANCE_BYTES_MAX: usize = 64;
/// Watches with a reader that a node lists for one config, and readers that have failed that the leader lists.
pub const READERS_OF_NODE_MAX: usize = 1_000;
/// Bytes of what a reader says of its failure, and of what a gate says.
pub const REPORT_TEXT_BYTES_MAX: usize = 1024;
/// Seconds after which a report counts no more. Readers repeat it three times as often.
pub const REPORT_AGE_S_MAX: u64 = 60;
/// What keys have said of gates, that the leader has: one of each key and gate.
pub const GATE_WORDS_MAX: usize = 256;
/// Bytes of what persons may take back, with its records. It counts at least [`KEPT_BEFORE_BYTES_MIN`] each, and the oldest go for later
/// ones: nobody's change request is rejected for it.
pub const KEPT_BEFORE_BYTES_MAX: u64 = 16 << 20;
/// The least that counts of each, so that an entry drops a bounded number of them.
pub const KEPT_BEFORE_BYTES_MIN: u64 = 4 << 10;
/// Bytes of the code and the text that say what the cluster could not do.
pub const FAILURE_BYTES_MAX: usize = 1 << 10;
/// Change requests of a person, or of a key without one, that are open or wait for the cluster to take them back.
pub const OPEN_CHANGES_OF_PARTY_MAX: u64 = 200;
/// Bytes of them: operations, texts and keys.
pub const OPEN_CHANGE_BYTES_OF_PARTY_MAX: u64 = 8 << 20;
/// The same of all that touch an environment.
pub const OPEN_CHANGES_OF_ENVIRONMENT_MAX: u64 = 500;
/// Bytes of all of these: they are in the memory of every node.
pub const CHANGE_CONTENTS_BYTES_MAX: u64 = 64 << 20;
/// Bypasses of a person, or of a key without one, that nobody has reviewed.
pub const UNREVIEWED_BYPASSES_MAX: u64 = 200;
/// Microseconds for which a closed change request is kept: a quarter of a year.
pub const CLOSED_CHANGE_AGE_US_MAX: u64 = 90 * 24 * 60 * 60 * 1_000_000;
/// Change requests that are kept, which the cluster could not apply, and as many that it could not take back: their alarms
/// outlive what others close.
pub const FAILED_CHANGES_MAX: u64 = 1_000;
/// Closed change requests that are kept, in addition to those, to unreviewed bypasses and to what can be taken back.
pub const CLOSED_CHANGES_MAX: u64 = 5_000;
/// Bytes of their records, and of the records of those that failed.
pub const CLOSED_CHANGES_BYTES_MAX: u64 = 16 << 20;
/// Change requests that an entry closes or drops because of their age or number: a millisecond of work.
pub const CHANGES_SWEPT_PER_ENTRY_MAX: usize = 64;

// Lists and watches.

/// Filters of one list query. Each costs an index look-up. Fixed.
pub const FILTERS_MAX: usize = 64;
/// Values of one filter (`in`, repeated equality). Each costs an index look-up. Fixed.
pub const FILTER_VALUES_MAX: usize = 1000;
/// Changes that a node keeps in memory for its watchers: some seconds at the highest load. Older ones are read from
/// the history. Fixed.
pub const FEED_EVENTS_MAX: usize = 16_384;
/// Bytes of such changes, with the records that they replaced. Fixed.
pub const FEED_BYTES_MAX: usize = 64 << 20;
/// Bytes of the changes in one answer to a long poll after which no further change joins it; one change may have more.
/// Fixed.
pub const POLL_BYTES_MAX: usize = 1 << 20;
/// Seconds that a long poll waits when it does not say how long: less than proxies wait for an answer. Fixed.
pub const POLL_WAIT_DEFAULT_S: u64 = 30;
/// Seconds that a long poll may wait: it holds a connection and counts as a watch. Fixed.
pub const POLL_WAIT_MAX_S: u32 = 300;
/// Definitions (or patterns of their keys) or configs that one watch names. Fixed.
pub const WATCH_KEYS_MAX: usize = 64;

/// Bytes of data that one transaction reads for its answer. Fixed.
pub const TRANSACTION_READ_BYTES_MAX: usize = 8 << 20;

// Indexed paths.

/// Elements of an indexed array: each is an index entry of its config. Fixed.
pub const INDEX_ENTRIES_MAX: usize = 10_000;
/// Indexed paths of a definition that are patterns (`labels.*`, `items[].name`): several of them may select the same
/// values, and each is an entry. Fixed.
pub const INDEX_PATTERNS_MAX: usize = 16;
/// Values of a config that one pattern selects: each is an index entry that a write computes and stores. Fixed: a
/// config with more has a mark instead, which is the same on every node.
pub const INDEX_PATTERN_ENTRIES_MAX: usize = 1000;
/// Bytes of these entries, with the names of their members. Fixed: as above.
pub const INDEX_PATTERN_BYTES_MAX: usize = 256 << 10;
/// Steps of a pattern that are `*` or `[]`. Fixed.
pub const INDEX_PATH_WILDCARDS_MAX: usize = 4;
/// Bytes of a member's name in an index entry; of a longer one it has the digest. Fixed: as above.
pub const INDEX_PATTERN_NAME_BYTES_MAX: usize = 64;
/// Subschemas that are visited to resolve an indexed path through references and unions: some milliseconds, and more
/// than the unions of common schemas have variants. What was not visited may be anything. Fixed.
pub const PATH_SUBSCHEMAS_MAX: usize = 10_000;
/// Bytes of an indexed path. Each of its members is looked up in the schema, through up to
/// [`PATH_SUBSCHEMAS_MAX`] subschemas. Fixed.
pub const INDEX_PATH_BYTES_MAX: usize = 1024;
/// Configs up to which a definition is reindexed in the one log entry that changes its paths: some 10 ms. A larger one
/// is reindexed in steps, and until then queries on its new paths are rejected. The definitions of a batch share it.
/// Fixed: every node must decide the same.
pub const REINDEX_CONFIGS_MAX: u64 = 1000;
/// Bytes of data likewise: they are parsed, some 10 ms. Fixed: as above.
pub const REINDEX_BYTES_MAX: usize = 1 << 20;
/// Configs of one step of an index build: some 5 ms, in which no other write is decided. Fixed: as above.
pub const BUILD_STEP_CONFIGS_MAX: usize = 250;
/// Bytes of data after which a step of an index build ends, because the data are parsed. Fixed: as above.
pub const BUILD_STEP_BYTES_MAX: usize = 512 << 10;

// Batches.

/// Evaluations of schemas that all operations of one batch may take together, as [`CHECK_EVALUATIONS_MAX`] counts
/// them; compiling a byte of a schema counts 20. From a quarter of a second to some seconds. Fixed.
pub const BATCH_EVALUATIONS_MAX: u64 = 100_000_000;
/// Cost of all patches of one batch, as [`PATCH_COST_MAX`] counts it: half a second. Fixed.
pub const BATCH_PATCH_COST_MAX: usize = 4 * PATCH_COST_MAX;
/// Bytes of data that all operations of one batch read and make: what a patch is applied to is parsed, however little
/// it changes. About a second. Fixed.
pub const BATCH_DATA_BYTES_MAX: usize = 128 << 20;

/// The most bytes of the records that a batch replaces or deletes. The history keeps them with the batch, in one piece
/// that another member must be able to fetch.
pub const BATCH_REPLACED_BYTES_MAX: usize = 32 << 20;
/// Operations of one batch that all configs of a definition are checked for (`set_schema`, `set_unique`): each is a
/// scan of its own, within the time of one ([`CONFIG_CHECK_TIMEOUT`]). Fixed.
pub const BATCH_CONFIG_CHECKS_MAX: usize = 100;

// Patches.

/// Cost of one JSON Patch: roughly the bytes that it copies and the elements that it moves. Some 100 ms at worst.
/// Fixed.
pub const PATCH_COST_MAX: usize = 32 << 20;
/// Levels of nesting that an operation of a patch may make: what recursive functions can nest on a thread's stack. The
/// limit of the data, `--json-depth`, is lower and applies to the result. Fixed.
pub const PATCH_DEPTH_MAX: usize = 256;
/// Violations of one patch's shape after which the check ends: enough to fix it. Fixed.
pub const PATCH_VIOLATIONS_MAX: usize = 100;

// Schemas: a check that has begun can't be stopped, so its cost is bounded before (`schema/cost.rs`).

/// Subschemas of a schema, each counted once for each dynamic scope. Its size allows no more in one scope, but embedded
/// documents that refer to each other multiply. Fixed.
pub const SUBSCHEMAS_MAX: usize = 100_000;
/// References on cycles between the embedded documents (`$id`) of a schema. The validator compiles a target again for
/// each route through documents that leads to it; on a cycle the routes multiply: 36 references between three small
/// documents took more than a minute. Fixed.
pub const SCHEMA_CYCLE_REFS_MAX: usize = 16;
/// The same for a schema of more than [`LARGE_SCHEMA_SUBSCHEMAS`]. Fixed.
pub const LARGE_SCHEMA_CYCLE_REFS_MAX: usize = 4;
/// Subschemas above which a schema counts as large. Fixed.
pub const LARGE_SCHEMA_SUBSCHEMAS: usize = 1000;
/// Evaluations of subschemas at one place of the data: far above unions of hundreds of variants, far below a chain
/// that doubles. Fixed.
pub const PLACE_EVALUATIONS_MAX: u64 = 10_000;
/// Subschemas at one place of the data that apply each other in a chain. Fixed.
pub const PLACE_CHAIN_MAX: usize = 250;
/// Steps of computing a schema's cost: some hundred milliseconds and some dozen MiB. Fixed.
pub const SCHEMA_COST_STEPS_MAX: usize = 1_000_000;
/// Evaluations of one check of data, long strings and numbers counted more: a second or two. Fixed.
pub const CHECK_EVALUATIONS_MAX: u64 = 20_000_000;
/// Evaluations up to which a check lists violations: each may be one, of microseconds and some hundred bytes. Above,
/// the response says only that the data break the schema. Fixed.
pub const LISTED_EVALUATIONS_MAX: u64 = 500_000;

/// The most bytes that the paths of all violations may take while they are collected: each has its own.
pub const LISTED_PATHS_BYTES_MAX: u64 = 64 << 20;

/// The bytes of locations and texts up to which violations are listed; the first one is, whatever it has.
pub const LISTED_BYTES_MAX: usize = 4 << 20;
/// Nested applications of one check. Each takes a few hundred bytes of the thread's stack. Fixed.
pub const CHECK_STACK_MAX: usize = 1_500;
/// Bytes of one compiled pattern: `.{1,1000}` takes 1 MiB, `\p{L}{1,100}` 4 MiB. Fixed.
pub const PATTERN_BYTES_MAX: usize = 8 << 20;
/// Bytes of the text of a pattern with look-around or a back-reference: far more than common patterns have. Fixed.
pub const BACKTRACKING_PATTERN_BYTES_MAX: usize = 4 << 10;
/// Steps back that matching a text with such a pattern may take; a text that takes more does not match. Common patterns
/// take fewer than the text has characters; the worst ones double with each character. Fixed.
pub const PATTERN_STEPS_MAX: u64 = 2_000;
/// Bytes that the translation of a schema's patterns may parse. Each `\s`, `\d`, `\w` and `\cX` costs a parse of its
/// whole pattern, so a text of thousands of them takes minutes; the limit takes some ten milliseconds. Fixed.
pub const PATTERN_TRANSLATION_BYTES_MAX: usize = 2 << 20;
/// Bytes of all compiled patterns of a schema, which is cached with others. Fixed.
pub const PATTERNS_BYTES_MAX: usize = 32 << 20;
/// Approximate bytes of the compiled schemas that a node keeps for the next write; a heavier one is kept alone. Fixed.
pub const CACHED_SCHEMAS_BYTES_MAX: usize = 64 << 20;

// Secret places (`schema/secret.rs`).

/// Steps that the search for the secret fields of data may take, in addition to [`SECRET_STEPS_PER_BYTE`]. Fixed.
pub const SECRET_STEPS_MIN: u64 = 100_000;
/// The same for each byte of the data: far more than unions of dozens of variants take, and half a second at most. What
/// is left after them counts as secret. Fixed.
pub const SECRET_STEPS_PER_BYTE: u64 = 64;
/// Steps that finding out which violations of data are about a secret value may take, for all of one check. What is
/// left after them counts as secret. Fixed.
pub const SECRET_LISTED_STEPS_MAX: u64 = 1_000_000;
/// [`PATTERN_STEPS_MAX`] for the name of a member on the way to a secret field: where a pattern takes more, what it
/// names counts as secret. Names are short. Fixed.
pub const SECRET_PATTERN_STEPS_MAX: u64 = 1_000;
/// Bytes of the header that names the redacted places of an answer (`X-Concord-Redacted`), and of the same list in an
/// event: proxies take headers of some kilobytes. What is left out is marked by `...`. Fixed.
pub const REDACTED_PLACES_BYTES_MAX: usize = 1024;

// Connections and bodies.

/// Concurrent connections of a listener; beyond, a new one takes the place of one on which no credential was good, or
/// waits. This is twice the default limit of watches, so that a node with all its watches open still accepts other
/// callers. Fixed. Where the process may open fewer files, the listeners share what those leave beside
/// [`OPEN_FILES_RESERVE`].
pub const CONNECTIONS_MAX: usize = 20_000;
/// How long the handshake of TLS may take, from the moment a connection is accepted: some round trips of a slow link.
/// Fixed.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a request's head: a filter of a thousand UUIDs has 37 KB, and no URI may have more. Beyond: 431. Fixed.
pub const HEAD_BYTES_MAX: usize = 64 << 10;
/// Bytes that an unauthenticated connection can send without a complete request, at no cost for others: an ordinary
/// head. All connections of a listener: 160 MB. Fixed.
pub const FREE_HEAD_BYTES: usize = 8 << 10;
/// Bytes that all unauthenticated connections of a listener together can hold beyond that. A connection that needs more
/// is closed. Fixed.
pub const STRANGER_HEADS_BYTES: usize = 64 << 20;
/// Bytes that an unauthenticated connection can send without a complete request in total: the longest head, the frames
/// of HTTP/2 in addition to it, and the bodies that its windows allow, because they can arrive before the credential is
/// checked. Fixed.
pub const STRANGER_BYTES_MAX: usize = 2 * HEAD_BYTES_MAX + HTTP2_CONNECTION_WINDOW_BYTES as usize;
/// Bytes of bodies over HTTP/2 that may be in flight before they are read, on all streams of a connection. Fixed.
pub const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 1 << 20;
/// Bytes of a response that a client must read within each send timeout (`--send-timeout-ms`), unless fewer are left:
/// half a kilobyte a second. Fixed.
pub const SEND_BYTES_MIN: usize = 16 << 10;
/// Open files that connections leave to log, history, snapshots, sled and the connections to other members. Fixed.
pub const OPEN_FILES_RESERVE: usize = 256;
/// Concurrent requests on one HTTP/2 connection. Fixed.
pub const HTTP2_STREAMS_MAX: u32 = 256;
/// Header fields of a request; beyond, 431. Fixed.
pub const HEADER_FIELDS_MAX: usize = 100;
/// How long an HTTP/1.1 client that has closed its sending side can still get its response, although it may have
/// disconnected: longer than the default timeout of a write. Fixed.
pub const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(15);
/// Frames without a request (pings, settings, priorities, unknown types) that an HTTP/2 connection can send at once. A
/// client sends some at the beginning, and a settings frame counts as 100. Beyond this number, the connection is read
/// only as fast as [`HTTP2_CONTROL_FRAMES_PER_SECOND`] allows. Fixed.
pub const HTTP2_CONTROL_FRAMES_BURST: i64 = 500;
/// How many more such frames are read each second: far more than a client sends, and less than a thousandth of a core.
/// Fixed.
pub const HTTP2_CONTROL_FRAMES_PER_SECOND: u64 = 500;
/// How long the requests in flight may take after a shutdown begins. Fixed.
pub const SHUTDOWN_DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a body may take to arrive: one of the default limit (8 MiB) then needs 70 KB/s. Fixed.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(120);
/// While half of the memory for requests is in use, a body or a response can take this long before [`SCARCE_RATE`]
/// applies to it. Fixed.
pub const SCARCE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes per second that a client must then send of a body, or read of its responses, so that a slow client does not
/// hold memory that others need. Fixed.
pub const SCARCE_RATE: u64 = 1 << 20;
/// Bytes in memory for each byte of a body: the text as received, as part of a document, and in the log entry. Fixed.
pub const BODY_COPIES: u64 = 3;
/// Bytes in memory for each JSON value of a body, in addition to its text. Fixed.
pub const PARSED_VALUE_BYTES: u64 = 128;
/// Longest request id that is echoed: a trace context has 55 characters, the joined ids of proxies about 100. Fixed.
pub const REQUEST_ID_BYTES_MAX: usize = 128;

// Log entries and members.

/// Most bytes of an entry: twice the default body, and far below the log's limit. Fixed.
pub const ENTRY_BYTES_MAX: usize = 16 << 20;
/// How long before its end a certificate is an alarm: time to make another one in office hours. Fixed.
pub const CERTIFICATE_WARNING: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Greatest node id: the greatest integer that every JSON library reads exactly. Fixed.
pub const NODE_ID_MAX: u64 = (1 << 53) - 1;
/// How far above the greatest id that was ever used a new node id may be. Ids only ascend, so a single id near the end
/// would leave none for later members. Fixed.
pub const NODE_ID_STEP_MAX: u64 = 1_000_000;
/// Members of a cluster: more voters make every write slower and nothing safer. Fixed.
pub const MEMBERS_MAX: usize = 31;
/// Audit logs that have anchors in the state: those of all members, and of many former ones. They take some 1.4 MB at most.
/// Fixed.
pub const ANCHORED_LOGS_MAX: usize = 128;
/// How long a log has had no new anchor before it makes room for another one: nobody can remove the anchors of a log that
/// is still written, by adding those of others. Fixed.
pub const ANCHORED_LOG_AGE_US: u64 = 30 * 24 * 60 * 60 * 1_000_000;
/// How long a change may take in all; less than the timeout of the command line. A new member that needs longer to
/// catch up stays a learner, and the change is requested again. Fixed.
pub const MEMBER_CHANGE_TIMEOUT: Duration = Duration::from_secs(50);
/// How long a confirmation makes the node ready: longer than a failed election. Fixed.
pub const READY_STALENESS_MAX: Duration = Duration::from_secs(2);

// Cursors, history, watches.

/// Bytes of applied changes that wait for the history on a node's disk. Above, writes are rejected: a disk that does
/// not keep up must not fill the memory. A second of the highest load. Fixed.
pub const WAITING_CHANGES_BYTES_MAX: u64 = 128 << 20;
/// The same where a node is asked for no writes, as a follower that no majority needs: above, it applies no further
/// entries until its disk has caught up. More than the other bound, which rejects in time what this one would only
/// delay. Fixed.
pub const APPLIED_CHANGES_BYTES_MAX: u64 = 2 * WAITING_CHANGES_BYTES_MAX;

/// How long a state is retained unused: long enough to read or process a page. Fixed.
pub const CURSOR_IDLE_MAX: Duration = Duration::from_secs(5 * 60);
/// Pinned states of a node. What they keep in memory is bounded by a share of `--in-flight-bytes`. Fixed.
pub const PINNED_STATES_MAX: usize = 1024;
/// Lists that test more than some thousand configs and wait on a node, of one address; further requests get 429 at
/// once. One waits for as long as a read may take, and in that time a processor ends about so many among a hundred
/// thousand configs. Fixed.
pub const LONG_LISTS_MAX: usize = 64;
/// Definitions and patterns that a list across definitions names. Fixed.
pub const LIST_PATTERNS_MAX: usize = 64;
/// Paths that `fields` may name: what is looked for at each member of the data. Fixed.
pub const FIELDS_MAX: usize = 100;
/// Bytes of `fields`: as many paths of ordinary length, and less than a tenth of a millisecond of parsing. Fixed.
pub const FIELDS_BYTES_MAX: usize = 16 << 10;
/// Members of one path of `fields`: data are not nested deeper, whatever the settings. Fixed.
pub const FIELD_DEPTH_MAX: usize = 100;
/// Configs that one request reads: their answer is made as a whole. Fixed.
pub const READ_CONFIGS_MAX: usize = 1000;
/// Configs that one request reads at an earlier revision: each is looked up in the history separately. Fixed.
pub const READ_PAST_CONFIGS_MAX: usize = 100;
/// Bytes of an answer from which it is compressed: a smaller one fits one packet as it is. Fixed.
pub const COMPRESSED_BYTES_MIN: u64 = 1 << 10;
/// Bytes of an answer up to which it is compressed or indented; larger ones are sent as they are made. Fixed.
pub const REWRITTEN_BYTES_MAX: u64 = 8 << 20;
/// Bytes of data that are written in another format: YAML, properties, the keys and values of Consul. Fixed.
pub const FORMATTED_BYTES_MAX: usize = 16 << 20;
/// Bytes of an answer that is indented for reading; one that would be larger is sent as it is. Fixed.
pub const PRETTY_BYTES_MAX: usize = 16 << 20;
/// Bytes that decoding one compressed body may take in addition to the body: the window of the encoder. Fixed.
pub const DECODE_WINDOW_BYTES: u64 = 8 << 20;
/// Backups that a node makes and sends at once: a backup is the whole state. More get 429. Fixed.
pub const BACKUPS_MAX: usize = 1;
/// Bytes a second that the caller of a backup must read, after a minute: until it ends, its file takes its space on the
/// volume and no other backup is made. Fixed.
pub const BACKUP_RATE_MIN: u64 = 256 << 10;
/// Sorted matches that are retained for one list with conditions. A longer list is computed again for each page. Fixed.
pub const PINNED_MATCHES_MAX: usize = 1 << 20;
/// How long an earlier state that was rebuilt for a list is retained unused: long enough to page through it. Fixed.
pub const PAST_IDLE_MAX: Duration = Duration::from_secs(60);
/// Earlier states that a node retains. What they keep in memory is bounded by a share of `--in-flight-bytes`. Fixed.
pub const PAST_STATES_MAX: usize = 64;
/// Bytes of replaced records that are read before they are reserved, while an earlier state is made. Fixed.
pub const PAST_RESERVED_AT_ONCE: u64 = 256 << 10;
/// Reads of the history that run on this node at once: each holds a thread and may hold some megabytes. Fixed.
pub const HISTORY_READS_MAX: usize = 16;
/// Bytes of record text after which a page ends early: a page of the largest records would have a gigabyte. Fixed.
pub const HISTORY_PAGE_BYTES_MAX: usize = 4 << 20;
/// How long a node that has lost the cluster continues its watches: long enough for elections, short enough that a
/// caller does not mistake its silence for an idle cluster. Fixed.
pub const WATCH_UNCONFIRMED_MAX: Duration = Duration::from_secs(30);
/// How long a snapshot is retained for a caller. Fixed.
pub const WATCH_INITIAL_TIMEOUT: Duration = Duration::from_secs(300);

// Changes of a schema or of unique paths.

/// Scans that a node has begun at once, one of each address; each makes way for other work. More wait. Fixed.
pub const CONFIG_SCANS_MAX: usize = 2;
/// Configs that a report lists. Fixed.
pub const REPORTED_CONFIGS_MAX: usize = 100;
/// Violations that it lists of each. Fixed.
pub const REPORTED_VIOLATIONS_MAX: usize = 10;
/// How long it may take otherwise; a million of them take some seconds. Fixed.
pub const CONFIG_CHECK_TIMEOUT: Duration = Duration::from_secs(50);

/// The limits that a node's settings may change. Each rejection names the limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of a request body: `--body-bytes`.
    pub body_bytes: usize,
    /// Bytes of a config's data: `--data-bytes`.
    pub data_bytes: usize,
    /// Bytes of a schema: `--schema-bytes`. The largest that are published have about 1.4 MB.
    pub schema_bytes: usize,
    /// Levels of nesting of a JSON text: `--json-depth`.
    pub json_depth: usize,
    /// Indexed paths of a definition: `--indexes`.
    pub indexes: usize,
    /// Operations of a batch: `--batch-operations`.
    pub batch_operations: usize,
    /// Records of a page: `--page-limit`.
    pub page_limit: usize,
    /// Writes that a node works on at once; further requests get 429 at once: `--writes-in-flight`.
    pub writes_in_flight: usize,
    /// Watches that are open on a node at once; further requests get 429: `--watches`.
    pub watches: usize,
    /// Bytes that the requests in flight, and the states retained for them, hold in memory: `--in-flight-bytes`.
    pub in_flight_bytes: usize,
    /// Bytes of memory up to which deleted definitions are kept, so that their deletion can be undone:
    /// `--deleted-bytes`.
    pub deleted_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 8 << 20,
            data_bytes: 1 << 20,
            schema_bytes: 2 << 20,
            json_depth: 64,
            indexes: 64,
            batch_operations: 1000,
            page_limit: 1000,
            writes_in_flight: 4096,
            watches: 10_000,
            in_flight_bytes: 512 << 20,
            deleted_bytes: 1 << 30,
        }
    }
}
