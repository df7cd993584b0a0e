// The official anthropic SDK.
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { VERSION } from "@anthropic-ai/sdk/version";
import { z } from "zod";
import { CALL, QUESTION, RESULT, Steps, check, consume, finish, gateway, model, report, system, timeout } from "./steps.mjs";

const client = new Anthropic({ baseURL: gateway, apiKey: "none", maxRetries: 0, timeout });
const steps = new Steps("messages");
const Place = z.object({ name: z.string(), depth: z.int() });
const tools = [{ name: "tide", description: "The tide.", input_schema: { type: "object", properties: { at: { type: "string" } }, required: ["at"] } }];
const rules = [{ type: "text", text: system("messages"), cache_control: { type: "ephemeral" } }];
const asked = { model, system: rules, messages: [{ role: "user", content: QUESTION }], max_tokens: 300 };

async function create(more) {
  const answer = await client.messages.create({ ...asked, ...more });
  return more?.stream ? consume(answer) : answer;
}

report({ version: VERSION });
const whole = await steps.run("create", async () => {
  const answer = await create();
  check(answer.content.at(-1).text && answer._request_id, answer);
  return answer.content.at(-1).text;
});
await steps.run("stream", async () => {
  let deltas = "";
  const stream = client.messages.stream(asked);
  stream.on("text", (delta) => (deltas += delta));
  const final = await stream.finalMessage();
  check(final.content.at(-1).text === deltas && deltas === whole, "streamed", deltas, "created", whole);
});
const messages = [{ role: "user", content: CALL }];
const promptOf = (usage) => usage.input_tokens + (usage.cache_read_input_tokens ?? 0) + (usage.cache_creation_input_tokens ?? 0);
async function turn() {
  const final = await client.messages.stream({ model, system: rules, messages, tools, max_tokens: 300 }).finalMessage();
  messages.push({ role: "assistant", content: final.content });
  return final;
}
async function later() {
  const final = await turn();
  check(final.content.at(-1).text && final.stop_reason === "end_turn", final);
  steps.cached(promptOf(final.usage), final.usage.cache_read_input_tokens);
  return promptOf(final.usage);
}
let counts;
await steps.run("tools", async () => {
  const call = (await turn()).content.at(-1);
  check(call.type === "tool_use" && call.name === "tide" && call.input.at === "noon", call);
  messages.push({ role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: RESULT }] });
  const counted = await client.messages.countTokens({ model, system: rules, messages, tools });
  counts = [counted.input_tokens, await later()];
});
await steps.turns(messages, later);
await steps.run("agent", async () => {
  const seen = [];
  const tide = betaZodTool({ name: "tide", description: "The tide.", inputSchema: z.object({ at: z.string() }), run: ({ at }) => (seen.push(at), RESULT) });
  const final = await client.beta.messages.toolRunner({ model, system: rules, max_tokens: 300, tools: [tide], messages: [{ role: "user", content: CALL }] });
  check(seen.join() === "noon" && final.content.at(-1).text, seen, final);
});
await steps.run("structured", async () => {
  const answer = await client.messages.parse({ ...asked, max_tokens: 1500, output_config: { format: zodOutputFormat(Place) } });
  check(Place.safeParse(answer.parsed_output).success, answer);
});
await steps.run("count", () => check(counts && counts[0] === counts[1], "counted and used:", counts));
await steps.refused(
  create,
  (e) => e instanceof Anthropic.NotFoundError,
  (e) => e instanceof Anthropic.BadRequestError,
  (e) => e instanceof Anthropic.AnthropicError || e instanceof TypeError,
  { max_tokens: 10_000_000 },
);
await finish();
