// One call with the official openai SDK: node client.mjs BASE_URL <CALL_JSON.
// Prints one JSON object, the outcome as the SDK presented it (see sdk_test.go for
// both shapes). Exits 0 whether the call succeeded or raised; anything else is a bug.
import { Readable } from "node:stream";
import OpenAI from "openai";

const baseURL = process.argv[2];
const call = JSON.parse(await new Response(Readable.toWeb(process.stdin)).text());
const outcome = { text: "", finish: "", prompt_tokens: 0, completion_tokens: 0, cached_tokens: 0, chunks: 0, status: 0, headers: {}, raw: "", error: null };

// Remembers what came over the wire beside what the SDK made of it.
let rawBody = Promise.resolve("");
async function recordingFetch(url, init) {
  const response = await fetch(url, init);
  outcome.status = response.status;
  outcome.headers = Object.fromEntries(response.headers);
  rawBody = readAll(response.clone());
  return response;
}

async function readAll(response) {
  let text = "";
  const decoder = new TextDecoder();
  try {
    for await (const part of response.body) text += decoder.decode(part, { stream: true });
  } catch {
    // A cut connection: what came before it is what the client saw.
  }
  return text;
}

function params() {
  const p = { model: call.model, max_tokens: call.max_tokens };
  if (call.api === "chat") p.messages = [{ role: "user", content: call.prompt }];
  else p.prompt = call.prompt;
  if (call.malformed) p.messages = "not a list";
  if (call.stream) {
    p.stream = true;
    p.stream_options = { include_usage: true };
  }
  return p;
}

function textOf(choice) {
  return choice.text ?? choice.delta?.content ?? choice.message?.content ?? "";
}

function take(part) {
  const choice = part.choices?.[0];
  if (choice) {
    const text = textOf(choice);
    outcome.text += text;
    if (text !== "") outcome.chunks++;
    if (choice.finish_reason) outcome.finish = choice.finish_reason;
  }
  if (part.usage) {
    outcome.prompt_tokens = part.usage.prompt_tokens;
    outcome.completion_tokens = part.usage.completion_tokens;
    outcome.cached_tokens = part.usage.prompt_tokens_details?.cached_tokens ?? 0;
  }
}

const client = new OpenAI({ baseURL: baseURL + "/v1", apiKey: "none", maxRetries: 0, timeout: 60_000, fetch: recordingFetch });
const create = call.api === "chat" ? client.chat.completions : client.completions;
try {
  const answer = await create.create(params());
  if (call.stream) for await (const part of answer) take(part);
  else take(answer);
} catch (err) {
  outcome.error = { name: err.constructor.name, status: err.status ?? 0, message: String(err.message) };
}
outcome.raw = await rawBody;
console.log(JSON.stringify(outcome));
