// Two environments side by side, and the change request that makes one as the other is.
import { html, useMemo, useState } from "../vendor/preact.js";
import { onConfig, onDefinition } from "../lib/operations.js";
import { href, route, setQuery } from "../lib/state.js";
import { get } from "../lib/api.js";
import { count } from "../lib/format.js";
import { OPERATIONS_MAX, TooMany, compare, operationsFor, readBoth, shownDefinition } from "../lib/promote.js";
import { Crumbs, Empty, Loaded, useLoad, useTyped } from "../parts/ui.js";
import { Diff } from "../parts/diff.js";
import { useEnvironments } from "../parts/frozen.js";
import { useProposal } from "../parts/propose.js";

/** Records that are shown before somebody asks for more, and lines of what is left. */
const [RECORDS, LEFT_MAX] = [25, 20];
/** Definitions whose keys are read for the names of environments. */
const KEYS = 1000;

export default function Promote() {
  const query = route.value.query;
  const [from, to] = ["from", "to"].map((name) => query.get(name) ?? "");
  const typed = { from: useTyped(from), to: useTyped(to) };
  const environments = useEnvironments() ?? [];
  const keys = useLoad((signal) => get("/config_definition/", [["limit", KEYS]], { signal, once: true }), []);
  const names = useMemo(() => [...new Set([...environments.map((one) => one.environment), ...(keys.data?.data.results ?? []).map((one) => one.config_definition_key).filter((key) => key.includes(".")).map((key) => key.split(".")[0])])].filter((name) => name !== "default").sort(), [environments, keys.data]);
  const isReady = from && to && from !== to;
  const loaded = useLoad(async (signal) => (isReady ? readBoth(from, to, signal).catch((error) => { if (error instanceof TooMany) return { tooMany: error.message }; throw error; }) : null), [from, to]);
  const submit = (event) => {
    event.preventDefault();
    if (typed.from.text === from && typed.to.text === to) { loaded.reload(); return; }
    for (const field of Object.values(typed)) field.sent(field.text);
    setQuery(Object.entries(typed).map(([name, field]) => [name, field.text]).filter(([, text]) => text));
  };
  const input = (name, label) => html`<label class="field small"><span>${label}</span><input required list="environments" spellcheck=${false} autocomplete="off" value=${typed[name].text} onInput=${(event) => typed[name].set(event.target.value.trim())} /></label>`;
  return html`<${Crumbs} items=${[{ text: "Environments", href: href(["environments"]) }, { text: "Compare" }]} />
    <div class="title"><h1>Compare environments</h1></div>
    <form class="bar low" onSubmit=${submit}>${input("from", "Source")}${input("to", "Target")}<datalist id="environments">${names.map((name) => html`<option value=${name} />`)}</datalist>
      <button class="primary" disabled=${!typed.from.text || !typed.to.text || typed.from.text === typed.to.text}>Compare</button>
      <button type="button" onClick=${() => { typed.from.set(typed.to.text); typed.to.set(typed.from.text); }}>Swap</button></form>
    ${isReady ? html`<${Loaded} of=${loaded.loading ? {} : loaded} what="both environments">${loaded.data?.tooMany ? html`<p class="banner bad" role="alert">${loaded.data.tooMany}.</p>` : loaded.data ? html`<${Both} key=${`${from} ${to} ${loaded.data.revision}`} both=${loaded.data} from=${from} to=${to} />` : ""}</${Loaded}>`
      : html`<${Empty} title="Choose two environments">The definitions of an environment are those whose keys begin with its name and a dot. What differs is shown, and you can propose that the target becomes as the source is.</${Empty}>`}`;
}

