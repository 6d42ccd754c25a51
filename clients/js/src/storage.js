// Where a cache keeps what it knows: one text, replaced as a whole. Files are in `node.js`.

/** @import { Storage } from "./types.js" */

/**
 * The storage of a browser (`localStorage`), under a name.
 * @param {string} name
 * @param {{ getItem(name: string): string | null, setItem(name: string, text: string): void }} [store]
 * @returns {Storage}
 */
export function webStorage(name, store = globalThis.localStorage) {
  return {
    load: () => store.getItem(name),
    save: (text) => store.setItem(name, text),
  };
}

/**
 * The memory, for tests.
 * @param {string | null} [text]
 * @returns {Storage & { text: string | null }}
 */
export function memoryStorage(text = null) {
  return {
    text,
    load() { return this.text; },
    save(saved) { this.text = saved; },
  };
}
