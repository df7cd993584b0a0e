// A tool loop with the official openai SDK's stream helper for the Responses API:
// node responses.mjs BASE_URL MODEL. Prints {"call", "text", "types"} of the two answers, and
// exits with an error where the SDK raises one.
import OpenAI from "openai";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: baseURL + "/v1", apiKey: "none", maxRetries: 0, timeout: 60_000 });
const tools = [{
  type: "function", name: "tide", strict: false,
  parameters: { type: "object", properties: { at: { type: "string" } }, required: ["at"] },
}];
const input = [{ role: "user", content: "when is high tide?" }];

async function ask(more) {
  return client.responses.stream({ model, input, tools, max_output_tokens: 3000, ...more }).finalResponse();
}

const first = await ask({ tool_choice: "required" });
const call = first.output[0];
input.push({ type: "function_call", call_id: call.call_id, name: call.name, arguments: call.arguments });
input.push({ type: "function_call_output", call_id: call.call_id, output: "at noon" });
// Of answers that may end at once one of a hundred does.
const second = await ask({ min_tokens: 40 });
console.log(JSON.stringify({ call: call.name, text: second.output_text, types: [...first.output, ...second.output].map((item) => item.type) }));
