// The audit logs of all members as one list, newest first. Each log is read page by page from the node that answers; one
// that can't be read is named, and the lines of the others are shown.
import { get } from "./api.js";

/** Lines of a page of one log. */
const PAGE = 100;
/**
 * The cluster's time, so that lines of nodes with different clocks are in their order; of lines between two changes, which
 * have the same, the time of the host.
 */
const isLater = (one, other) => {
  const [a, b] = [one, other].map((line) => line.log_time ?? line.time);
  return a === b ? one.time > other.time : a > b;
};

export class MergedLogs {
  constructor(query) { Object.assign(this, { query, logs: null }); }

  /** The nodes whose logs could not be read to their end: { node, error }. */
  get failed() { return (this.logs ?? []).filter((log) => log.error); }

  /** Whether there may be earlier lines. */
  get hasMore() { return this.logs === null || this.logs.some((log) => log.lines.length > 0 || log.next !== null); }

  /** The next lines, at most `limit`. */
  async read(limit, signal) {
    if (this.logs === null) {
      const { data } = await get("/audit", [["limit", 1]], { signal });
      this.logs = data.meta.nodes.map((node) => ({ node, lines: [], next: undefined, error: null }));
    }
    const found = [];
    while (found.length < limit) {
      await Promise.all(this.logs.filter((log) => log.lines.length === 0 && log.next !== null).map((log) => this.fill(log, signal)));
      const open = this.logs.filter((log) => log.lines.length > 0);
      if (open.length === 0) break;
      const latest = open.reduce((one, other) => (isLater(other.lines[0], one.lines[0]) ? other : one));
      found.push(latest.lines.shift());
    }
    return found;
  }

  /** Reads pages of one log until one has a line: with a filter a page may have none. */
  async fill(log, signal) {
    try {
      while (log.lines.length === 0 && log.next !== null) {
        const place = log.next === undefined ? [] : [["before", log.next]];
        const { data } = await get("/audit", [["node", log.node], ...this.query, ["limit", PAGE], ...place], { signal, once: true });
        log.lines = data.results;
        log.next = data.meta.next ?? null;
      }
    } catch (error) {
      if (error.status === undefined || error.status === 401 || error.status === 403 || error.status === 422) throw error;
      Object.assign(log, { next: null, error });
    }
  }
}
