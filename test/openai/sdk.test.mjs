// The pool's OpenAI-compatible API as the real SDK sees it. openai_test.go starts the batcher and this file:
//   SLUICE_URL        the public port
//   SLUICE_INTERNAL   the internal port
//   SLUICE_KEY        a key without limits; SLUICE_LIMITED_KEY one of 120 requests a minute
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const { SLUICE_URL, SLUICE_INTERNAL, SLUICE_KEY, SLUICE_LIMITED_KEY } = process.env;
const client = (apiKey = SLUICE_KEY, options = {}) => new OpenAI({ baseURL: SLUICE_URL + "/v1", apiKey, ...options });
const hello = { model: "llm", messages: [{ role: "user", content: "hello" }] };
const stats = async () => (await fetch(SLUICE_INTERNAL + "/internal/stats")).json();

test("a chat completion has text, usage and a request id", async () => {
  const { data, response } = await client().chat.completions.create({ ...hello, max_completion_tokens: 16, temperature: 0 }).withResponse();
  assert.equal(data.choices[0].message.content, "hello");
  assert.equal(data.choices[0].message.role, "assistant");
  assert.equal(data.choices[0].finish_reason, "stop");
  assert.equal(data.object, "chat.completion");
  assert.equal(data.usage.total_tokens, data.usage.prompt_tokens + data.usage.completion_tokens);
  assert.ok(data.usage.total_tokens > 0);
  assert.equal(data._request_id, response.headers.get("x-request-id"));
  assert.ok(data._request_id);
});

test("messages become one input by the documented template", async () => {
  const data = await client().chat.completions.create({
    model: "llm",
    messages: [
      { role: "system", content: "be brief" },
      { role: "user", content: [{ type: "text", text: "hello" }] },
    ],
  });
  assert.equal(data.choices[0].message.content, "system: be brief\nuser: hello\nassistant:");
});

test("a stream is one chunk, then usage if asked for", async () => {
  const stream = await client().chat.completions.create({ ...hello, stream: true, stream_options: { include_usage: true } });
  let text = "", usage, finish;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    finish ??= chunk.choices[0]?.finish_reason;
    usage ??= chunk.usage;
  }
  assert.equal(text, "hello");
  assert.equal(finish, "stop");
  assert.ok(usage.total_tokens > 0);
});

test("the stream helper finds the whole message", async () => {
  const final = await client().chat.completions.stream(hello).finalChatCompletion();
  assert.equal(final.choices[0].message.content, "hello");
});

test("a completion", async () => {
  const data = await client().completions.create({ model: "llm", prompt: "hello" });
  assert.equal(data.choices[0].text, "hello");
});

test("the models", async () => {
  const ids = [];
  for await (const m of client().models.list()) ids.push(m.id);
  assert.deepEqual(ids, ["llm"]);
  assert.equal((await client().models.retrieve("llm")).id, "llm");
  await assert.rejects(client().models.retrieve("gpt"), OpenAI.NotFoundError);
});

test("errors are the SDK's own classes, with code and param", async () => {
  await assert.rejects(client("wrong").chat.completions.create(hello), (e) => e instanceof OpenAI.AuthenticationError && e.code === "wrong_key");
  await assert.rejects(client().chat.completions.create({ ...hello, model: "gpt" }), (e) => e instanceof OpenAI.NotFoundError && e.code === "unknown_model" && e.param === "model");
  await assert.rejects(client().chat.completions.create({ ...hello, messages: [] }), (e) => e instanceof OpenAI.BadRequestError && e.code === "empty_input");
  await assert.rejects(client().chat.completions.create({ ...hello, n: 2 }), (e) => e instanceof OpenAI.BadRequestError && e.code === "unsupported_parameter" && e.param === "n");
});

test("the SDK waits as long as it is told and passes", async () => {
  const limited = client(SLUICE_LIMITED_KEY, { maxRetries: 0 });
  const before = (await stats()).tiers.find((t) => t.name === "paid");
  // The burst of 120 at once; the refill is 2 a second, so the rest is refused.
  const N = 200;
  const first = await Promise.allSettled(Array.from({ length: N }, () => limited.chat.completions.create(hello)));
  const refused = first.filter((r) => r.status === "rejected").map((r) => r.reason);
  assert.ok(refused.length >= 1, `${N} requests passed a limit of 120`);
  for (const e of refused) {
    assert.ok(e instanceof OpenAI.RateLimitError, String(e));
    assert.equal(e.code, "quota_requests");
    assert.ok(Number(e.headers.get("retry-after-ms")) > 0 && Number(e.headers.get("retry-after")) >= 1);
  }
  // With its own retries the SDK gets through: it waits by retry-after-ms.
  const data = await client(SLUICE_LIMITED_KEY, { maxRetries: 5 }).chat.completions.create(hello);
  assert.equal(data.choices[0].message.content, "hello");
  const after = (await stats()).tiers.find((t) => t.name === "paid");
  assert.ok(after.refused_quota > before.refused_quota);
  assert.ok(after.offered - before.offered <= N + 1 - refused.length, "refusals for quota or retries were counted as demand");
});

test("a degraded answer is an answer, and says how it was degraded", async () => {
  const cheap = client(process.env.SLUICE_CHEAP_KEY, { maxRetries: 0 });
  // The zone file is read a moment after the start.
  const zoned = async () => (await stats()).zone === "Yellow";
  for (let i = 0; i < 100 && !(await zoned()); i++) await new Promise((r) => setTimeout(r, 50));
  const { data, response } = await cheap.chat.completions.create(hello).withResponse();
  assert.equal(data.choices[0].message.content, "We are busy.");
  assert.equal(data.choices[0].finish_reason, "stop");
  assert.equal(data.usage.total_tokens, 0);
  assert.deepEqual(data.metadata, { degraded: ["answer"] });
  assert.equal(response.headers.get("sluice-degraded"), "answer");
  let text = "";
  for await (const chunk of await cheap.chat.completions.create({ ...hello, stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
    assert.deepEqual(chunk.metadata, { degraded: ["answer"] });
  }
  assert.equal(text, "We are busy.");
  assert.equal((await cheap.completions.create({ model: "llm", prompt: "hello" })).choices[0].text, "We are busy.");
  // Others are served as ever.
  const other = await client().chat.completions.create(hello).withResponse();
  assert.equal(other.data.choices[0].message.content, "hello");
  assert.equal(other.data.metadata, undefined);
  assert.equal(other.response.headers.get("sluice-degraded"), null);
});
