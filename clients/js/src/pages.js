// The records of a list, page by page.
//
// Invariant: each page is the one that the page before names in `Link`: of the same state, so nothing is skipped and
// nothing appears twice, whatever is written meanwhile. If the node that holds this state is gone, the list goes on at the
// revision of the state, which each node can make again.
import { ExpiredError } from "./errors.js";

/** What is settled once the revision is known. */
const SETTLED = new Set(["consistency", "max_staleness_ms", "page", "revision", "$revision"]);

/** @import { CallOptions, Page } from "./types.js" */
/** @import { Answer, Request, Transport } from "./transport.js" */

/**
 * A list: `for await (const record of list)`, or `list.pages()`, or `await list.all()`. Each time it begins anew.
 * @template R
 * @implements {AsyncIterable<R>}
 */
export class List {
  /**
   * @param {Transport} transport
   * @param {Request} first
   * @param {(found: any, answer: Answer) => R} record
   * @param {string | null} [revisionName] The parameter for a revision, if the list takes one.
   */
  constructor(transport, first, record, revisionName = null) {
    /** @internal */
    this.transport = transport;
    /** @internal */
    this.first = first;
    /** @internal */
    this.record = record;
    /** @internal */
    this.revisionName = revisionName;
  }

  /** @returns {AsyncGenerator<Page<R>, void, undefined>} */
  async *pages() {
    /** @type {Request | null} */
    let request = this.first;
    /** @type {number | null} */
    let revision = null;
    let [made, isCursor] = [0, false];
    while (request) {
      /** @type {Answer} */
      let answer;
      try {
        answer = await this.transport.send(request);
      } catch (error) {
        if (!(error instanceof ExpiredError) || !isCursor || revision === null || this.revisionName === null) throw error;
        const given = this.first.query ?? [];
        const page = Number(given.find(([name]) => name === "page")?.[1] ?? 1) + made;
        const query = [...given.filter(([name]) => !SETTLED.has(name)), [this.revisionName, String(revision)], ["page", String(page)]];
        request = { ...this.first, query: /** @type {[string, string][]} */ (query) };
        isCursor = false;
        continue;
      }
      revision ??= answer.stateRevision;
      made += 1;
      isCursor = true;
      const items = answer.data.results.map((/** @type {any} */ found) => this.record(found, answer));
      yield { items, total: answer.data.meta.total ?? null, revision: answer.stateRevision, warnings: answer.warnings };
      request = answer.next === null ? null : { method: "GET", path: answer.next, options: this.first.options };
    }
  }

  /** @returns {AsyncGenerator<R, void, undefined>} */
  async *[Symbol.asyncIterator]() {
    for await (const page of this.pages()) yield* page.items;
  }

  /** All records. */
  async all() {
    /** @type {R[]} */
    const all = [];
    for await (const page of this.pages()) all.push(...page.items);
    return all;
  }

  /** The first page. */
  async firstPage() {
    for await (const page of this.pages()) return page;
    throw new Error("a list has a first page");
  }
}
