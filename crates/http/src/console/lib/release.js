// How a change request is released, as somebody types it: all at once, by a plan that has a name, or in stages of its own; and the
// plan that is sent for it.
//
// Invariant: a plan that the form can't show is sent as it was.
import { labelsText } from "./rollouts.js";

/** Limits of the node. */
export const STAGES_MAX = 10;
const [SHARE_MAX, TIME_S_MAX, COUNT_MAX, GATES_MAX] = [100, 604800, 4294967295, 16];

/** The ways that can be chosen, with their names in a request: an empty one is no rollout. */
export const RELEASES = [
  ["", "all at once"], ["canary", "canary: a tenth of the readers for 20 minutes, then all"],
  ["linear", "linear: a fifth more of the readers each 6 minutes"], ["own", "in stages of its own"],
];
let lastId = 0;
export const newStage = (share = "", minutes = "15") => ({ id: (lastId += 1), share, labels: "", minutes, healthy: "" });
/** What a new change request begins with. */
export const atOnce = () => ({ kind: "", stages: [newStage("5"), newStage("50")], failed: "0", way: "abort", gates: "", patience: "60" });

/** The labels of a text like `ring=canary, ring=beta`; undefined if it is none. */
export function labelsOf(text) {
  const found = new Map();
  for (const part of text.split(",").map((one) => one.trim()).filter(Boolean)) {
    const at = part.indexOf("=");
    const [name, value] = [part.slice(0, Math.max(at, 0)).trim(), part.slice(at + 1).trim()];
    if (!name || !value) return undefined;
    found.set(name, [...(found.get(name) ?? []), value]);
  }
  return Object.fromEntries(found);
}

/** The gates of a text like `errors=120, latency=60`, each with the seconds for which its word counts; undefined if it is none. */
export function gatesOf(text) {
  const found = text.split(",").map((one) => one.trim()).filter(Boolean).map((one) => /^(.{1,64}?)\s*=\s*(\d{1,6})$/.exec(one));
  const names = new Set(found.map((one) => one?.[1]));
  const isWrong = (one) => !one || Number(one[2]) < 1 || Number(one[2]) > TIME_S_MAX;
  if (found.some(isWrong) || names.size < found.length || names.size > GATES_MAX) return undefined;
  return found.map(([, name, seconds]) => ({ name, fresh_s: Number(seconds) }));
}

const isNumber = (text, most) => /^\d+(\.\d+)?$/.test(text) && Number(text) <= most;
const isCount = (text) => text === "" || (/^\d+$/.test(text) && Number(text) <= COUNT_MAX);
const secondsOf = (minutes) => Math.round(Number(minutes) * 60);
const minutesOf = (seconds) => String(Number((seconds / 60).toFixed(4)));

/** What of a stage is wrong, by the name of its field. */
export function wrongIn({ share, labels, minutes, healthy }) {
  return {
    ...(share === "" || (/^\d+(\.\d{1,2})?$/.test(share) && Number(share) > 0 && Number(share) <= SHARE_MAX) ? {} : { share: "a share is 0.01 to 100 percent, with two digits after the point" }),
    ...(labelsOf(labels) ? {} : { labels: "labels are like ring=canary, with commas between them" }),
    ...(isNumber(minutes, TIME_S_MAX / 60) ? {} : { minutes: "a stage lasts 0 to 10080 minutes" }),
    ...(isCount(healthy) ? {} : { healthy: "a number of readers is expected" }),
  };
}

/** Why the form can't be sent; empty if it can. Whether each stage adds readers, the node says. */
export function wrongOf({ kind, stages, failed, gates, patience }) {
  if (kind !== "own") return "";
  const wrong = stages.map((stage, place) => [place, ...Object.values(wrongIn(stage))]).find((found) => found.length > 1);
  if (wrong) return `Stage ${wrong[0] + 1}: ${wrong[1]}.`;
  if (!isCount(failed)) return "Readers that may fail: a number is expected.";
  if (!gatesOf(gates)) return `Gates: names with seconds are expected, like errors=120, and at most ${GATES_MAX}.`;
  return isNumber(patience, TIME_S_MAX / 60) && secondsOf(patience) > 0 ? "" : "Pause if a stage is late: more than 0 and at most 10080 minutes are expected.";
}

const planOf = ({ stages, failed, way, gates, patience }) => ({
  stages: stages.map(({ share, labels, minutes, healthy }) => ({ labels: labelsOf(labels), share: share === "" ? SHARE_MAX : Number(share), for_s: secondsOf(minutes), min_healthy: Number(healthy) })),
  max_failed: Number(failed), on_fail: way, gates: gatesOf(gates), timeout_s: secondsOf(patience),
});

/** The member of a change request that says how it is released. */
export function releaseOf(release) {
  const { kind, sent } = release;
  return kind === "" ? {} : { rollout: kind === "sent" ? sent : kind === "own" ? planOf(release) : kind };
}

const text = ({ stages, max_failed, on_fail, gates, timeout_s }) => JSON.stringify([stages, max_failed, on_fail, gates, timeout_s]);

/** The form of what was sent: as it was sent, if the fields can't say it. */
export function formOf(rollout) {
  if (rollout === null) return atOnce();
  const { status, ...sent } = rollout;
  const stages = sent.stages.map((stage) => ({ ...newStage(stage.share === SHARE_MAX ? "" : String(stage.share), minutesOf(stage.for_s)), labels: labelsText(stage.labels), healthy: stage.min_healthy ? String(stage.min_healthy) : "" }));
  const gates = sent.gates.map(({ name, fresh_s: seconds }) => `${name}=${seconds}`).join(", ");
  const form = { kind: "own", stages, failed: String(sent.max_failed), way: sent.on_fail, gates, patience: minutesOf(sent.timeout_s) };
  return wrongOf(form) === "" && text(planOf(form)) === text(sent) ? form : { ...form, kind: "sent", sent };
}
