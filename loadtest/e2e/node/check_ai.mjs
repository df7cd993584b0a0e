// The Vercel AI SDK with three of its providers, one of them on two APIs.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, stepCountIs, streamText, tool } from "ai";
import { readFileSync } from "node:fs";
import { z } from "zod";
import { CALL, QUESTION, RESULT, Steps, check, finish, gateway, model, report, system } from "./steps.mjs";

const Place = z.object({ name: z.string(), depth: z.int() });
const openai = createOpenAI({ baseURL: gateway + "/v1", apiKey: "none" });
const compatible = createOpenAICompatible({ name: "tandem", baseURL: gateway + "/v1", apiKey: "none", includeUsage: true, supportsStructuredOutputs: true });
const anthropic = createAnthropic({ baseURL: gateway + "/v1", apiKey: "none" });

async function drive(api, provider, providerOptions) {
  const steps = new Steps(api);
  const base = { instructions: system(api), maxRetries: 0, maxOutputTokens: 300, providerOptions };
  const asked = { ...base, model: provider(model), messages: [{ role: "user", content: QUESTION }] };
  const whole = await steps.run("create", async () => {
    const { text } = await generateText(asked);
    check(text, "no text");
    return text;
  });
  // streamText gives errors to onError and goes on.
  const stream = async (request) => {
    let failed;
    const result = streamText({ ...request, onError: ({ error }) => (failed = error) });
    let text = "";
    for await (const delta of result.textStream) text += delta;
    if (failed) throw failed;
    return { text, steps: await result.steps, messages: (await result.response).messages };
  };
  await steps.run("stream", async () => {
    const { text } = await stream(asked);
    check(text === whole, "streamed", text, "created", whole);
  });
  const seen = [];
  const tide = tool({ description: "The tide.", inputSchema: z.object({ at: z.string() }), execute: async ({ at }) => (seen.push(at), RESULT) });
  const messages = [{ role: "user", content: CALL }];
  const loop = async () => {
    const result = await stream({ ...base, model: provider(model), messages, tools: { tide }, stopWhen: stepCountIs(5), maxOutputTokens: 300 });
    check(result.text, result.steps);
    messages.push(...result.steps.flatMap((step) => step.response.messages).filter((m, i, all) => all.indexOf(m) === i));
    return result.steps.map((step) => step.usage);
  };
  const count = (usages) => usages.forEach((u) => steps.cached(u.inputTokens, u.inputTokenDetails?.cacheReadTokens ?? u.cachedInputTokens));
  await steps.run("tools", async () => {
    const usages = await loop();
    check(seen.join() === "noon" && usages.length === 2, seen, usages);
    count(usages.slice(1));
  });
  await steps.turns(messages, async () => count(await loop()));
  await steps.run("structured", async () => {
    const { output } = await generateText({ ...asked, maxOutputTokens: 1500, output: Output.object({ schema: Place }) });
    check(Place.safeParse(output).success, output);
  });
  // The SDK keeps a temperature within what the API allows, but not top_p.
  const create = ({ stream: streamed, model: named, temperature, ...more }) => (streamed ? stream(asked) : generateText({ ...asked, ...more, topP: temperature, model: provider(named ?? model) }));
  const status = (code) => (e) => APICallError.isInstance(e) && e.statusCode === code;
  await steps.refused(create, status(404), status(400), (e) => e instanceof Error, { maxOutputTokens: 10_000_000 });
}

const { version } = JSON.parse(readFileSync(new URL("node_modules/ai/package.json", import.meta.url)));
report({ version });
await drive("chat, by openai-compatible", (m) => compatible(m));
await drive("chat, by openai", (m) => openai.chat(m));
// Nothing is kept, so nothing can be referred to.
await drive("responses, by openai", (m) => openai.responses(m), { openai: { store: false } });
await drive("messages, by anthropic", (m) => anthropic(m));
await finish();
