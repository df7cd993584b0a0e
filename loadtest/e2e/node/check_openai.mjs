// The official openai SDK on chat, completions and Responses.
import OpenAI from "openai";
import { zodFunction, zodResponsesFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { VERSION } from "openai/version";
import { z } from "zod";
import { CALL, QUESTION, RESULT, Steps, check, config, consume, finish, gateway, model, report, system, timeout } from "./steps.mjs";

const client = new OpenAI({ baseURL: gateway + "/v1", apiKey: "none", maxRetries: 0, timeout });
const Place = z.object({ name: z.string(), depth: z.int(), tags: z.array(z.string()) });
const Tide = z.object({ at: z.string() });
const errors = [(e) => e instanceof OpenAI.NotFoundError, (e) => e instanceof OpenAI.BadRequestError, (e) => e instanceof OpenAI.APIError || e instanceof TypeError];

async function chat() {
  const steps = new Steps("chat");
  const start = [{ role: "system", content: system("chat") }];
  const asked = [...start, { role: "user", content: QUESTION }];
  const create = async (more) => {
    const answer = await client.chat.completions.create({ model, messages: asked, max_tokens: 300, ...more });
    return more?.stream ? consume(answer) : answer;
  };
  const whole = await steps.run("create", async () => {
    const text = (await create()).choices[0].message.content;
    check(text, "no text");
    return text;
  });
  await steps.run("stream", async () => {
    let deltas = "";
    const stream = client.chat.completions.stream({ model, messages: asked, max_tokens: 300, stream_options: { include_usage: true } });
    stream.on("content", (delta) => (deltas += delta));
    const final = await stream.finalChatCompletion();
    check(final.choices[0].message.content === deltas && deltas === whole, "streamed", deltas, "created", whole);
    check(final.usage.completion_tokens > 0, "no usage");
  });
  const tools = [zodFunction({ name: "tide", parameters: Tide })];
  const messages = [...start, { role: "user", content: CALL }];
  const turn = async () => {
    const final = await client.chat.completions.stream({ model, messages, tools, max_tokens: 300, stream_options: { include_usage: true } }).finalChatCompletion();
    messages.push(final.choices[0].message);
    return final;
  };
  const later = async () => {
    const final = await turn();
    check(final.choices[0].message.content && final.choices[0].finish_reason === "stop", final);
    steps.cached(final.usage.prompt_tokens, final.usage.prompt_tokens_details?.cached_tokens);
  };
  await steps.run("tools", async () => {
    const call = (await turn()).choices[0].message.tool_calls[0];
    check(call.function.name === "tide" && call.function.parsed_arguments.at === "noon", call);
    messages.push({ role: "tool", tool_call_id: call.id, content: RESULT });
    await later();
  });
  await steps.turns(messages, later);
  await steps.run("agent", async () => {
    const seen = [];
    const tide = zodFunction({ name: "tide", parameters: Tide, function: ({ at }) => (seen.push(at), RESULT) });
    const runner = client.chat.completions.runTools({ model, messages: [...start, { role: "user", content: CALL }], tools: [tide], max_tokens: 300, stream: true });
    const text = await runner.finalContent();
    check(seen.join() === "noon" && text, seen, text);
  });
  await steps.run("structured", async () => {
    const answer = await client.chat.completions.parse({ model, messages: asked, response_format: zodResponseFormat(Place, "place"), max_tokens: 1500 });
    check(Place.safeParse(answer.choices[0].message.parsed).success, answer);
  });
  await steps.refused(create, ...errors, { max_tokens: 10_000_000 });
}

async function completions() {
  const steps = new Steps("completions");
  const prompt = system("completions");
  const create = async (more) => {
    const answer = await client.completions.create({ model, prompt, max_tokens: 40, ...more });
    return more?.stream ? consume(answer) : answer;
  };
  const whole = await steps.run("create", async () => {
    const text = (await create()).choices[0].text;
    check(text, "no text");
    return text;
  });
  await steps.run("stream", async () => {
    const text = (await create({ stream: true })).map((chunk) => chunk.choices[0]?.text ?? "").join("");
    check(text === whole, "streamed", text, "created", whole);
  });
  await steps.run("turns", async () => {
    const { usage } = await create({ prompt: prompt + whole + " and" });
    steps.cached(usage.prompt_tokens, usage.prompt_tokens_details?.cached_tokens);
  });
  await steps.refused(create, ...errors, { max_tokens: 10_000_000 });
}

async function responses() {
  const steps = new Steps("responses");
  const instructions = system("responses");
  const asked = { model, instructions, input: [{ role: "user", content: QUESTION }], max_output_tokens: 300 };
  const create = async (more) => {
    const answer = await client.responses.create({ ...asked, ...more });
    return more?.stream ? consume(answer) : answer;
  };
  const whole = await steps.run("create", async () => {
    const answer = await create();
    check(answer.output_text, answer);
    return answer.output_text;
  });
  await steps.run("stream", async () => {
    let deltas = "";
    const stream = client.responses.stream(asked);
    stream.on("response.output_text.delta", (event) => (deltas += event.delta));
    const final = await stream.finalResponse();
    check(final.output_text === deltas && deltas === whole, "streamed", deltas, "created", whole);
  });
  const tools = [zodResponsesFunction({ name: "tide", parameters: Tide })];
  const input = [{ role: "user", content: CALL }];
  const turn = async () => {
    const final = await client.responses.stream({ model, instructions, input, tools, max_output_tokens: 300 }).finalResponse();
    input.push(...final.output.map(({ parsed_arguments, ...item }) => item));
    return final;
  };
  const later = async () => {
    const final = await turn();
    check(final.output_text && final.status === "completed", final);
    steps.cached(final.usage.input_tokens, final.usage.input_tokens_details?.cached_tokens);
  };
  await steps.run("tools", async () => {
    const call = (await turn()).output.at(-1);
    check(call.type === "function_call" && call.name === "tide" && call.parsed_arguments.at === "noon", call);
    input.push({ type: "function_call_output", call_id: call.call_id, output: RESULT });
    await later();
  });
  await steps.turns(input, later);
  await steps.run("structured", async () => {
    const answer = await client.responses.parse({ ...asked, max_output_tokens: 1500, text: { format: zodTextFormat(Place, "place") } });
    check(Place.safeParse(answer.output_parsed).success, answer);
  });
  await steps.refused(create, ...errors, { max_output_tokens: 10_000_000 });
}

report({ version: VERSION });
for (const api of [chat, completions, responses]) if (config.apis.includes(api.name)) await api();
await finish();
