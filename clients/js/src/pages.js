// The records of a list, page by page.
//
// Invariant: each page is the one that the page before names in `Link`: of the same state, so nothing is skipped and
// nothing appears twice, whatever is written meanwhile.

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
   */
  constructor(transport, first, record) {
    /** @internal */
    this.transport = transport;
    /** @internal */
    this.first = first;
    /** @internal */
    this.record = record;
  }

  /** @returns {AsyncGenerator<Page<R>, void, undefined>} */
  async *pages() {
    /** @type {Request | null} */
    let request = this.first;
    while (request) {
      /** @type {Answer} */
      const answer = await this.transport.send(request);
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
