// Rollouts in words: whom a stage is for, how long it takes, what the present one waits for; and which one has a config.
import { get } from "./api.js";
import { count, duration } from "./format.js";
import { CHANGES, changePath } from "./reviews.js";

/** All readers, in percent. */
const ALL = 100;
/** Change requests that are asked for at once: more than the rollouts that can run. */
const LIMIT = 100;

/** The labels of a reader, or those of a stage with a list of values each, as they are typed. */
export const labelsText = (labels) => Object.entries(labels).flatMap(([name, values]) => [values].flat().map((value) => `${name}=${value}`)).join(", ");

/** Which readers a stage adds. */
export function whoText({ share, labels }) {
  const named = Object.entries(labels).map(([name, values]) => `${name} ${values.join(" or ")}`).join(" and ");
  const readers = named ? `readers with ${named}` : "readers";
  return share === ALL ? (named ? `all ${readers}` : "all readers that have a name") : `${share} % of the ${readers}`;
}

/** How long a stage lasts at least; empty if it may end at once. */
export const lengthText = ({ for_s: seconds }) => (seconds ? `at least ${duration(seconds)}` : "");

/** What readers have said of a stage: `most` of them may fail. Empty where nobody knows it. */
export function readersText({ healthy, failed }, needed, most) {
  if (healthy === null) return "";
  return [`${healthy}${needed ? ` of the ${needed} needed` : ""} run well`, `${failed} failed${failed || most ? ` (at most ${most} may)` : ""}`].join(", ");
}

/** What a rollout that has begun waits for, as parts of a sentence: [text, time], with a time after some texts. */
export function waitsFor({ stages, gates, status }) {
  const stage = stages[status.stage];
  const is = (name) => status.waits_for.includes(name);
  const silent = gates.filter(({ name }) => !status.gates?.some((gate) => gate.name === name && gate.ok === true));
  const found = [
    is("resume") && ["somebody who resumes it or takes it back", null],
    stage && is("time") && ["its time, until", new Date(Date.parse(status.since) + stage.for_s * 1000).toISOString()],
    stage && is("min_healthy") && [`${count(stage.min_healthy - status.healthy, "more reader")} that ${stage.min_healthy - status.healthy === 1 ? "runs" : "run"} well`, null],
    is("gates") && [`${silent.length === 1 ? "the gate" : "the gates"} ${silent.map(({ name }) => name).join(", ")} to say that all is well`, null],
    is("end") && ["the cluster, which applies it", null],
  ].filter(Boolean);
  return found.length ? found : [["the cluster, which ends the stage in a moment, if no freeze is in the way", null]];
}

/** What follows when something is wrong. */
export function ruleText({ max_failed: most, gates, on_fail: way, timeout_s: late }) {
  const what = `If ${most ? `more than ${count(most, "reader")} ${most === 1 ? "fails" : "fail"}` : "a reader fails"}${gates.length ? ", or a gate says that something is wrong" : ""}, `;
  return `${what}${way === "abort" ? "the cluster takes it back" : "it pauses, and somebody decides"}. It also pauses when a stage waits ${duration(late)} longer than it must.`;
}

/**
 * Looks for the change request whose rollout has a config, as far as this key may see it. The function that it returns is
 * called again and again; what it has learnt of one stays true, as no edition changes while it rolls.
 */
export function rolloutFinder(name, config) {
  const known = new Map();
  return async (signal) => {
    const { data } = await get(CHANGES, [["phase", "rolling"], ["limit", LIMIT]], { signal, once: true });
    for (const change of data.results.filter((one) => one.config_definition_keys.includes(name))) {
      const id = `${change.change_id} ${change.digest}`;
      if (!known.has(id)) {
        const { operations } = (await get(changePath(change.change_id), [], { signal, once: true })).data;
        known.set(id, (operations ?? []).some((one) => one.config_definition_key === name && one.config_key === config));
      }
      if (known.get(id)) return change;
    }
    return null;
  };
}
