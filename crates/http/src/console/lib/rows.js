// The rows of a list of any length: pages are fetched as they come into view and kept, so that the table scrolls through
// ten thousand configs at once. Pages of different moments may overlap; each knows the revision that it was made from,
// and when the total changes all pages that are out of view are forgotten.
import { signal } from "../vendor/preact.js";
import { call } from "./api.js";

export const PAGE_ROWS = 100;
/** Pages kept in memory. */
const PAGES_MAX = 200;

export class Rows {
  /** `path` and `query` of the list, without page and limit. */
  constructor(path, query) {
    Object.assign(this, { path, query, pages: new Map(), pending: new Set(), stop: new AbortController() });
    /** { total, revision, version }: `version` counts what arrives, so that the table is drawn again. */
    this.state = signal({ total: null, version: 0, error: null, revision: 0 });
  }

  close() { this.stop.abort(); }

  row(index) { return this.pages.get(Math.floor(index / PAGE_ROWS))?.[index % PAGE_ROWS]; }

  /** Fetches what is missing of these rows. */
  want(from, to) {
    this.view = [Math.floor(from / PAGE_ROWS), Math.floor(Math.max(from, to - 1) / PAGE_ROWS)];
    for (let page = this.view[0]; page <= this.view[1]; page += 1) {
      if (!this.pages.has(page) && !this.pending.has(page)) this.fetch(page);
    }
  }

  /** Fetches again what is in view; what is out of view is fetched when it is wanted. */
  refresh() {
    const [first, last] = this.view ?? [0, 0];
    for (const page of [...this.pages.keys()]) if (page < first || page > last) this.pages.delete(page);
    for (let page = first; page <= last; page += 1) this.fetch(page);
  }

  async fetch(page) {
    this.pending.add(page);
    try {
      const query = [...this.query, ["page", page + 1], ["limit", PAGE_ROWS]];
      const answer = await call("GET", this.path, { query, signal: this.stop.signal });
      const data = answer.exact;
      const total = Number(data.get("meta").get("total").text);
      const old = this.state.value;
      if (old.total !== null && old.total !== total) {
        const [first, last] = this.view ?? [0, 0];
        for (const other of [...this.pages.keys()]) if (other < first || other > last) this.pages.delete(other);
      }
      this.pages.delete(page);
      this.pages.set(page, data.get("results"));
      if (this.pages.size > PAGES_MAX) this.pages.delete(this.pages.keys().next().value);
      this.state.value = { total, version: old.version + 1, error: null, revision: answer.revision };
    } catch (error) {
      if (error.name !== "AbortError") this.state.value = { ...this.state.value, error, version: this.state.value.version + 1 };
    } finally {
      this.pending.delete(page);
    }
  }
}
