// The types of what goes in and what comes out.
import type { ExactNumber } from "./json.js";
import type { Configs } from "./configs.js";

/** A value of JSON. */
export type Json = null | boolean | number | bigint | string | ExactNumber | Json[] | { [name: string]: Json };
/** An object of JSON: what a config holds unless another type is given. */
export type JsonObject = { [name: string]: any };

/** One of the reasons of a refusal. */
export interface Violation {
  /** The class of the error, as `conflict_error`. */
  type: string;
  /** What exactly is wrong, as `config_exists`. Programs may depend on it; empty where the node gives none. */
  code: string;
  /** For people; texts may change. */
  message: string;
  /** The way to what is wrong, outermost first. Empty for the whole. */
  loc: (string | number)[];
  /** The same as a JSON pointer, as `/data/limits/0/name`. */
  path: string;
}

/** Turns the data of a config into a value of the program, or throws. `schema.parse` of zod is one. */
export type Parse<T> = (data: any) => T;

/** How a cluster is reached. */
export interface ConcordOptions {
  /** The nodes, as `http://127.0.0.1:8101`. */
  urls: string | string[];
  /** The access key, or a function that gives it, for keys that are rotated. */
  key: string | (() => string);
  /** Milliseconds that a call may take with all its attempts. 30,000. */
  timeoutMs?: number;
  /** Milliseconds after which another node is asked. 5,000; doubled each time that all nodes were asked. */
  attemptTimeoutMs?: number;
  /** Why changes are made, for their history. */
  reason?: string;
  /**
   * Put with a dot before each definition key: with `prod`, `limits` is the definition `prod.limits` of the cluster. Answers
   * have the keys without it, and lists and watches without a definition are of this environment, so one program runs in
   * every environment. `default` has no prefix.
   */
  environment?: string;
  /**
   * The name of this reader: by it and by its labels, a rollout chooses who sees its candidates. The host name; in
   * browsers none. Null for none: then this client sees candidates at the end only. It is no secret and proves nothing.
   * 1 to 255 visible ASCII characters.
   */
  reader?: string | null;
  /** The labels of this reader, as `{ ring: "canary" }`: at most 16, of 1 KiB in all. They need a reader. */
  labels?: Record<string, string>;
  /** Sends the requests. The global `fetch`. */
  fetch?: typeof fetch;
}

/** What every call takes. */
export interface CallOptions {
  signal?: AbortSignal;
  timeoutMs?: number;
}

/** How fresh an answer must be. Without any of it: as fresh as the last acknowledged write. */
export interface ReadOptions extends CallOptions {
  consistency?: "linearizable" | "local" | "lease";
  maxStalenessMs?: number;
  minRevision?: number;
}

export interface GetOptions extends ReadOptions {
  /** Only these members of the data. */
  fields?: string[];
  /** As of this revision. */
  revision?: number;
}

export interface WriteOptions extends CallOptions {
  /** Why, for the history. */
  reason?: string;
  /** Of the intent: copies with the same key are done once. Made by the client where none is given. */
  idempotencyKey?: string;
  /** Check and answer, and store nothing. */
  dryRun?: boolean;
}

export interface ConditionalOptions extends WriteOptions {
  /** Only if the record has this revision; `"*"`: only if it exists. */
  ifRevision?: number | "*";
}

export interface PutOptions extends ConditionalOptions {
  /** Only if there is none: creates it. */
  ifAbsent?: boolean;
  /** Create it where there is none. */
  upsert?: boolean;
}

/** Where a value came from, and how old it may be. */
export interface Source {
  /**
   * `live`: confirmed by the cluster no longer ago than the cache's `freshForMs`. `cache`: from memory, not confirmed
   * since. `file`: stored by an earlier run, not confirmed since. `default`: built into the program.
   */
  kind: "live" | "cache" | "file" | "default";
  /** The node that it came from. */
  node: string | null;
  /** The revision of the cluster's state up to which it is known. */
  revision: number | null;
  /** Milliseconds since the value was certainly that of the cluster. It is at most so old; infinite for a default. */
  ageMs: number;
}

/** What a node says about the request beside its answer. */
export interface Warned {
  /** What of the request had no effect, or is missing from the answer. Empty for a record of a list: its page has them. */
  warnings: string[];
}

