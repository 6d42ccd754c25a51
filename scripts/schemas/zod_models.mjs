// Models as users of zod write them, their schemas, and zod's verdict on documents.
//
//     node zod_models.mjs schemas                      {name: schema} on standard output
//     node zod_models.mjs verdicts < documents         a line [accepted, [error codes]] for each line [name, text]
//
// Those of version 3 have their schemas from zod-to-json-schema, those of version 4 from zod itself, which has it in the
// same package.
import { createInterface } from "node:readline";
import { z } from "zod";
import * as z4 from "zod/v4";
import { zodToJsonSchema } from "zod-to-json-schema";

const Cat = z.object({ kind: z.literal("cat"), lives: z.number().int() });
const Dog = z.object({ kind: z.literal("dog"), tag: z.string().nullable() });
const service = z.object({
  name: z.string().min(1).max(255).regex(/^(?!-)[a-z0-9-]+$/), mail: z.string().email(), url: z.string().url().optional(),
  id: z.union([z.number().int(), z.string()]), zip: z.string().nullable(), pet: z.discriminatedUnion("kind", [Cat, Dog]),
  owner: z.object({ team: z.string(), since: z.string().datetime() }).nullable(), tags: z.array(z.string()).optional(),
  tier: z.enum(["gold", "silver"]), limits: z.record(z.number()), any: z.any(),
});
const Rule = z.lazy(() => z.discriminatedUnion("op", [
  z.object({ op: z.literal("is"), field: z.string() }),
  z.object({ op: z.literal("and"), args: z.array(Rule) }),
  z.object({ op: z.literal("or"), args: z.array(Rule) }),
]));
const limits = z.object({
  requests: z.number().int().min(0).max(1000), burst: z.number().gt(0).lt(100).default(10), step: z.number().multipleOf(0.5).optional(),
  window: z.enum(["second", "minute"]).default("second"), exempt: z.array(z.string().min(1)).min(1).max(3).optional(),
  mode: z.literal("soft").or(z.literal("hard")).nullish(), weights: z.array(z.number()).nonempty().optional(),
}).strict();
const shapes = z.object({
  point: z.tuple([z.number(), z.number()]).rest(z.string()), ids: z.array(z.string()).max(4).optional(),
  byRegion: z.record(z.string().regex(/^[a-z]{2}$/), z.object({ weight: z.number(), zones: z.array(z.string()) })),
  matrix: z.array(z.array(z.number().int())).optional(), nothing: z.null(), yes: z.boolean(),
}).catchall(z.number());
const texts = z.object({
  id: z.string().uuid(), cuid: z.string().cuid().optional(), host: z.string().ip({ version: "v4" }).optional(), six: z.string().ip({ version: "v6" }).optional(),
  day: z.string().date().optional(), at: z.string().datetime({ offset: true }).optional(), begins: z.string().startsWith("a-").optional(),
  ends: z.string().endsWith(".json").optional(), has: z.string().includes("x").optional(), packed: z.string().base64().optional(),
});
const Colors = { Red: "red", Blue: "blue", None: 0 };
const merged = z.intersection(z.object({ name: z.string() }), z.object({ color: z.nativeEnum(Colors), size: z.number().nullish() }));
const TreeOf = z.object({ value: z.number(), left: z.lazy(() => TreeOf).nullable(), right: z.lazy(() => TreeOf).optional() });

const texts4 = z4.object({
  mail: z4.email(), id: z4.uuid().optional(), url: z4.url().optional(), day: z4.iso.date().optional(), at: z4.iso.datetime().optional(),
  time: z4.iso.time().optional(), took: z4.iso.duration().optional(), four: z4.ipv4().optional(), six: z4.ipv6().optional(),
  range: z4.cidrv4().optional(), packed: z4.base64().optional(), phone: z4.e164().optional(), smile: z4.emoji().optional(),
  short: z4.nanoid().optional(), ulid: z4.ulid().optional(),
});
const numbers4 = z4.strictObject({
  port: z4.int().min(1).max(65535), ratio: z4.number().gte(0).lte(1).optional(), small: z4.int32().optional(), real: z4.float32().optional(),
  byTier: z4.record(z4.enum(["gold", "silver"]), z4.number()), other: z4.record(z4.string(), z4.union([z4.string(), z4.boolean()])).optional(),
  size: z4.templateLiteral([z4.number(), z4.enum(["px", "em"])]).optional(),
});
const Category = z4.object({ name: z4.string(), get parent() { return z4.nullable(Category).optional(); }, get children() { return z4.array(Category); } });
const events4 = z4.object({
  event: z4.discriminatedUnion("type", [
    z4.object({ type: z4.literal("click"), x: z4.number(), y: z4.number() }),
    z4.object({ type: z4.literal(["key", "paste"]), text: z4.string().max(10) }),
    z4.looseObject({ type: z4.literal("other"), code: z4.union([z4.int(), z4.null()]) }),
  ]),
  source: z4.string().nullable(), retries: z4.int().nonnegative().nullish(), note: z4.string().optional(),
});
const mixed4 = z4.object({
  value: z4.union([z4.string(), z4.number(), z4.boolean(), z4.null()]), pair: z4.tuple([z4.string(), z4.int()]), list: z4.array(z4.union([z4.int(), z4.string()])).min(1),
  both: z4.intersection(z4.object({ a: z4.string() }), z4.object({ b: z4.number() })).optional(), map: z4.partialRecord(z4.enum(["x", "y"]), z4.int()).optional(), any: z4.any().optional(),
});

const three = { service, rules: z.object({ rule: Rule }), limits, shapes, texts, merged, tree: TreeOf };
const four = { texts4, numbers4, category4: Category, events4, mixed4 };
const models = { ...three, ...four };

// What an issue is about; of a format its name.
const named = (issue) => [issue.code, issue.validation ?? issue.format ?? issue.origin ?? issue.type ?? issue.expected].filter((part) => typeof part === "string").join(":");

if (process.argv[2] === "schemas") {
  const schemas = Object.entries(three).map(([name, model]) => [name, zodToJsonSchema(model)]);
  // What a caller may send is the input: members with a default may be left out.
  schemas.push(...Object.entries(four).map(([name, model]) => [name, z4.toJSONSchema(model, { io: "input" })]));
  console.log(JSON.stringify(Object.fromEntries(schemas)));
} else {
  for await (const line of createInterface({ input: process.stdin })) {
    const [name, text] = JSON.parse(line);
    const result = models[name].safeParse(JSON.parse(text));
    const codes = result.success ? [] : [...new Set(result.error.issues.map(named))].sort();
    process.stdout.write(JSON.stringify([result.success, codes]) + "\n");
  }
}
