// What the package offers to TypeScript: its code, and the types of what goes in and comes out.
export * from "./index.js";
export type * from "./types.js";
