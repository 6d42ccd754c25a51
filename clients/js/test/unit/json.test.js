import assert from "node:assert/strict";
import { test } from "node:test";
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
  assert.equal(stringify({ a: undefined, b: 2n ** 70n, c: new Date(0), d: [undefined] }), '{"b":1180591620717411303424,"c":"1970-01-01T00:00:00.000Z","d":[null]}');
});
