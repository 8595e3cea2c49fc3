// The openai package for Node: a chat, plain, streamed and left; a JSON schema, a tool, a response, vectors, an error.
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

// Leaving a stream: the client closes the connection, and the next answer is whole.
for await (const chunk of await client.chat.completions.create({ ...how, max_tokens: 2000, stream: true })) {
  if (chunk.choices[0]?.delta?.content) break;
}

const schema = {
  type: "object",
  properties: { name: { type: "string", maxLength: 20 }, is_capital: { type: "boolean" } },
  required: ["name", "is_capital"],
  additionalProperties: false,
};
const format = { type: "json_schema", json_schema: { name: "city", strict: true, schema } };
const parsed = await client.chat.completions.parse({ ...how, max_tokens: 100, response_format: format });
assert.equal(typeof parsed.choices[0].message.parsed.is_capital, "boolean");

const tools = [{ type: "function", function: { name: "note_city", parameters: schema } }];
const noted = client.chat.completions.stream({ ...how, max_tokens: 100, tools, tool_choice: "required", parallel_tool_calls: false });
const [call] = (await noted.finalMessage()).tool_calls;
assert.equal(call.function.name, "note_city");
assert.equal(typeof JSON.parse(call.function.arguments).is_capital, "boolean");

const response = await client.responses.create({ model: model.id, input: how.messages, temperature: 0, max_output_tokens: 30 });
assert.match(response.output_text, /Paris/);
const deltas = [];
for await (const event of await client.responses.create({ model: model.id, input: "Hi", stream: true, max_output_tokens: 8 })) {
  if (event.type === "response.output_text.delta") deltas.push(event.delta);
}
assert.ok(deltas.join(""));

// The client asks for base64 and decodes it.
const vectors = await client.embeddings.create({ model: model.id, input: ["a cat", "a dog"] });
assert.equal(vectors.data.length, 2);
assert.ok(Math.abs(vectors.data[0].embedding.reduce((sum, x) => sum + x * x, 0) - 1) < 1e-3);

await assert.rejects(client.completions.create({ model: model.id, prompt: "a", temperature: 3 }), { param: "temperature" });
