// What the console's own modules promise, run inside the page by scripts/console-test.py: numbers and members come back
// as they were written, texts that are no JSON are refused where the browser refuses them, two people's changes to one
// content are put together.
async (seed) => {
  const { parse, print, same, identical, share, put, at, locate, indexPath, indexed, Num } = await import("./lib/json.js");
  const { differences, threeWay, merged } = await import("./lib/compare.js");
  const { batchBody, itemsByChange } = await import("./lib/together.js");
  const { duration, pathText, plain, hints } = await import("./lib/format.js");
  const { initial, kindPlace, kinds, resolve, scalars } = await import("./lib/schema.js");
  const { keepingUnnamed, masked } = await import("./lib/secrets.js");
  const { placed, strayed } = await import("./lib/elements.js");
  const { measures } = await import("./lib/health.js");
  const { since } = await import("./lib/usage.js");
  const { principal } = await import("./lib/state.js");
  const { hindranceIn, needsAuthor, mayRevert, waitsForMe } = await import("./lib/reviews.js");
  const { mayAbort, maySteer, missing, needsSteering, nextStep, stateOf, timesOf } = await import("./lib/reviewstate.js");
  const { atOnce, formOf: releaseForm, gatesOf, labelsOf, releaseOf, wrongIn, wrongOf } = await import("./lib/release.js");
  const { readersText, ruleText, waitsFor, whoText } = await import("./lib/rollouts.js");
  const { compare, operationsFor } = await import("./lib/promote.js");
  const { onConfig, onDefinition } = await import("./lib/operations.js");
  const { timingOf } = await import("./parts/timing.js");
  const { keepingHidden, partsOf } = await import("./lib/edition.js");
  const { command } = await import("./lib/command.js");
  const { definitionsOf, formOf, newFlag, patchOf, served, switched, targetingOf, typedValue, valueOf } = await import("./lib/flags.js");
  const wrong = [];
  const check = (what, isRight) => { if (!isRight) wrong.push(what); };
  let state = seed;
  const random = (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };

  for (const text of ["123456789012345678901234567890", "7.0", "-0.0", "1e400", '{"2":1,"1":2,"__proto__":3}', '"\\u0000\\ud83d\\ude00"', "[]", "{}", '{"a":{"b":[1,"x",null,true]}}']) {
    check(`compact ${text}`, print(parse(text), 0) === (text.startsWith('"') ? JSON.stringify(JSON.parse(text)) : text));
    check(`indented ${text}`, same(parse(print(parse(text))), parse(text)));
  }
  check("members keep their order", print(parse('{"b":1,"a":2,"1":3}'), 0) === '{"b":1,"a":2,"1":3}');
  check("the last of two members counts", print(parse('{"a":1,"a":2}'), 0) === '{"a":2}');
  check("places", JSON.stringify(locate('{"a": [10, 20]}', [["a", 1], ["a"], []])) === "[[11,13],[6,14],[0,15]]");
  check("an absent place is the one around it", JSON.stringify(locate('{"a": {}}', [["a", "b"]])) === "[[6,8]]");
  check("a path with a dot in a name", JSON.stringify(indexPath("a\\.b.c")) === '["a.b","c"]');
  const values = (text, path) => indexed(parse(text), path).map((value) => print(value, 0)).join();
  check("the values of patterns", values('{"labels":{"a":1,"b.c":2},"items":[{"name":"x"},{},{"name":7}]}', "labels.*") === "1,2"
    && values('{"items":[{"name":"x"},{},{"name":7}]}', "items[].name") === '"x",7' && values('{"a*":{"b[]":5}}', "a\\*.b\\[]") === "5");
  const looks = ['"7"', "7", '"null"', "null", '""', '" "', '"a b"', '"a  b"', '"a\u00a0b"', '"true"', "true", '"[]"', "[]", '"\\"a"', '"a"', '"a\\nb"', "7.0", '"7.0"', '"–"'].map((text) => plain(parse(text)));
  check(`no two values look alike: ${looks}`, new Set(looks).size === looks.length && !looks.includes("–"));
  check("what is not seen is written", plain("a\u180bb\ufe0f\u{e0001}") === '"a\\u180bb\\ufe0f\\udb40\\udc01"' && pathText(["a\u200b", 1]) === "a\\u200b.[1]");
  check("what is not seen is said", hints("a\r\n").join() === "lines end with CR LF,ends with a line end" && hints("plain").length === 0 && hints("a\n  b").length === 0);

  // Schemas that lead back to themselves, and to more places than anybody could count.
  const schema = (text) => parse(text);
  for (const text of ['{"$ref":"#"}', '{"allOf":[{"$ref":"#"},{"$ref":"#"},{"$ref":"#"}]}', '{"anyOf":[{"$ref":"#"},{"oneOf":[{"$ref":"#"},{"type":"string"}]}]}', '{"$ref":"#/a/b"}', '{"$ref":"#anchor"}', '{"$ref":"#/%"}',
    '{"type":"object","required":["a","b"],"properties":{"a":{"$ref":"#"},"b":{"$ref":"#"}}}']) {
    const root = schema(text);
    check(`${text} has a beginning`, initial(root, root) !== undefined && kinds(root, resolve(root, root)).all.length <= 2 && scalars(root, 10).length <= 10 && masked(root, root) === root);
  }
  const levels = Array.from({ length: 60 }, (_, place) => `"l${place}":{"allOf":[{"$ref":"#/$defs/l${place + 1}"},{"$ref":"#/$defs/l${place + 1}"}],"required":["a","b"],"properties":{"a":{"$ref":"#/$defs/l${place + 1}"},"b":{"$ref":"#/$defs/l${place + 1}"}}}`);
  const deep = schema(`{"$ref":"#/$defs/l0","$defs":{${levels},"l60":{"type":"string"}}}`);
  check("what doubles with each level has an end", print(initial(deep, deep), 0).length < 100_000 && scalars(deep, 50).length === 50);
  const marked = schema('{"properties":{"a":{"$ref":"#/$defs/s"},"l":{"items":{"anyOf":[{"properties":{"t":{"x-concord-secret":true}}},{}]}},"m":{"patternProperties":{"^p":{"x-concord-secret":1}},"additionalProperties":{"x-concord-secret":false}}},"$defs":{"s":{"x-concord-secret":true}}}');
  check("secrets are hidden", print(masked(marked, parse('{"a":1,"l":[{"t":2,"u":3}],"m":{"p":4,"q":5},"n":6}')), 0) === '{"a":••••••,"l":[{"t":••••••,"u":3}],"m":{"p":••••••,"q":5},"n":6}');

  const unknown = schema('{"properties":{"a":{"$ref":"#anchor"},"b":{"$dynamicRef":"#anchor"},"c":{"$ref":"#/$defs/open"}},"$defs":{"s":{"$anchor":"anchor","x-concord-secret":true},"open":{}}}');
  check("what a reference leads to that is not followed is hidden", print(masked(unknown, parse('{"a":1,"b":2,"c":3}')), 0) === '{"a":••••••,"b":••••••,"c":3}');
  const odd = schema('{"patternProperties":{"(?i)^p":{"x-concord-secret":true},"^q":{}},"additionalProperties":false,"dependencies":{"q":{"properties":{"q":{"x-concord-secret":true}}},"z":["q"]}}');
  check("what a pattern that can't be read could match is hidden, and what depends", print(masked(odd, parse('{"P":1,"q":2}')), 0) === '{"P":••••••,"q":••••••}');

  // `K` is a marker. `0x` is the stored element 0, renamed to x; `a!` is a new element a with a value of its own.
  const shop = schema('{"properties":{"l":{"items":{"properties":{"t":{"x-concord-secret":true}}}}}}');
  const keeping = (text) => parse(text.replaceAll("K", '{"$concord-keep":true}'));
  const stored = keeping('{"l":[{"n":"a","t":K},{"n":"b","t":K},{"n":"b","t":K}]}');
  for (const [elements, expected] of [
    ["0,1,2", ""], ["1,0,2", ""], ["0", ""], ["0x,1,2", ""], ["0b,1,2", ""], ["1,2", ""],
    ["0,2,1", "l.1.t l.2.t"], ["1a,2", "l.0.t"], ["1x,2x", ""], ["1x,0", ""], ["0x,a!,1,2", ""], ["0x,a!,b!,2", ""],
  ]) {
    const list = elements.split(",").map((text) => {
      const [digit, name] = /^\d/.test(text) ? [text[0], text.slice(1)] : [null, text[0]];
      const old = digit === null ? new Map([["t", "given"]]) : at(stored, ["l", Number(digit)]);
      return name ? put(old, ["n"], name) : old;
    });
    const found = strayed(shop, stored, new Map([["l", list]])).map((path) => path.join(".")).join(" ");
    check(`the elements ${elements} keep another value at "${found}"`, found === expected);
  }
  const two = schema('{"anyOf":[{"properties":{"a":{}},"additionalProperties":false},{"properties":{"k":{"const":"s","x-concord-secret":true}}}]}');
  check("a hidden value is of any choice", kindPlace(two, kinds(two, two).all, keeping('{"k":K}')) === 1);
  const typed = (text) => { const fresh = keeping(text); return placed(shop, stored, share(stored, fresh)); };
  check("a text does not say which element it is", strayed(shop, stored, typed('{"l":[{"n":"b","t":K},{"n":"b","t":K}]}')).length === 0
    && typed('{"l":[{"n":"a","t":K},{"n":"x","t":K}]}').get("l")[0] === stored.get("l")[0]
    && at(typed('{"l":[{"n":"x","t":K},{"n":"b","t":K},{"n":"b","t":K}]}'), ["l", 0, "t"]) === at(stored, ["l", 0, "t"])
    && !stored.get("l").some((one) => one.get("t") === at(typed('{"l":[{"n":"x","t":K},{"n":"y","t":K}]}'), ["l", 0, "t"])));
  check("values that the node did not name are kept", print(keepingUnnamed(shop, parse('{"l":[{"t":null,"n":null},{"n":1}],"t":null}')), 0) === '{"l":[{"t":{"$concord-keep":true},"n":null},{"n":1}],"t":null}');

  // Texts with one character changed: what is JSON and what is not is the browser's word.
  const sample = '{"a": [1, -2.5e3, true, null], "b": {"c": "x\\n\\u00e4"}, "d": ""}';
  const letters = '{}[]",:0123456789.eE+-tfn\\ u\n\u0001';
  for (let turn = 0; turn < 20000; turn += 1) {
    const place = random(sample.length);
    const letter = letters[random(letters.length)];
    const text = [sample.slice(0, place) + letter + sample.slice(place + 1), sample.slice(0, place) + sample.slice(place + 1), sample.slice(0, place) + letter + sample.slice(place)][random(3)];
    let [ours, theirs] = [undefined, undefined];
    try { ours = parse(text); } catch (error) { if (error.name !== "Error") throw error; }
    try { theirs = JSON.parse(text); } catch { /* no JSON */ }
    check(`judged as the browser does: ${text}`, (ours === undefined) === (theirs === undefined));
    if (ours !== undefined && theirs !== undefined) check(`the same value: ${text}`, JSON.stringify(JSON.parse(print(ours, 0))) === JSON.stringify(theirs));
  }

  // Several changes as one: digits are kept, and what is wrong stands at its change.
  const body = batchBody([{ op: "put_config", definition: "d", key: 'a"b', data: parse('{"n":7.0}'), revision: 5 }, { op: "delete_config", definition: "d", key: "x", data: undefined, revision: 9 }]);
  check("a batch", body.replaceAll("\n", "") === '{"operations":[{"op":"put_config","config_definition_key":"d","config_key":"a\\"b","data":{"n":7.0},"if_match":"5"},{"op":"delete_config","config_definition_key":"d","config_key":"x","if_match":"9"}]}');
  const items = itemsByChange([{ msg: "one", loc: ["operations", 1, "data", "n"] }, { msg: "two", loc: ["body", "operations", 0, "if_match"] }, { msg: "three" }]);
  check("what is wrong by its change", items.get(1)[0].loc.join() === "data,n" && items.get(0)[0].loc.join() === "if_match" && items.get(-1)[0].msg === "three");
  const used = (name, requests, stored) => ({ name, requests, bytes_in: 0, bytes_out: 0, busy_us: 0, records_read: 0, records_written: 0, stored_bytes: stored });
  const rows = since([used("grows", 5, 10), used("deleted", 3, null), used("new", 1, 4)], [used("grows", 2, 4), used("deleted", 3, 1)], "name");
  check("what was used since", rows.map((row) => `${row.name} ${row.requests} ${row.grown}`).join() === "grows 3 6,deleted 0 null,new 1 null");
  const measured = measures('# HELP a b\na_bytes 12\nb_bytes{share="callers"} 1e3\nc{x="1",y="2"} 4\n');
  check("what is measured", measured.get("a_bytes") === 12 && measured.get("b_bytes{callers}") === 1000 && measured.size === 2);

  // Who has a vote, and what waits for it.
  const [signedIn, me] = [principal.value, { key_id: "k1", person: { person_id: "1", label: "ann" }, attested: true, grants: [{ verbs: ["read", "approve"], definitions: ["prod.*"] }] }];
  const someone = (number) => ({ key_id: `k${number}`, person_id: String(number), person: null });
  const change = { phase: "open", bypass: false, environment: null, config_definition_keys: ["prod.a", "prod.b"], authors: [someone(2)], attested: true, approvals_needed: 1, approvals_counted: 0, approved: false, stale: null, approvals: [], rejections: [], reviews: [], reviews_missing: 0, apply: "manual", schedule: null, revert_after_s: null, scheduled: null, revert: null };
  const root = { key_id: "root", root: true, grants: [{ verbs: ["read", "approve"], definitions: ["*"] }] };
  for (const [what, more, who, expected] of [
    ["a change of others", {}, me, true], ["one of an environment", { environment: "prod", config_definition_keys: [] }, me, true],
    ["one of default", { environment: "default", config_definition_keys: [] }, me, false], ["one with another definition", { config_definition_keys: ["prod.a", "dev.a"] }, me, false],
    ["one's own", { authors: [someone(2), someone(1)] }, me, false], ["another key of one's person", { authors: [{ ...someone(9), person_id: "1" }] }, me, false],
    ["a stale one", { stale: "why" }, me, false], ["a rejected one", { rejections: [someone(3)] }, me, false], ["an approved one", { approved: true }, me, false],
    ["one with one's vote", { approvals_needed: 2, approvals: [{ ...someone(1), counts: true }] }, me, false], ["one with one's vote that counts no more", { approvals: [{ ...someone(1), counts: false }] }, me, true], ["one with a vote of others", { approvals_needed: 2, approvals: [{ ...someone(3), counts: true }] }, me, true],
    ["a closed one", { phase: "closed" }, me, false], ["a held one", { phase: "held" }, me, false], ["a bypass", { phase: "applied", bypass: true, reviews_missing: 1 }, me, true],
    ["a reviewed bypass", { phase: "applied", bypass: true }, me, false], ["for a key that is not attested", {}, { ...me, attested: false }, false],
    ["for a key without a person", {}, { ...me, person: null }, false], ["for the root key", {}, root, false], ["without stored keys", {}, null, false],
    ["what others took back by a bypass", { phase: "applied", reviews_missing: 1, authors: [someone(1)], revert: { bypass: true, by: someone(3) } }, me, true],
    ["what one took back by a bypass", { phase: "applied", reviews_missing: 1, revert: { bypass: true, by: someone(1) } }, me, false],
    ["what was taken back by a bypass, of who approved it", { phase: "applied", reviews_missing: 1, approvals: [someone(1)], revert: { bypass: true, by: someone(3) } }, me, true],
    ["a scheduled one that has lost an approval", { phase: "scheduled" }, me, true],
    ["for a key that may not approve", {}, { ...me, grants: [{ verbs: ["read", "write"], definitions: ["*"] }] }, false],
  ]) {
    principal.value = who;
    const one = { ...change, ...more };
    check(`${what} waits: ${expected}`, waitsForMe(one) === expected && (!expected || hindranceIn(one) === ""));
  }
  principal.value = me;
  const ours = { ...change, authors: [someone(1)] };
  for (const [what, one, expected, step] of [
    ["one that waits for votes", ours, false], ["a stale one", { ...ours, stale: "why" }, true, "rebase it"], ["a held one", { ...ours, phase: "held" }, true, "rebase it"],
    ["a rejected one", { ...ours, rejections: [someone(3)] }, true, "edit or withdraw it"], ["an approved one", { ...ours, approved: true }, true, "apply it"],
    ["an approved one whose time comes", { ...ours, approved: true, schedule: { not_before: "2199-01-01T00:00:00Z" } }, true, "leave it to the cluster"],
    ["what the cluster applies", { ...ours, approved: true, apply: "when_approved" }, false], ["what is left to the cluster", { ...ours, approved: true, phase: "scheduled" }, false],
    ["a stale one of others", { ...change, stale: "why" }, false], ["a closed one", { ...ours, phase: "closed", stale: "why" }, false],
  ]) check(`${what} needs its author: ${expected}`, needsAuthor(one) === expected && (!expected || nextStep(one) === step));
  const applied = { ...change, phase: "applied", applied: { revision: 9, approved_by: [someone(1)] } };
  const revert = (state, more) => mayRevert({ ...applied, revert: { state }, ...more });
  check("who takes it back", revert("possible") && revert("armed") && revert("held") && !revert("done") && !revert("failed") && !mayRevert({ ...applied, revert: null }) && !revert("armed", { applied: { approved_by: [someone(3)] } }));
  const states = [["possible", "applied as revision 9"], ["armed", "applied, to be taken back"], ["kept", "applied, and kept"], ["done", "taken back"], ["failed", "applied, could not be taken back"]];
  check("states of a revert", states.every(([state, text]) => stateOf({ ...applied, revert: { state } })[1] === text));
  check("left to the cluster", stateOf({ ...change, phase: "scheduled", approved: true })[1] === "scheduled" && stateOf({ ...change, apply: "when_approved" })[1] === "waits for approval" && stateOf({ ...change, phase: "scheduled", approved: true, stale: "why" })[1] === "stale");
  const times = (more) => timesOf({ ...change, ...more }).map(([text, time]) => `${text}${time ? ` ${time}` : ""}`).join("; ");
  check("what its times mean", times({}) === "" && times({ apply: "when_approved", revert_after_s: 3600 }) === "As soon as enough persons approve it, the cluster applies it.; The cluster takes it back 1 hour after it is applied."
    && times({ schedule: { not_before: "A", not_after: "B" } }) === "It is applied not before A; It is not applied after B" && times({ apply: "when_approved", schedule: { not_before: "A", not_after: "B" } }).startsWith("Once enough persons approve it, the cluster applies it, but not before A") && times({ phase: "applied", apply: "when_approved" }) === "");
  check("times of a proposal", JSON.stringify(timingOf({ apply: "manual", from: "", until: "", back: "" })) === "{}" && JSON.stringify(timingOf({ apply: "when_approved", from: "2199-01-02T03:04", until: "2199-01-02T03:05:06", back: "900" })) === '{"apply":"when_approved","schedule":{"not_before":"2199-01-02T03:04:00Z","not_after":"2199-01-02T03:05:06Z"},"revert_after_s":900}');
  check("durations", [900, 3600, 7200, 86400, 604800, 61].map(duration).join() === "15 minutes,1 hour,2 hours,1 day,7 days,61 seconds");
  // Rollouts: what a person may do with one, what it waits for, and a form that sends what it shows.
  {
    const stages = [{ labels: {}, share: 5, for_s: 900, min_healthy: 3 }, { labels: { ring: ["x", "y"], az: ["1"] }, share: 100, for_s: 0, min_healthy: 0 }];
    const status = { stage: 0, since: "2199-01-02T03:04:05Z", paused: null, passed: [], healthy: 1, failed: 0, failures: [], gates: [{ name: "g", ok: true }, { name: "h", ok: null }], waits_for: ["time"] };
    const plan = { stages, max_failed: 0, gates: [{ name: "g", fresh_s: 60 }, { name: "h", fresh_s: 60 }], on_fail: "abort", timeout_s: 3600 };
    const rolling = (more) => ({ ...change, phase: "rolling", rollout: { ...plan, status: { ...status, ...more } } });
    const paused = { paused: { at: "", by: null, comment: "" } };
    const may = (who, of = rolling(paused)) => { principal.value = who; return [maySteer, mayAbort, needsSteering].map((is) => Number(is(of))).join(""); };
    const grants = (...verbs) => ({ ...me, grants: [{ verbs, definitions: ["*"] }] });
    check("who steers a rollout", may(grants("read", "approve")) === "111" && may(grants("read", "write")) === "011" && may(grants("read")) === "000" && may(grants("read", "approve"), rolling({})) === "110"
      && may(grants("read", "approve"), change) === "000" && may(grants("read"), { ...rolling(paused), authors: [someone(1)] }) === "011");
    check("what to do about a paused one", nextStep(rolling(paused)) === "take it back" && may(grants("read", "approve")) && nextStep(rolling(paused)) === "resume it, or take it back");
    check("states of a rollout", stateOf(rolling({})).join() === "good,rolling, stage 1 of 2" && stateOf(rolling(paused)).join() === "bad,rollout paused, stage 1 of 2" && stateOf(rolling({ stage: null }))[1] === "rolling, after its last stage"
      && stateOf({ ...change, phase: "closed", closed: { reason: "failed", error: { code: "rollout_failed" } } })[1] === "failed: its rollout was taken back" && times({ ...rolling({}), apply: "when_approved", schedule: { not_before: "A", not_after: "B" } }) === "");
    const waits = (...names) => waitsFor({ ...plan, status: { ...status, waits_for: names } }).map(([text, time]) => `${text}${time ? ` ${time}` : ""}`).join("; ");
    check("what it waits for", waits("time") === "its time, until 2199-01-02T03:19:05.000Z" && waits("resume", "min_healthy", "gates") === "somebody who resumes it or takes it back; 2 more readers that run well; the gate h to say that all is well"
      && waits("end") === "the cluster, which applies it" && waits().includes("in a moment"));
    check("who is in a stage", stages.map(whoText).join("; ") === "5 % of the readers; all readers with ring x or y and az 1" && whoText({ share: 100, labels: {} }) === "all readers that have a name");
    check("what readers say", readersText({ healthy: null }, 2, 1) === "" && readersText({ healthy: 2, failed: 0 }, 0, 0) === "2 run well, 0 failed" && ruleText({ ...plan, on_fail: "pause", max_failed: 2, gates: [] }).startsWith("If more than 2 readers fail, it pauses"));
    const typed = (more) => ({ ...atOnce(), kind: "own", ...more });
    check("a release as it is sent", JSON.stringify(["", "canary", "linear"].map((kind) => releaseOf({ ...atOnce(), kind }))) === '[{},{"rollout":"canary"},{"rollout":"linear"}]' && releaseOf(typed({})).rollout.stages.map(({ share, for_s: time }) => `${share} ${time}`).join() === "5 900,50 900");
    check("a plan is sent as it was", JSON.stringify(releaseOf(releaseForm({ ...plan, status: null })).rollout) === JSON.stringify({ stages, max_failed: 0, on_fail: "abort", gates: plan.gates, timeout_s: 3600 }) && releaseForm(null).kind === "");
    const odd = { ...plan, stages: [{ labels: { "a,b": ["c"] }, share: 0.01, for_s: 1, min_healthy: 0 }] };
    check("a plan that the form can't show is sent as it was", releaseForm({ ...odd, status: null }).kind === "sent" && JSON.stringify(releaseOf(releaseForm({ ...odd, status: null })).rollout) === JSON.stringify(odd));
    check("labels that are typed", JSON.stringify(labelsOf(" ring = a,ring=b, z=c=d,")) === '{"ring":["a","b"],"z":["c=d"]}' && ["a", "=b", "a=", "a=b, c"].every((text) => labelsOf(text) === undefined) && JSON.stringify(labelsOf("")) === "{}");
    check("gates that are typed", JSON.stringify(gatesOf(" errors = 120,a=b=1,")) === '[{"name":"errors","fresh_s":120},{"name":"a=b","fresh_s":1}]' && ["a", "a=", "=1", "a=0", "a=604801", "a=1, a=2", "a=1.5"].every((text) => gatesOf(text) === undefined) && JSON.stringify(gatesOf("")) === "[]");
    for (const [name, texts] of [["share", ["0", "101", "1.234", "x", "-1"]], ["minutes", ["", "10081", "-1", "x"]], ["healthy", ["1.5", "-1", "9999999999"]], ["labels", ["x"]]]) {
      for (const text of texts) check(`${name} ${text}`, Object.keys(wrongIn({ ...atOnce().stages[0], [name]: text })).join() === name);
    }
    check("what is wrong with a release", wrongOf(typed({ failed: "x" })) !== "" && wrongOf(typed({ gates: "x" })) !== "" && ["0", "", "x", "10081"].every((patience) => wrongOf(typed({ patience })) !== "") && wrongOf(typed({ stages: [{ ...atOnce().stages[0], share: "0" }] })).startsWith("Stage 1: a share") && wrongOf(typed({})) === "" && wrongOf({ ...atOnce(), failed: "x" }) === "");
  }
  principal.value = signedIn;
  check("what is missing", missing({ ...change, attested: false, approvals_needed: 2, approvals_counted: 1 }).length === 2 && missing({ ...change, phase: "applied", bypass: true, reviews_missing: 2 })[0].startsWith("2 persons") && missing({ ...change, phase: "closed" }).length === 0);

  // A change request as it is sent again: as the preview shows it, and nothing that it hides.
  const secretly = keepingHidden(parse('{"n":7.0,"s":null,"in":{"s":null}}'), ["#/s", "#/in/s", "#/gone", "#/in/gone/s", "#/a~1b"]);
  check("markers for what is hidden", print(secretly.data, 0) === '{"n":7.0,"s":{"$concord-keep":true},"in":{"s":{"$concord-keep":true}}}' && secretly.hidden.map((path) => path.join(".")).join() === "s,in.s");
  check("what can't be told", keepingHidden(parse('{"l":[{"s":null}]}'), ["#/l/0/s"]) === null && keepingHidden(parse("null"), ["#"]) === null && keepingHidden(parse('{"s":null}'), ["#/s", "..."]) === null);
  const edition = (operations, records) => {
    const exact = parse(JSON.stringify(records.map((record) => ({ before: null, after: null, revision: null, redacted: [], operations: [], deleted: false, ...record }))));
    const plain = records.map((record) => ({ revision: null, redacted: [], operations: [], deleted: false, ...record }));
    const found = partsOf({ change: { operations, preview: { records: plain } }, records: exact });
    return found.why ?? found.parts.map((part) => part.text(part.value)).join("|");
  };
  const [of, on] = [{ config_definition_key: "d" }, { config_definition_key: "d", config_key: "a" }];
  for (const [what, operations, records, expected] of [
    ["a config", [{ op: "put_config", ...on }], [{ ...on, revision: 5, after: { n: 1 } }], '{"op":"put_config","config_definition_key":"d","config_key":"a","data":{"n":1},"if_match":"5"}'],
    ["a new config", [{ op: "put_config", ...on }], [{ ...on, after: { n: 1 } }], '{"op":"create_config","config_definition_key":"d","config_key":"a","data":{"n":1}}'],
    ["a config twice", [{ op: "delete_config", ...on }, { op: "put_config", ...on }], [{ ...on, revision: 5, after: {} }], '{"op":"put_config","config_definition_key":"d","config_key":"a","data":{},"if_match":"5"}'],
    ["a deletion", [{ op: "delete_config", ...on }], [{ ...on, revision: 5, deleted: true }], '{"op":"delete_config","config_definition_key":"d","config_key":"a","if_match":"5"}'],
    ["a definition", [{ op: "create_definition", ...of }, { op: "put_config", ...on }], [{ ...of, operations: [{ op: "create_definition" }], after: { indexes: ["n"], json_schema: { type: "object" }, format_assertion: true, unique: [], protected: false } }, { ...on, after: {} }],
      '{"op":"create_definition","config_definition_key":"d","indexes":["n"],"json_schema":{"type":"object"},"format_assertion":true}|{"op":"create_config","config_definition_key":"d","config_key":"a","data":{}}'],
    ["several steps", [{ op: "set_schema", ...of }, { op: "set_unique", ...of }], [{ ...of, revision: 9, operations: [{ op: "set_schema", force: true }, { op: "set_unique" }], after: { indexes: [], json_schema: null, format_assertion: null, unique: ["n"], protected: false } }],
      '{"op":"set_schema","config_definition_key":"d","json_schema":null,"policy":"force","if_match":"9"}|{"op":"set_unique","config_definition_key":"d","paths":["n"]}'],
    ["one deleted and created again", [{ op: "delete_definition", ...of }, { op: "create_definition", ...of }, { op: "put_config", ...on }], [{ ...of, revision: 9, operations: [{ op: "delete_definition", restrict: false }, { op: "create_definition" }], after: { indexes: [], json_schema: null, format_assertion: null, unique: [], protected: false } }, { ...on, revision: 5, after: {} }],
      '{"op":"delete_definition","config_definition_key":"d","if_match":"9"}|{"op":"create_definition","config_definition_key":"d","indexes":[]}|{"op":"create_config","config_definition_key":"d","config_key":"a","data":{}}'],
    ["an environment", [{ op: "put_environment", environment: "e" }], [{ environment: "e", revision: 3, after: { direct: "refuse", approvals: 1, freeze: [] } }], '{"op":"put_environment","environment":"e","direct":"refuse","approvals":1,"freeze":[],"if_match":"3"}'],
    ["hidden values of a new one", [{ op: "put_config", ...on }], [{ ...on, after: { s: null }, redacted: ["#/s"] }], "your key may not see values of d / a, which is new"],
    ["hidden data", [{ op: "put_config", ...on }], [{ ...on, revision: 5, redacted: ["#"] }], "your key may not see what d / a becomes"],
  ]) check(`the edition has ${what}`, edition(operations, records) === expected);

  const rests = (base, revision) => partsOf({ change: { operations: [{ op: "put_config", ...on }], preview: { records: [{ ...on, base_revision: base, revision, redacted: [], operations: [] }] } }, records: parse(JSON.stringify([{ ...on, before: null, after: {} }])) }).parts[0].isChanged;
  check("what was changed since", rests(5, 7) && rests(null, 7) && rests(5, null) && !rests(5, 5) && !rests(null, null));

  // What of one environment goes to another one, and what is left.
  const marks = schema('{"properties":{"s":{"x-concord-secret":true}}}');
  const side = (name, definitions, configs) => ({
    definitions: new Map(Object.entries(definitions).map(([key, of]) => [key, { key: `${name}.${key}`, revision: "5", schema: null, indexes: [], unique: [], formats: null, ...of }])),
    configs: new Map(Object.entries(configs).map(([key, [text, ...hidden]]) => [key, { definition: key.split("/")[0], key: key.split("/")[1], revision: "7", data: parse(text), hidden }])),
  });
  const promoted = (source, target, withDefinitions = false, out = []) => {
    const isAlike = (name) => withDefinitions && !out.includes(name);
    const all = compare({ sides: [side("staging", ...source), side("prod", ...target)] }, "prod", isAlike);
    const chosen = new Set(all.flatMap((one) => one.configs.map((config) => `${one.key}/${config.key}`)).filter((key) => !out.includes(key)));
    const { operations, left } = operationsFor(all, chosen, isAlike, { onConfig, onDefinition });
    return `${operations.map((text) => { const { op, config_definition_key: name, config_key: key, data, if_match: match, policy, paths } = JSON.parse(text); return [op, name, key, data && JSON.stringify(data), match && `@${match}`, policy, paths && `[${paths}]`].filter(Boolean).join(" "); }).join("; ")}${left.length ? ` | ${left.join("; ")}` : ""}`;
  };
  const keep = '{"$concord-keep":true}';
  const lists = schema('{"properties":{"l":{"items":{"properties":{"t":{"x-concord-secret":true}}}}}}');
  const listed = " | prod.a / x: the list around its secret value at l.0.t differs, so nobody knows which value belongs where";
  for (const [what, found, expected] of [
    ["equal", promoted([{ a: {} }, { "a/x": ['{"n":7.0}'] }], [{ a: {} }, { "a/x": ['{"n":7.0}'] }]), ""],
    ["configs", promoted([{ a: {} }, { "a/x": ['{"n":1}'], "a/y": ["{}"] }], [{ a: {} }, { "a/x": ['{"n":2}'], "a/z": ["{}"] }]), 'delete_config prod.a z @7; put_config prod.a x {"n":1} @7; create_config prod.a y {}'],
    ["what is not chosen", promoted([{ a: {} }, { "a/x": ['{"n":1}'], "a/y": ["{}"] }], [{ a: {} }, {}], false, ["a/x"]), "create_config prod.a y {}"],
    ["a definition that is missing", promoted([{ a: {} }, { "a/x": ["{}"] }], [{}, {}]), " | prod.a / x: its definition is missing in the target"],
    ["with definitions", promoted([{ a: { indexes: ["n"], unique: ["n"] } }, { "a/x": ["{}"] }], [{}, {}], true), "create_definition prod.a; create_config prod.a x {}; set_unique prod.a [n]"],
    ["but for one", promoted([{ a: {} }, { "a/x": ["{}"] }], [{}, {}], true, ["a"]), " | prod.a / x: its definition is missing in the target"],
    ["but for the one that marks it", promoted([{ a: { schema: marks } }, { "a/x": ['{"s":1}'] }], [{ a: {} }, {}], true, ["a"]), " | prod.a / x: s is secret in the source, and not in the target"],
    ["with the one that marks it", promoted([{ a: { schema: marks } }, { "a/x": ['{"s":1}'] }], [{ a: {} }, {}], true), 'set_schema prod.a @5; create_config prod.a x {"s":1}'],
    ["only in the target", promoted([{}, {}], [{ a: {} }, { "a/x": ["{}"] }], true), ""],
    ["a schema with its configs", promoted([{ a: { schema: marks } }, { "a/x": ['{"n":1}'] }], [{ a: {} }, { "a/x": ["{}"] }], true), 'set_schema prod.a @5 force; put_config prod.a x {"n":1} @7; set_schema prod.a'],
    ["a schema alone", promoted([{ a: { schema: marks } }, {}], [{ a: {} }, {}], true), "set_schema prod.a @5"],
    ["fewer unique fields", promoted([{ a: { indexes: ["n"], unique: ["n"] } }, {}], [{ a: { indexes: ["m", "n"], unique: ["m", "n"] } }, {}], true), "set_unique prod.a [n]; set_indexes prod.a"],
    ["a unique field without an index", promoted([{ a: { indexes: ["n"], unique: ["n"] } }, {}], [{ a: {} }, {}], true), "set_indexes prod.a @5 | prod.a: its new unique fields need an index first: promote it again when that is built"],
    ["a secret value that is seen", promoted([{ a: { schema: marks } }, { "a/x": ['{"s":1}'] }], [{ a: { schema: marks } }, { "a/x": ['{"s":2}'] }]), 'put_config prod.a x {"s":1} @7'],
    ["to where it is not secret", promoted([{ a: { schema: marks } }, { "a/x": ['{"s":1}'] }], [{ a: {} }, { "a/x": ['{"s":2}'] }]), " | prod.a / x: s is secret in the source, and not in the target"],
    ["one that is not seen", promoted([{ a: { schema: marks } }, { "a/x": ['{"s":null,"n":1}', "/s"] }], [{ a: { schema: marks } }, { "a/x": ['{"s":null}', "/s"] }]), `put_config prod.a x {"s":${keep},"n":1} @7 | prod.a / x keeps its own secret values at s`],
    ["and nothing else differs", promoted([{ a: { schema: marks } }, { "a/x": ['{"s":null}', "/s"] }], [{ a: { schema: marks } }, { "a/x": ['{"s":null}', "/s"] }]), ""],
    ["and there is none", promoted([{ a: { schema: marks } }, { "a/x": ['{"s":null}', "/s"] }], [{ a: { schema: marks } }, { "a/x": ["{}"] }]), " | prod.a / x: your key may not see its secret value at s, and the target has none there"],
    ["in a list that is the same", promoted([{ a: { schema: lists } }, { "a/x": ['{"l":[{"n":"a","t":null},{"n":"b","t":null}],"m":1}', "/l/0/t", "/l/1/t"] }], [{ a: { schema: lists } }, { "a/x": ['{"l":[{"n":"a","t":null},{"n":"b","t":null}]}', "/l/0/t", "/l/1/t"] }]),
      `put_config prod.a x {"l":[{"n":"a","t":${keep}},{"n":"b","t":${keep}}],"m":1} @7 | prod.a / x keeps its own secret values at l.0.t, l.1.t`],
    ["in a list of another order", promoted([{ a: { schema: lists } }, { "a/x": ['{"l":[{"n":"b","t":null},{"n":"a","t":null}]}', "/l/0/t", "/l/1/t"] }], [{ a: { schema: lists } }, { "a/x": ['{"l":[{"n":"a","t":null},{"n":"b","t":null}]}', "/l/0/t", "/l/1/t"] }]), listed],
    ["in a list with another element", promoted([{ a: { schema: lists } }, { "a/x": ['{"l":[{"n":"c","t":null}]}', "/l/0/t"] }], [{ a: { schema: lists } }, { "a/x": ['{"l":[{"n":"a","t":5}]}'] }]), listed],
    ["in a list, where the key sees those of the target", promoted([{ a: { schema: lists } }, { "a/x": ['{"l":[{"n":"a","t":null}],"m":1}', "/l/0/t"] }], [{ a: { schema: lists } }, { "a/x": ['{"l":[{"n":"a","t":5}]}'] }]),
      `put_config prod.a x {"l":[{"n":"a","t":${keep}}],"m":1} @7 | prod.a / x keeps its own secret values at l.0.t`],
    ["of a new one", promoted([{ a: { schema: marks } }, { "a/x": ['{"s":null}', "/s"] }], [{ a: { schema: marks } }, {}]), " | prod.a / x: it is new, and your key may not see its secret value at s"],
  ]) check(`promoted, ${what}: ${found}`, found === expected);
  const said = (method, path, body, query) => command({ method, path: `/change_request/${path}`, query, body: body && JSON.stringify(body) });
  check("commands of change requests", said("GET", "", undefined, [["phase", "open"], ["environment", "prod"]]) === "change list --phase open --env prod" && said("GET", "x", undefined, [["include", "preview"]]) === "change show x"
    && said("POST", "x/approve", { digest: "d" }) === "change approve x --digest d" && said("POST", "x/apply", { digest: "d" }) === "change apply x --digest d --yes" && said("POST", "", { title: "t" }) === null
    && said("POST", "x/pause", { comment: "why so" }) === "change pause x --comment 'why so'" && said("POST", "x/advance") === "change advance x");

  // A rule that the form shows is written back as it was; what it can't show it does not touch.
  for (const text of ['{"if":[{"==":[{"var":"country"},"de"]},"on",null]}', '{"if":[{"!=":[{"var":"a.b"},7.0]},"on"]}', '{"fractional":[["on",10],["off",90]]}', '{"if":[{"sem_ver":[{"var":"v"},"^","1.2"]},"on",{"<":[{"var":"n"},12345678901234567890123]},"off","on"]}',
    '{"if":[{"in":[{"var":"c"},["a,b",7.0,"7",true]]},"on",{"fractional":[["on",1],["off",2],["on",3]]}]}', '{"if":[{"in":["x",{"var":"c"}]},"on",{"starts_with":[{"var":"c"},""]},"off"]}']) check(`the form shows ${text}`, formOf(parse(text)) !== null && print(targetingOf(formOf(parse(text))), 0) === text);
  for (const text of ['{"$ref":"a"}', '{"if":[true,"on"]}', '{"if":[]}', '{"if":[{"==":["de",{"var":"c"}]},"on"]}', '{"if":[{"==":[{"var":["c","x"]},"de"]},"on"]}', '{"if":[{"==":[{"var":"c"},"de"]},true]}', '{"if":[{"==":[{"var":"c"},"de"]},"on",{"if":[]}]}', '{"contains":[{"var":"c"},"x"]}', '{"if":[{"contains":[{"var":"c"},"x"]},"on"]}',
    '{"fractional":["seed",["on",1]]}', '{"fractional":[["on",10.0]]}', '{"fractional":[["on",010]]}'.replace("010", "1e1"), '{"if":[{"==":[{"var":"c"},null]},"on"]}', '{"if":[{"==":[{"var":"c"},"de"],"x":1},"on"]}', '{"?:":[{"==":[{"var":"c"},"de"]},"on",null]}']) check(`the form does not show ${text}`, formOf(parse(text)) === null);
  check("no rule", targetingOf(formOf(undefined)) === undefined && targetingOf(formOf(new Map())) === undefined);
  const wholes = ['"a"', '"7"', "7.0", "true", '"true"', '""', '"a b"', '" x"', '"\\n"', "12345678901234567890", '"1.2.3"', '"[x"', '"\\"q"', '"-"', '"a,b"', '"a\u200b"', "null", '{"a":[1]}'];
  for (const text of wholes) check(`typed, ${text} is what it was`, identical(valueOf(typedValue(parse(text))) ?? null, parse(text)));
  for (const text of wholes.filter((text) => text.startsWith('"'))) check(`as a text, ${text} is what it was`, valueOf(typedValue(parse(text), "text"), "text") === parse(text));
  for (const text of wholes.slice(0, -2)) check(`in a list, ${text} is what it was`, identical(valueOf(typedValue([parse(text), "z", parse(text)], "list"), "list"), [parse(text), "z", parse(text)]));
  check("nothing typed is no value", [valueOf(""), valueOf(" "), valueOf('"a'), valueOf("[1"), valueOf("", "list"), valueOf("", "text")].every((value) => value === undefined) && valueOf("1.2.3") === "1.2.3");
  const flag = parse('{"x":7.0,"state":"ENABLED","variants":{"a/b":1,"on":true,"off":false},"defaultVariant":"off","targeting":{"$ref":"a"}}');
  check("a switch changes what it says", patchOf(flag, switched(flag, true, false)) === '[{"op":"add","path":"/defaultVariant","value":"on"}]' && patchOf(flag, switched(flag, false, true)) === '[{"op":"remove","path":"/targeting"}]' && patchOf(flag, switched(flag, false, false)) === null);
  check("a patch names what differs", patchOf(flag, put(put(put(flag, ["variants", "a/b"], undefined), ["variants", "n"], new Num("7.0")), ["state"], "DISABLED")) === '[{"op":"remove","path":"/variants/a~1b"},{"op":"add","path":"/variants/n","value":7.0},{"op":"add","path":"/state","value":"DISABLED"}]');
  check("what a flag serves", [newFlag(true), newFlag(false), flag, put(flag, ["state"], "DISABLED"), put(flag, ["defaultVariant"], "x"), put(flag, ["defaultVariant"], "a/b"), put(flag, ["defaultVariant"], undefined), put(flag, ["state"], "?"), null].map((data) => served(data).text).join() === "on,off,off,disabled,x is missing,a/b,program's default,can't be read,can't be read" && served(flag).hasRule && !served(newFlag(true)).hasRule);
  check("definitions of flags", definitionsOf(["a.flags", "flagship", "flags", "a.b.flags", "Z.flags", "my-flags"]).join() === "flags,Z.flags,a.flags");
  check("the command of an evaluation", command({ method: "POST", path: "/flags/prod.flags/ofrep/v1/evaluate/flags/beta", body: '{"context":{"targetingKey":"ada","country":"de","age":7.0}}' }) === "flag eval beta --definition prod.flags --for ada --attribute country=de --attribute age:=7.0");

  // Contents with random changes: what one side changed is taken, what both changed alike is no conflict.
  const content = (depth) => {
    if (depth === 0 || random(3) === 0) return [new Num(String(random(4))), "xyz"[random(3)], true, null][random(4)];
    if (random(3) === 0) return Array.from({ length: random(4) }, () => content(depth - 1));
    return new Map(Array.from({ length: random(5) }, () => ["abcdef"[random(6)], content(depth - 1)]));
  };
  const object = () => new Map(["a", "b", "c", "d"].map((name) => [name, content(2)]));
  for (let turn = 0; turn < 3000; turn += 1) {
    const [base, other] = [object(), object()];
    const apply = (value) => differences(base, other).filter(() => random(2)).reduceRight((all, change) => put(all, change.path, change.new), value);
    const [mine, theirs] = [apply(base), apply(base)];
    const places = threeWay(base, mine, theirs);
    const take = (side) => merged(theirs, places, places.map(() => side));
    check("all of mine", same(take("mine"), mine));
    check("all of theirs", same(take("theirs"), theirs));
    check("changes taken from one source never conflict at one place", places.filter((place) => place.conflict).every((place) => !same(place.mine, place.theirs)));
    check("what is shared is written as it was, and what is alike is the same", identical(share(base, mine), mine) && share(base, parse(print(base))) === base);
    check("no place lies in another", places.every((one, i) => places.every((two, j) => i === j || !one.path.every((part, k) => part === two.path[k]))));
    for (const place of places) check("the value at a place", same(at(mine, place.path), place.mine) || place.mine === undefined);
    if (wrong.length > 5) break;
  }
  return wrong;
}
