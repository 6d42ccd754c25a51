// What the console's own modules promise, run inside the page by scripts/console-test.py: numbers and members come back
// as they were written, texts that are no JSON are refused where the browser refuses them, two people's changes to one
// content are put together.
async (seed) => {
  const { parse, print, same, identical, share, put, at, locate, indexPath, indexed, Num } = await import("./lib/json.js");
  const { differences, threeWay, merged } = await import("./lib/compare.js");
  const { batchBody, itemsByChange } = await import("./lib/together.js");
  const { plain, hints } = await import("./lib/format.js");
  const { initial, kindPlace, kinds, resolve, scalars } = await import("./lib/schema.js");
  const { keepingUnnamed, masked } = await import("./lib/secrets.js");
  const { placed, strayed } = await import("./lib/elements.js");
  const { measures } = await import("./lib/health.js");
  const { since } = await import("./lib/usage.js");
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
