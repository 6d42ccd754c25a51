// Cases for crates/flags/tests/oracle.rs, one JSON object a line, with what @openfeature/flagd-core makes of each:
//
//     node flags-oracle.mjs MODULES [COUNT] [SEED]
//
// MODULES is the folder with node_modules. A case has a flag, a context, and the variant, the reason or the error.
// Run by flags-oracle.sh, which installs the package.

import { createRequire } from 'node:module';
import { writeSync } from 'node:fs';

const [modules, count = '5000', seed = '1'] = process.argv.slice(2);
const { FlagdCore } = createRequire(`${modules}/`)('@openfeature/flagd-core');
const quiet = { error() {}, warn() {}, info() {}, debug() {} };

// xorshift32: the same cases for the same seed, on every machine.
let state = (Number(seed) * 2654435761) >>> 0 || 1;
const next = () => {
    state ^= state << 13; state >>>= 0;
    state ^= state >>> 17;
    state ^= state << 5; state >>>= 0;
    return state;
};
const below = (n) => next() % n;
const pick = (items) => items[below(items.length)];
const chance = (percent) => below(100) < percent;

const NAMES = ['on', 'off', 'red', 'blue', '1', '2', 'true', 'false'];
const PATHS = ['email', 'country', 'age', 'tier', 'groups', 'user.name', 'user.tags', 'version', 'targetingKey', 'beta',
    'score', 'missing', '$flagd.flagKey', 'groups.0', 'user'];
const TEXTS = ['a@example.com', 'b@corp.org', 'de', 'fr', 'gold', 'x', '', 'é', '1', '2.5', '1.2.3', '2.0.0-rc.1', 'on', 'off', 'abcxyz'];
const VERSIONS = ['1.2.3', 'v1.2.3', '2', '2.1', '1.0.0-alpha', '1.0.0-alpha.2', '1.0.0+b', '01.2.3', 'x', '1.2.3.4', 'V3', '10.0.0'];
const number = () => pick([0, 1, 2, 3, 10, 18, 42, -1, -5, 0.5, 2.5, 100, 1e6, 1234567]);
const text = () => pick(TEXTS);
const scalar = () => pick([text, text, number, () => chance(50), () => null])();

const path = () => ({ var: chance(15) ? [pick(PATHS), scalar()] : chance(30) ? [pick(PATHS)] : pick(PATHS) });
const value = (depth) => (depth <= 0 || chance(35) ? (chance(55) ? path() : scalar()) : pick(VALUES)(depth - 1));
const bool = (depth) => (depth <= 0 ? pick([path, () => chance(50)])() : pick(BOOLS)(depth - 1));
const list = (depth) => pick([() => ({ var: 'groups' }), () => ({ var: 'user.tags' }), () => [text(), text(), number()], () => [],
    () => ({ merge: [value(depth - 1), { var: 'groups' }] })])();

const BOOLS = [
    (d) => ({ '==': [value(d), value(d)] }), (d) => ({ '===': [value(d), value(d)] }),
    (d) => ({ '!=': [value(d), value(d)] }), (d) => ({ '!==': [value(d), value(d)] }),
    (d) => ({ [pick(['<', '<=', '>', '>='])]: [value(d), value(d)] }),
    (d) => ({ [pick(['<', '<='])]: [number(), path(), number()] }),
    (d) => ({ and: [bool(d), bool(d)] }), (d) => ({ or: [bool(d), bool(d)] }), (d) => ({ '!': [bool(d)] }), (d) => ({ '!!': [value(d)] }),
    (d) => ({ in: [value(d), chance(50) ? list(d) : text()] }),
    () => ({ in: [path(), [text(), text(), number()]] }),
    () => ({ starts_with: [path(), text()] }), () => ({ ends_with: [path(), text()] }),
    () => ({ sem_ver: [chance(60) ? { var: 'version' } : pick(VERSIONS), pick(['=', '!=', '<', '<=', '>', '>=', '^', '~', '==']), pick(VERSIONS)] }),
    (d) => ({ [pick(['some', 'all', 'none'])]: [list(d), { '==': [{ var: '' }, scalar()] }] }),
];
const VALUES = [
    (d) => ({ if: [bool(d), value(d), value(d)] }), (d) => ({ cat: [value(d), value(d)] }),
    (d) => ({ [pick(['+', '-', '*'])]: [number(), chance(60) ? path() : number()] }),
    () => ({ '%': [pick([7, 10, 42]), pick([2, 3, 5])] }), () => ({ '/': [pick([7, 10, 42]), pick([2, 4, 5])] }),
    () => ({ [pick(['max', 'min'])]: [number(), number(), { var: 'age' }] }),
    () => ({ substr: [text(), pick([0, 1, -2]), pick([1, 2, -1])] }),
    (d) => ({ reduce: [{ var: 'groups' }, { cat: [{ var: 'accumulator' }, { var: 'current' }] }, ''] }),
    () => ({ missing: [pick(PATHS), pick(PATHS)] }),
    (d) => bool(d),
];
const variant = (d) => (chance(12) ? value(d) : chance(10) ? null : pick(NAMES));
const buckets = () => Array.from({ length: 1 + below(4) }, () =>
    chance(15) ? [pick(NAMES)] : [chance(5) ? path() : pick(NAMES), chance(4) ? pick([-1, 0, 1.5, '5', null, 3e9]) : below(100)]);
