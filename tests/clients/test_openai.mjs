// The official OpenAI Node client against a running `kun serve` (see run.sh).
import assert from "node:assert/strict";
import test from "node:test";
import OpenAI from "openai";

const base = process.env.KUN_URL;
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Say hello." }];
const chat = (options = {}) =>
  client.chat.completions.create({ model, messages, max_tokens: 16, temperature: 0, ...options });

test("answers with usage", async () => {
  const answer = await chat();
  assert.ok(answer.choices[0].message.content);
  assert.equal(
    answer.usage.total_tokens,
    answer.usage.prompt_tokens + answer.usage.completion_tokens,
  );
});

test("a stream adds up to the answer", async () => {
  const whole = (await chat()).choices[0].message.content;
  let text = "";
  for await (const chunk of await chat({ stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
  }
  assert.equal(text, whole);
});

test("completions, stop strings and seeds", async () => {
  const settings = { model, prompt: "One, two, three,", max_tokens: 12, temperature: 0.9, seed: 3 };
  const first = await client.completions.create(settings);
  const again = await client.completions.create(settings);
  assert.equal(first.choices[0].text, again.choices[0].text);
});

test("errors carry status and parameter", async () => {
  await assert.rejects(chat({ temperature: 9 }), (error) => {
    assert.equal(error.status, 400);
    assert.equal(error.param, "temperature");
    return true;
  });
  await assert.rejects(chat({ model: "nobody" }), (error) => error.status === 404);
});

test("leaving a stream cancels it", async () => {
  const stream = await chat({ stream: true, max_tokens: 2000, ignore_eos: true });
  for await (const _ of stream) {
    stream.controller.abort();
    break;
  }
  for (let i = 0; i < 100; ++i) {
    const page = await (await fetch(`${base}/metrics`)).text();
    if (/^vllm:num_requests_running\{.*\} 0$/m.test(page)) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.fail("the sequence kept running");
});

test("n choices and logprobs", async () => {
  const answer = await chat({ n: 3, temperature: 1.2, logprobs: true, top_logprobs: 2 });
  assert.equal(answer.choices.length, 3);
  assert.equal(answer.choices[0].logprobs.content[0].top_logprobs.length, 2);
});
