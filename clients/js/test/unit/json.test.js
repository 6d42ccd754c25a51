import assert from "node:assert/strict";
import { test } from "node:test";
import { runInNewContext } from "node:vm";
import { ExactNumber, parse, stringify } from "../../src/json.js";

test("numbers that JavaScript can't hold keep their digits, all others are plain", () => {
  const text = '{"big":123456789012345678901234567890,"long":0.12345678901234567891,"huge":1e400,"plain":7.5,"many":12345678901234.5,"exp":1.5e10,"safe":9007199254740991,"zero":-0.0}';
  const value = parse(text);
  for (const name of ["big", "long", "huge"]) assert.ok(value[name] instanceof ExactNumber, name);
  for (const name of ["plain", "many", "exp", "safe", "zero"]) assert.equal(typeof value[name], "number", name);
  assert.equal(value.big.toBigInt(), 123456789012345678901234567890n);
  assert.equal(value.exp, 1.5e10);
  assert.ok(Object.is(value.zero, -0));
  assert.equal(
    stringify(value),
    '{"big":123456789012345678901234567890,"long":0.12345678901234567891,"huge":1e400,"plain":7.5,"many":12345678901234.5,"exp":15000000000,"safe":9007199254740991,"zero":-0.0}',
  );
});

test("the reader of such texts reads what JSON.parse reads", () => {
  const seen = [
    "[]", "{}", "[1,[2,{}],\"\"]", '{"a":{"b":[true,false,null]},"c":"\\u0041\\n\\"\\\\/"}', ' { "a" : [ 1 , 2 ] } ', '{"x":"\ud83d\ude00"}', '{"a":1,"a":2}',
  ];
  for (const text of seen) {
    // The number makes the text one that the exact reader reads.
    const both = `[1e0,${text}]`;
    assert.deepEqual(parse(both), JSON.parse(both), text);
  }
  for (const text of ["[1e0", "[1e0,]", '{"a":1e0,}', "{a:1e0}", "[1e0] 2", "[01e0]", "[1e0 2]", '["\n",1e0]', "[+1e0]", "[.5e1]", "[1e0,tru]"]) {
    assert.throws(() => parse(text), SyntaxError, text);
  }
  assert.deepEqual(Object.keys(parse('{"__proto__":1e0}')), ["__proto__"]);
});

test("what JSON can't say is an error and not null", () => {
  for (const value of [NaN, Infinity, { a: [-Infinity] }, undefined]) assert.throws(() => stringify(value), TypeError);
  assert.equal(stringify({ b: 2n ** 70n, c: new Date(0), d: [null] }), '{"b":1180591620717411303424,"c":"1970-01-01T00:00:00.000Z","d":[null]}');
});

test("nothing of a value is left out or changed unseen: what JSON can't say is named with its place", () => {
  class Limits { plan = "free"; }
  const hole = [1, , 2];
  const cases = [
    [{ plans: new Map([["a", 1]]) }, "an instance of Map is no JSON, at `/plans`"],
    [{ a: [{ "b/c~d": new Set() }] }, "an instance of Set is no JSON, at `/a/0/b~1c~0d`"],
    [{ a: undefined, b: 1 }, "undefined is no JSON, at `/a`"],
    [[undefined], "undefined is no JSON, at `/0`"],
    [{ hole }, "undefined is no JSON, at `/hole/1`"],
    [{ a: () => 1 }, "a function is no JSON, at `/a`"],
    [{ a: Symbol("s") }, "a symbol is no JSON, at `/a`"],
    [{ bytes: new Uint8Array(2) }, "an instance of Uint8Array is no JSON, at `/bytes`"],
    [{ buffer: new ArrayBuffer(2) }, "an instance of ArrayBuffer is no JSON, at `/buffer`"],
    [{ a: new Limits() }, "an instance of Limits is no JSON, at `/a`"],
    [{ a: Object.create({ plan: "free" }) }, "an instance of Object is no JSON, at `/a`"],
    [{ a: /x/ }, "an instance of RegExp is no JSON, at `/a`"],
    [{ a: new Error("x") }, "an instance of Error is no JSON, at `/a`"],
    [{ a: new Number(5) }, "an instance of Number is no JSON, at `/a`"],
    [{ a: Promise.resolve(1) }, "an instance of Promise is no JSON, at `/a`"],
    [{ a: new Date(NaN) }, "an invalid Date is no JSON, at `/a`"],
    [{ a: { toJSON: () => undefined } }, "undefined is no JSON, at `/a`"],
    [{ a: [1, NaN] }, "NaN is no JSON, at `/a/1`"],
  ];
  for (const [value, told] of cases) assert.throws(() => stringify(value), (error) => error instanceof TypeError && error.message.startsWith(told), told);
  class Money { toJSON() { return { cents: 5n }; } }
  const bare = Object.assign(Object.create(null), { a: 1 });
  const foreign = runInNewContext('({ a: [1], b: {} })');
  assert.equal(stringify([bare, foreign, new Money(), new URL("http://a/"), Object.freeze({ x: -0 })]), '[{"a":1},{"a":[1],"b":{}},{"cents":5},"http://a/",{"x":-0.0}]');
});

test("what JSON has is written as JSON.stringify writes it", () => {
  for (const value of [null, true, "", "\u2028\ud800\"", 0, 1e21, 1e-7, -1.5, [], {}, [[], [null]], { 2: "a", 1: { b: [] }, "": 0 }]) {
    assert.equal(stringify(value), JSON.stringify(value));
  }
});
