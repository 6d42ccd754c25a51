// Evaluates flags with the OpenFeature SDK and the OFREP provider for Node.js, as check.py asks.

import { createInterface } from "node:readline";
import { OFREPProvider } from "@openfeature/ofrep-provider";
import { OpenFeature } from "@openfeature/server-sdk";

const { OFREP_ENDPOINT, CONCORD_API_KEY } = process.env;
// Without a limit of one's own the provider waits as long as fetch does.
const fetchImplementation = (request) => fetch(request, { signal: AbortSignal.timeout(10_000) });
const headers = { Authorization: `Bearer ${CONCORD_API_KEY}` };
await OpenFeature.setProviderAndWait(new OFREPProvider({ baseUrl: OFREP_ENDPOINT, headers, fetchImplementation }));
const client = OpenFeature.getClient();
const ask = {
  boolean: client.getBooleanDetails,
  string: client.getStringDetails,
  integer: client.getNumberDetails,
  float: client.getNumberDetails,
  object: client.getObjectDetails,
};

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  const found = await ask[asked.type].call(client, asked.flag, asked.default, asked.context);
  const { value, variant, reason, errorCode } = found;
  console.log(JSON.stringify({ value, variant: variant ?? null, reason, error: errorCode ?? null }));
}
