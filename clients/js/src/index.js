// A client of Concord.
//
//   client       the cluster: definitions, configs, batches, watches, caches
//   transport    the nodes, and a request with its attempts
//   environment  what is put before definition keys
//   reader       who reads, by which rollouts choose
//   errors       why a call has no result: refused, unavailable, or an outcome that nobody knows
//   pages        lists, page by page
//   watch        changes, over the loss of any node
//   cache, view  a copy in memory, and its typed access
//   report       what a cache says of candidates
//   stored       the text that it stores
//   storage      where a cache keeps what it knows; `node.js` has files
//   testing      a cache in memory and a node, for the tests of programs
//   json         JSON whose numbers keep their value
export { op } from "./batch.js";
export { Cache } from "./cache.js";
export { Concord } from "./client.js";
export { Configs } from "./configs.js";
export { Definitions } from "./definitions.js";
export {
  ApiError, ChangeRequiredError, ConcordError, ConflictError, DataError, EnvironmentFrozenError, ExpiredError, ForbiddenError, InvalidError, NotFoundError, NotReadyError,
  PreconditionFailedError, ProtocolError, RateLimitedError, StorageFullError, TooLargeError, UnauthorizedError, UnavailableError,
  UnknownOutcomeError,
} from "./errors.js";
export { ExactNumber, parse as parseJson, stringify as stringifyJson } from "./json.js";
export { List } from "./pages.js";
export { memoryStorage, webStorage } from "./storage.js";
export { View } from "./view.js";
