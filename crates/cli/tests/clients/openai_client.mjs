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

// A tool of the client, and a second question about what it returned.
const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
};
const weather = { name: "get_weather", description: "Tells the weather.", parameters };
const content = '{"degrees": 21}';
const chatTools = [{ type: "function", function: weather }];
const question = { role: "user", content: "How is the weather?" };
const next = { role: "user", content: "And tomorrow?" };
const chatTalk = [question];
const ask = async () => {
  const request = { model, messages: chatTalk, tools: chatTools };
  const { message } = (await client.chat.completions.create(request)).choices[0];
  chatTalk.push(message);
  return message;
};
const { tool_calls: calls } = await ask();
for (const call of calls) chatTalk.push({ role: "tool", tool_call_id: call.id, content });
const warm = await ask();
chatTalk.push(next);
const later = await ask();

const tools = [{ type: "function", strict: false, ...weather }];
const input = [question];
const respond = async () => {
  const response = await client.responses.create({ model, input, tools });
  input.push(...response.output);
  return response;
};
for (const item of (await respond()).output) {
  if (item.type !== "function_call") continue;
  input.push({ type: "function_call_output", call_id: item.call_id, output: content });
}
const continued = await respond();
input.push(next);
const answered = await respond();

// A command that needs approval.
const callApi = async (path, body) => {
  const headers = { authorization: `Bearer ${secret}`, "content-type": "application/json" };
  const method = body ? "POST" : "GET";
  const options = { method, headers, body: body && JSON.stringify(body) };
  const response = await fetch(`${url}/api/v1/${path}`, options);
  if (!response.ok) throw new Error(`${path}: status ${response.status}`);
  return response.json();
};
const approveFirst = async () => {
  for (;;) {
    const [waiting] = (await callApi("approvals")).approvals;
    if (waiting) return callApi(`approvals/${waiting.id}`, { decision: "once" });
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
};
const please = { model, messages: [{ role: "user", content: "please" }] };
const [deleted, approval] = await Promise.all([
  client.chat.completions.create(please),
  approveFirst(),
]);
const result = {
  models,
  chat: chat.choices[0].message.content,
  streamed,
  tokens: chat.usage.total_tokens,
  first: first.output_text,
  second,
  refused,
  called: calls.map((call) => call.function.name),
  warm: [warm.content, continued.output_text],
  later: [later.content, answered.output_text],
  approved: [approval ? 1 : 0, deleted.choices[0].message.content.trim()],
};
console.log(JSON.stringify(result));
