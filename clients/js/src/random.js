// Ids of requests, and idempotency keys. They have to be unique and not secret: a key belongs to its credential.

/** 128 random bits, as text. */
export function randomId() {
  const bytes = new Uint8Array(16);
  // Node.js 18 has no global `crypto`.
  if (globalThis.crypto) globalThis.crypto.getRandomValues(bytes);
  else bytes.forEach((_, place) => { bytes[place] = Math.floor(Math.random() * 256); });
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