function Both({ both, from, to }) {
  const [withDefinitions, setWithDefinitions] = useState(false);
  const [withDeletions, setWithDeletions] = useState(false);
  const [out, setOut] = useState(new Set());
  const [max, setMax] = useState(RECORDS);
  const isAlike = (name) => withDefinitions && !out.has(name);
  const differences = useMemo(() => compare(both, to, isAlike), [both, to, withDefinitions, out]);
  const isDeletion = (one) => one.does === "only in the target";
  const chosen = new Set(differences.flatMap((one) => one.configs.filter((config) => withDeletions || !isDeletion(config)).map((config) => `${one.key}/${config.key}`)).filter((key) => !out.has(key)));
  const { operations, targets, left } = useMemo(() => operationsFor(differences, chosen, isAlike, { onConfig, onDefinition }), [differences, out, withDeletions]);
  const propose = useProposal(targets, "write");
  const toggle = (key) => setOut((old) => { const next = new Set(old); if (!next.delete(key)) next.add(key); return next; });
  const isTooLarge = operations.length > OPERATIONS_MAX;
  const proposal = () => ({ title: `promote ${from} to ${to}`, description: `From ${from} at revision ${both.revision}. This is a note of the sender, which nobody checks.`, operations, isSecret: () => true });
  const records = differences.flatMap((one) => [...(one.does ? [{ ...one, isDefinition: true }] : []), ...one.configs.filter((config) => config.does !== "unseen").map((config) => ({ ...config, definition: one }))]);
  const unseen = differences.flatMap((one) => one.configs.filter((config) => config.does === "unseen").map((config) => `${one.target} / ${config.key}`));
  const deletions = differences.flatMap((one) => one.configs).filter(isDeletion).length;
  const more = unseen.length ? html`<details><summary>${count(unseen.length, "config")} with secret values that your key may not see: nothing else differs</summary><ul>${unseen.map((name) => html`<li>${name}</li>`)}</ul></details>` : "";
  if (records.length === 0) return html`${more}<${Empty} title="Nothing differs">As of revision ${both.revision}, <b>${to}</b> is as <b>${from}</b>, as far as your key may see.</${Empty}>`;
  return html`<p role="status">As of revision ${both.revision}, <b>${count(records.length, "record")}</b> ${records.length === 1 ? "differs" : "differ"}. Protection from deletion is not compared.</p>
    <div class="bar"><label class="check"><input type="checkbox" checked=${withDefinitions} onChange=${(event) => setWithDefinitions(event.target.checked)} /> Definitions too: schema, indexes, unique fields</label>
      ${deletions ? html`<label class="check"><input type="checkbox" checked=${withDeletions} onChange=${(event) => setWithDeletions(event.target.checked)} /> Delete ${count(deletions, "config")} that only ${to} has</label>` : ""}<span class="grow"></span>
      ${propose.isPossible ? html`<button class="primary" disabled=${operations.length === 0 || isTooLarge} onClick=${() => propose.ask(proposal())}>Promote…</button>` : html`<span class="muted">Your key may not propose all of this: choose what it may.</span>`}</div>
    ${isTooLarge ? html`<p class="banner warn">${count(operations.length, "operation")} are too many for one change request: choose at most ${OPERATIONS_MAX}.</p>` : ""}
    ${left.length ? html`<div class="banner warn"><strong>Left as ${left.length === 1 ? "it is" : "they are"}:</strong><ul>${left.slice(0, LEFT_MAX).map((text) => html`<li>${text}</li>`)}${left.length > LEFT_MAX ? html`<li>and ${left.length - LEFT_MAX} more, named below</li>` : ""}</ul></div>` : ""}
    ${records.slice(0, max).map((record) => (record.isDefinition
    ? html`<${Definition} key=${record.key} of=${record} from=${from} to=${to} isChosen=${isAlike(record.key)} isPossible=${withDefinitions && record.from !== undefined} onToggle=${() => toggle(record.key)} />`
    : html`<${Config} key=${`${record.definition.key}/${record.key}`} of=${record} from=${from} to=${to} isChosen=${chosen.has(`${record.definition.key}/${record.key}`)} isPossible=${withDeletions || !isDeletion(record)} onToggle=${() => toggle(`${record.definition.key}/${record.key}`)} />`))}
    ${records.length > max ? html`<p><b>${count(records.length - max, "more record")} not shown.</b> <button type="button" onClick=${() => setMax(max + RECORDS)}>Show more</button> <button type="button" onClick=${() => setMax(Infinity)}>Show all</button></p>` : ""}
    ${more}${propose.dialog}`;
}

function Record({ name, where, tag, isChosen, isPossible, onToggle, notes, children }) {
  return html`<section class="together" aria-label=${name}><div class="bar"><h2><span class="tag">${tag}</span> <a href=${href(where)}>${name}</a></h2><span class="grow"></span>
      ${isPossible ? html`<label class="check"><input type="checkbox" aria-label=${`Promote ${name}`} checked=${isChosen} onChange=${onToggle} /> Promote</label>` : html`<span class="muted">stays as it is</span>`}</div>
    ${notes.length ? html`<ul class="notes">${notes.map((text) => html`<li>${text}</li>`)}</ul>` : ""}${children}</section>`;
}

function Definition({ of, from, to, ...more }) {
  const where = ["d", `${of.to ? to : from}.${of.key}`];
  const tag = of.does === "create" ? `only in ${from}` : of.does === "change" ? "differs" : `only in ${to}`;
  const notes = of.from ? [] : [`Its definition and configs are only in ${to}: no promotion deletes a definition.`];
  return html`<${Record} name=${of.target} where=${where} tag=${tag} notes=${notes} ...${more}>
    ${of.from ? html`<${Diff} from=${shownDefinition(of.to)} to=${shownDefinition(of.from)} names=${[to, from]} label=${`What differs in ${of.target}`} />` : ""}</${Record}>`;
}

function Config({ of, from, to, isPossible, ...more }) {
  const { definition } = of;
  const isDeletion = of.does === "only in the target";
  const where = ["d", `${of.to === undefined ? from : to}.${definition.key}`, "c", of.key];
  const name = `${definition.target} / ${of.key}`;
  const kept = of.kept.map((path) => path.join(".") || "all of it").join(", ");
  const notes = [of.left && `It is left: ${of.left}.`, kept && `Your key may not see the secret values at ${kept}: they are not compared, and ${to} keeps its own.`].filter(Boolean);
  const tag = isDeletion ? `only in ${to}` : of.does === "create" ? `only in ${from}` : "differs";
  return html`<${Record} name=${name} where=${where} tag=${tag} notes=${notes} isPossible=${isPossible && !of.left && (!isDeletion || definition.from !== undefined)} ...${more}>
    <${Diff} schema=${[definition.from?.schema, definition.to?.schema].filter(Boolean)} from=${of.to} to=${isDeletion ? undefined : of.from} names=${[to, from]} label=${`What differs in ${name}`} /></${Record}>`;
}