const fractional = () => ({ fractional: pick([
    () => buckets(), () => [{ var: 'targetingKey' }, ...buckets()], () => [{ cat: [{ var: '$flagd.flagKey' }, { var: 'email' }] }, ...buckets()],
    () => [path(), ...buckets()] ])() });
const rule = (depth) => pick([
    () => ({ if: [bool(depth), variant(depth), variant(depth)] }),
    () => ({ if: [bool(depth), variant(depth), bool(depth), chance(30) ? fractional() : variant(depth), variant(depth)] }),
    () => ({ if: [bool(depth), variant(depth)] }),
    fractional, fractional,
    () => ({ if: [bool(depth), fractional(), variant(depth)] }),
    () => value(depth + 1),
    () => (chance(8) ? { no_such_operator: [1] } : { if: [bool(depth), 'on', 'off'] }),
])();

const variants = () => {
    const made = {};
    for (const name of NAMES) if (chance(75)) made[name] = name;
    made.on = true;
    return made;
};
const flag = () => {
    const made = { state: chance(94) ? 'ENABLED' : 'DISABLED', variants: variants() };
    if (chance(85)) made.defaultVariant = pick(Object.keys(made.variants));
    else if (chance(50)) made.defaultVariant = null;
    if (chance(95)) {
        const targeting = rule(1 + below(4));
        if (targeting && typeof targeting === 'object' && !Array.isArray(targeting)) made.targeting = targeting;
    }
    return made;
};
const context = () => {
    const made = {};
    if (chance(85)) made.targetingKey = `user-${below(100000)}`;
    if (chance(60)) made.email = text();
    if (chance(50)) made.country = pick(['de', 'fr', 'us']);
    if (chance(60)) made.age = number();
    if (chance(40)) made.tier = pick(['gold', 'free', null]);
    if (chance(50)) made.groups = Array.from({ length: below(4) }, scalar);
    if (chance(40)) made.user = { name: text(), tags: [text(), text()] };
    if (chance(50)) made.version = chance(90) ? pick(VERSIONS) : number();
    if (chance(40)) made.beta = chance(50);
    if (chance(30)) made.score = scalar();
    return made;
};

const resultOf = (made, core, ctx) => {
    const found = core.getFlag('flag');
    if (made.state === 'DISABLED') return { reason: 'DISABLED' };
    const result = found.evaluate(ctx, quiet);
    if (result.errorCode) return { error: result.errorCode };
    if (result.value === undefined) return { reason: result.reason };
    return { variant: result.variant, reason: result.reason };
};

// Rules are compiled to JavaScript by default, and interpreted where that is not allowed. The two differ.
const evaluated = (made, ctx, options) => {
    const core = new FlagdCore(undefined, quiet, options);
    core.setConfigurations(JSON.stringify({ flags: { flag: made } }));
    return resultOf(made, core, ctx);
};

let lines = '';
for (let i = 0; i < Number(count); i += 1) {
    const [made, ctx] = [flag(), context()];
    const result = evaluated(made, ctx, {});
    const interpreted = evaluated(made, ctx, { disableDynamicCodeGeneration: true });
    lines += `${JSON.stringify({ flag: made, context: ctx, result, interpreted })}\n`;
    if (lines.length > 1 << 20) {
        writeSync(1, lines);
        lines = '';
    }
}
writeSync(1, lines);
