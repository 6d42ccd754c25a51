// The disk and the memory of the node that answers, from what it measures (`/metrics`).
import { key } from "./state.js";
import { Listening } from "./silence.js";

const ROOT = location.pathname.replace(/\/ui(\/.*)?$/, "");

/** The values of measures without labels, and of those with one label by `name{label}`. */
export function measures(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = /^([a-z_]+)(?:\{[a-z_]+="([^"]*)"\})? (\S+)$/.exec(line);
    if (match) found.set(match[2] === undefined ? match[1] : `${match[1]}{${match[2]}}`, Number(match[3]));
  }
  return found;
}

async function metrics(connection) {
  try {
    const response = await connection.hear(fetch(`${ROOT}/metrics`, { headers: { Authorization: `Bearer ${key.value}` }, signal: connection.signal, cache: "no-store", credentials: "omit" }));
    return response.ok ? await connection.text(response.body) : null;
  } finally {
    connection.end();
  }
}

/** Null where the node does not tell: the key lacks the right, or the node is of an earlier version. */
export async function health(signal) {
  const text = await metrics(new Listening(signal));
  if (text === null) return null;
  const found = measures(text);
  const get = (name) => found.get(name);
  return {
    memory: get("process_resident_memory_bytes"),
    inFlight: get("concord_memory_budget_bytes{callers}"),
    inFlightMax: get("concord_memory_budget_max_bytes{callers}"),
    free: get("concord_store_volume_free_bytes"),
    reserve: get("concord_store_disk_reserve_bytes"),
    parts: [["log", get("concord_raft_log_disk_bytes")], ["history", get("concord_store_history_bytes")],
      ["records", get("concord_store_sled_bytes")], ["newest snapshot", get("concord_store_snapshot_bytes")]].filter(([, value]) => value !== undefined),
  };
}
