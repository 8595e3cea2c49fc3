// The openai package for Node: a chat, plain and streamed, with usage; an error with its field.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "unused", maxRetries: 0 });
const [model] = (await client.models.list()).data;
const how = { model: model.id, temperature: 0, max_tokens: 30 };
how.messages = [{ role: "user", content: "What is the capital of France?" }];

const plain = await client.chat.completions.create(how);
assert.match(plain.choices[0].message.content, /Paris/);

const stream = await client.chat.completions.create({ ...how, stream: true, stream_options: { include_usage: true } });
let text = "";
let usage = null;
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, plain.choices[0].message.content);
assert.equal(usage.completion_tokens, plain.usage.completion_tokens);

await assert.rejects(client.completions.create({ model: model.id, prompt: "a", temperature: 3 }), { param: "temperature" });
