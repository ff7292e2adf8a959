// Uses the agent server through the official OpenAI library for Node.
//
// Arguments: the folder with the library, the URL of the server and the secret of a token. Prints
// one JSON object.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, url, secret] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${folder}/package.json`));
const { default: OpenAI } = require("openai");
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: secret, maxRetries: 0 });
const model = "default";
const messages = [
  { role: "system", content: "Be brief." },
  { role: "user", content: "one" },
  { role: "assistant", content: "two" },
  { role: "user", content: "compute" },
];
const chat = await client.chat.completions.create({ model, messages });
let streamed = "";
for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
}
const first = await client.responses.create({ model, input: "hello", instructions: "Be brief." });
let second = "";
const again = { model, input: "again", previous_response_id: first.id, stream: true };
for await (const event of await client.responses.create(again)) {
  if (event.type === "response.completed") second = event.response.output[0].content[0].text;
}
const refused = await client.chat.completions
  .create({ model: "none", messages })
  .catch((error) => error.status);
const models = [];
for await (const one of client.models.list()) models.push(one.id);
const tokens = chat.usage.total_tokens;
const result = { models, chat: chat.choices[0].message.content, streamed, tokens };
console.log(JSON.stringify({ ...result, first: first.output_text, second, refused }));
