// What was used between two answers of a node about its usage.
const COUNTED = ["requests", "bytes_in", "bytes_out", "busy_us", "records_read", "records_written"];

/** The rows with what was added since the earlier ones, which `name` tells apart. Without earlier rows, those of the node's start. */
export function since(rows, earlier, name) {
  if (!earlier) return rows;
  const known = new Map(earlier.map((row) => [row[name], row]));
  return rows.map((row) => {
    const old = known.get(row[name]);
    const used = Object.fromEntries(COUNTED.map((figure) => [figure, Math.max(0, row[figure] - (old?.[figure] ?? 0))]));
    const has = (one) => typeof one?.stored_bytes === "number";
    return { ...row, ...used, grown: has(row) && has(old) ? row.stored_bytes - old.stored_bytes : null };
  });
}