/** A config. */
export interface Config<T = JsonObject> extends Warned {
  definition: string;
  key: string;
  data: T;
  /**
   * The number of its last change, for `ifRevision`. Null in a list over several definitions. 0 for a candidate, which has
   * none: no condition holds with it.
   */
  revision: number | null;
  /**
   * The id of the change request whose candidate it is: what this reader sees before the rollout has ended. Null for what
   * is proven.
   */
  variant: string | null;
  createdAt: string;
  modifiedAt: string;
  /** The places of secret values that the key may not see, null in `data`. Not known in lists. */
  redacted: string[];
  source: Source;
}

/** A definition. */
export interface Definition extends Warned {
  key: string;
  indexes: string[];
  schema: JsonObject | null;
  revision: number | null;
  createdAt: string;
  modifiedAt: string;
}

/** What a deletion did. */
export interface Deleted extends Warned {
  key: string;
}

/** What a change of a definition did. */
export interface DefinitionWritten extends Warned {
  key: string;
  /** Null in a dry run. */
  revision: number | null;
}

/** What a write of a config did. */
export interface Written<T = JsonObject> extends Warned {
  definition: string;
  key: string;
  /** The content that is stored now. */
  data: T;
  /** Null in a dry run. */
  revision: number | null;
  /** Whether there was none before. */
  created: boolean;
}

export type Scalar = string | number | boolean | bigint | ExactNumber | Date | null;
/** Conditions on an indexed path: all of them must hold. */
export interface Conditions {
  gte?: Scalar; gt?: Scalar; lte?: Scalar; lt?: Scalar; ne?: Scalar; prefix?: string; in?: Scalar[]; exists?: boolean;
}
/** By indexed path: a value, one of several, or conditions. */
export type Filter = Record<string, Scalar | Scalar[] | Conditions>;

export interface ListOptions extends ReadOptions {
  search?: string;
  sortBy?: string;
  sortOrder?: "asc" | "desc";
  /** Records of a page, 1 to 1000. 100. */
  pageSize?: number;
  /** Begin with this page. 1. */
  page?: number;
  /** As of this revision. */
  revision?: number;
}

export interface ConfigListOptions extends ListOptions {
  filter?: Filter;
  fields?: string[];
}

export interface AcrossOptions extends Omit<ConfigListOptions, "fields" | "revision"> {
  /** Keys of definitions, or beginnings with `*`. All without. */
  definitions?: string[];
}

/** A page of a list. */
export interface Page<R> extends Warned {
  items: R[];
  /** How many there are on all pages; null in histories. */
  total: number | null;
  /** The revision of the state that the page is of. */
  revision: number | null;
}

/** One change in a history. */
export interface Past<T = JsonObject> {
  revision: number;
  operation: "create" | "update" | "delete";
  at: string;
  by: string;
  reason: string | null;
  /** What the change left; null for a delete. */
  data: T | null;
}

export interface HistoryOptions extends ReadOptions {
  /** Only changes before this revision. */
  before?: number;
  pageSize?: number;
}

/** An operation of a batch; `op` makes them. */
export interface Operation {
  op: string;
  config_definition_key: string;
  [member: string]: any;
}

export interface OperationResult {
  op: string;
  definition: string;
  key: string | null;
  created: boolean;
  /** Of `op.get`: what there was, or null. */
  config?: Config | null;
}

export interface BatchResult extends Warned {
  /** Null in a dry run. */
  revision: number | null;
  results: OperationResult[];
}

export interface Transaction {
  /** Conditions, at least one, of `op.check`. */
  if: Operation[];
  then?: Operation[];
  else?: Operation[];
}

export interface TransactionResult extends BatchResult {
  /** Whether all conditions held. */
  succeeded: boolean;
}

/** What `readMany` found, in the order of the request. */
export type ReadResult<T = JsonObject> =
  | { status: "found"; definition: string; key: string; config: Config<T> }
  | { status: "not_modified"; definition: string; key: string; revision: number }
  | { status: "absent" | "forbidden"; definition: string; key: string; violations: Violation[] };

export interface WatchOptions extends Pick<ReadOptions, "signal" | "consistency" | "maxStalenessMs"> {
  /** Keys of definitions, or beginnings with `*`. All without. */
  definitions?: string | string[];
  /** Only these configs, with one definition. */
  keys?: string[];
  /** Only configs that the list with this filter has, with one definition. */
  filter?: Filter;
  search?: string;
  /** Begin with the changes of this revision. */
  from?: number;
  /** Begin with the present state. */
  initial?: boolean;
  /** With the data before each change. */
  previous?: boolean;
  /**
   * What to do when the changes to go on from are no longer retained. `restart`: a `reset`, then the present state.
   * `throw`: `ExpiredError`. By default `restart` with `initial`, else `throw`.
   */
  onExpired?: "restart" | "throw";
  /** Milliseconds without a node after which the watch ends with an error. Never. */
  giveUpAfterMs?: number;
}

