// What needs Node.js: a file that a cache keeps what it knows in.
import { mkdir, open, readFile, rename, rm } from "node:fs/promises";
import { dirname } from "node:path";
import { randomId } from "./random.js";

/** @import { Storage } from "./types.js" */

/**
 * A file, readable by its owner only. It is replaced as a whole: whoever reads it, also after a power cut, finds the text
 * of one save and never a part.
 * @param {string} path
 * @returns {Storage}
 */
export function fileStorage(path) {
  return {
    async load() {
      try {
        return await readFile(path, "utf8");
      } catch (error) {
        if (/** @type {any} */ (error).code === "ENOENT") return null;
        throw error;
      }
    },
    async save(text) {
      // Several caches may keep the same file, in one process or in many: each has a draft of its own.
      const draft = `${path}.${process.pid}-${randomId()}.tmp`;
      await mkdir(dirname(path), { recursive: true });
      try {
        const file = await open(draft, "wx", 0o600);
        try {
          await file.writeFile(text);
          await file.sync();
        } finally {
          await file.close();
        }
        await rename(draft, path);
      } catch (error) {
        await rm(draft, { force: true });
        throw error;
      }
      const folder = await open(dirname(path));
      try {
        await folder.sync();
      } finally {
        await folder.close();
      }
    },
  };
}
