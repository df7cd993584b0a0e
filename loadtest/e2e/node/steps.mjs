// What the scripts of clients share; see python/steps.py, which does the same.
import { once } from "node:events";

export const config = JSON.parse(process.argv[2]);
export const { gateway, model } = config;
export const timeout = 60_000;

export const QUESTION = "Tell me of the sea.";
export const CALL = 'Ask tide({"at": "noon"}) and say what it answers.';
const FOLLOW_UP = "And in the evening?";
export const RESULT = "high water at noon";

// Long enough for prefilling on another server to be worth it, and other for each client and
// API, so that no cache knows it beforehand.
export function system(api) {
  return `${config.client} on ${api}. ` + Array.from({ length: 250 }, (_, i) => `rule${i}: be brief and kind.`).join(" ");
}

export function report(line) {
  console.log(JSON.stringify(line));
}

export function check(ok, ...said) {
  if (!ok) throw new Error("check: " + said.map((s) => (typeof s === "string" ? s : JSON.stringify(s))).join(" "));
}

export class Steps {
  constructor(api) {
    this.api = api;
  }

  // Runs a step; what it throws is its error.
  async run(step, act) {
    try {
      const result = await act();
      report({ api: this.api, step, error: null });
      return result;
    } catch (err) {
      console.error(err);
      report({ api: this.api, step, error: `${err?.constructor?.name}: ${err?.message}`.slice(0, 600) });
    }
  }

  cached(prompt, cached) {
    report({ api: this.api, prompt, cached: cached ?? 0 });
  }

  // Two more turns of a conversation, whose messages are said: later() sends them, adds what was
  // answered, and prints by cached() what was found in a cache.
  async turns(said, later) {
    await this.run("turns", async () => {
      for (let i = 0; i < 2; i++) {
        said.push({ role: "user", content: FOLLOW_UP });
        await later();
      }
    });
  }

  async raises(step, kind, act) {
    await this.run(step, async () => {
      let got;
      try {
        got = await act();
      } catch (err) {
        check(kind(err), `raised ${err?.constructor?.name} ${err?.status ?? err?.statusCode}: ${err?.message}`);
        return;
      }
      throw new Error("looked like success: " + String(JSON.stringify(got)).slice(0, 300));
    });
  }

  // The errors: create(more) must raise the client's class for each.
  async refused(create, notFound, badRequest, broken, overLimit) {
    await this.raises("unknown model", notFound, () => create({ model: "no-such-model" }));
    await this.raises("bad request", badRequest, () => create({ temperature: -1 }));
    await this.raises("over limit", badRequest, () => create(overLimit));
    last.push(() => this.raises("broken stream", broken, () => create({ stream: true })));
  }
}

const last = [];

// Lets all decode servers break each answer after some tokens, once whoever started the script
// has seen what they did before, and runs the steps about that.
export async function finish() {
  report({ answered: true });
  await once(process.stdin, "data");
  process.stdin.destroy();
  for (const server of config.decode) await fault(server, { kind: "die_after_tokens", tokens: 5 });
  for (const step of last) await step();
  for (const server of config.decode) await fault(server);
}

// Sets a fault of a server, or without one clears all.
async function fault(server, body) {
  const request = body ? { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } } : { method: "DELETE" };
  const response = await fetch(server + "/sim/faults", request);
  check(response.ok, "setting a fault:", response.status);
}

// All that an iterable gives.
export async function consume(stream) {
  const all = [];
  for await (const part of stream) all.push(part);
  return all;
}