/** One of the things that a revision did. */
export interface Change<T = JsonObject> {
  type: "definition_created" | "definition_updated" | "definition_deleted" | "config_created" | "config_updated" | "config_deleted" | "config_unmatched";
  definition: string;
  /** Null for changes of a definition. */
  key: string | null;
  /** Of created and updated configs; null for others. */
  data: T | null;
  /** With `previous`: the data before, null for a new config. */
  previous?: T | null;
  /** Of created and updated definitions. */
  indexes?: string[];
  schema?: JsonObject | null;
  /** Of deleted definitions: how many configs went with it. */
  count?: number;
  createdAt: string | null;
  modifiedAt: string | null;
  /** The places of secret values that the key may not see, null in `data`. */
  redacted: string[];
  /** The id of the change request whose candidate it is; null for what is proven. */
  variant: string | null;
  /** The revision of the config, where it is not that of the event: a rollout that was taken back shows it again. */
  revision?: number;
}

/** All that one revision did. */
export interface ChangeEvent<T = JsonObject> {
  kind: "change";
  revision: number;
  at: string;
  by: string;
  reason: string | null;
  changes: Change<T>[];
}

/** A part of the present state; the last one has `complete`. */
export interface StateEvent<T = JsonObject> {
  kind: "state";
  revision: number;
  definitions: Definition[];
  configs: Config<T>[];
  complete: boolean;
}

/** Everything up to this revision has been seen. */
export interface HeartbeatEvent {
  kind: "heartbeat";
  revision: number;
}

/** Forget what was seen: the present state follows from its beginning. */
export interface ResetEvent {
  kind: "reset";
}

export type WatchEvent<T = JsonObject> = ChangeEvent<T> | StateEvent<T> | HeartbeatEvent | ResetEvent;

/** Where a cache keeps what it knows: one text, replaced as a whole. */
export interface Storage {
  load(): Promise<string | null> | string | null;
  save(text: string): Promise<void> | void;
}

export interface CacheOptions {
  /** Only configs of this filter, with one definition. */
  filter?: Filter;
  /** Only these configs, with one definition. */
  keys?: string[];
  /** What is known is kept here, and read at the beginning of the next run. */
  storage?: Storage;
  /** What to answer for configs before anything else is known: by definition and key. */
  defaults?: Record<string, Record<string, JsonObject>>;
  /** Milliseconds between two questions whether what is known is still all. 5,000. */
  confirmMs?: number;
  /** Milliseconds since the last confirmation for which a value is called `live`. Twice `confirmMs`. */
  freshForMs?: number;
  /** Milliseconds between two saves. 1,000 */
  saveMs?: number;
  /** Is told what does not work for the moment: no node, a storage that can't be written, data that no validator takes. */
  onProblem?: (error: unknown) => void;
}

/** A change of what a cache holds. */
export interface CacheChange<T = JsonObject> {
  definition: string;
  key: string;
  /** Undefined when it is gone. */
  data: T | undefined;
  previous: T | undefined;
  revision: number | null;
  /** The id of the change request whose candidate it is; null for what is proven. */
  variant: string | null;
}

/** Answers from memory, for one definition. */
export interface Entry<T = JsonObject> {
  definition: string;
  key: string;
  data: T;
  revision: number | null;
  /** The id of the change request whose candidate it is; null for what is proven. */
  variant: string | null;
  source: Source;
  /** The places of secret values that the key may not see, null in what the cluster sent. */
  redacted: string[];
  /** Set when the newest data are none that the validator takes: `data` is what there was before. */
  invalid: { revision: number | null; error: unknown } | null;
}

export interface Member {
  id: number;
  role: "leader" | "follower" | "learner";
  api_addr: string;
  peer_addr: string;
  lag: number | null;
  reachable: boolean | null;
  [member: string]: any;
}

/** What a node knows of its cluster; the names are those of the interface. */
export interface ClusterStatus {
  cluster_id: string | null;
  node_id: number;
  leader_id: number | null;
  term: number;
  revision: number;
  digest: string;
  members: Member[];
  alarms: { type: string; node_id: number | null; message: string }[];
  [member: string]: any;
}

export type { Configs };
