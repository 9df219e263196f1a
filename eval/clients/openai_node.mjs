// The npm package openai. Prints a line of JSON for every call, as calls.py does.
import OpenAI from "openai";

const { CLIENTS_URL: url, CLIENTS_KEY: key, CLIENTS_IMAGE: image } = process.env;
const api = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const answers = ["I say 1.", "I say 3."];
const chat = [{ role: "user", content: "Which number is greater?" }];
const texts = answers.map((a) => `<|im_start|>user\nWhich number is greater?<|im_end|>\n<|im_start|>assistant\n${a}`);

async function call(name, action, expected, refused) {
  let outcome = "wrong", detail = "";
  try {
    const value = await action();
    if (!refused && JSON.stringify(value) === JSON.stringify(expected)) outcome = "worked";
    else detail = `got ${JSON.stringify(value)}`;
  } catch (error) {
    detail = `${error.constructor.name}: ${error.message}`;
    if (refused && detail.includes(refused) && error.type && error.code) outcome = "refused";
  }
  console.log(JSON.stringify({ call: name, outcome, detail: detail.slice(0, 600) }));
}

const complete = async (options) => (await api.chat.completions.create({ model: "judge", messages: chat, ...options })).choices[0].message.content;
const rewards = (content) =>
  Promise.all(answers.map((a) => complete({ messages: [{ role: "user", content }, { role: "assistant", content: a }] })));

await call("chat, reward of two", () => rewards("Which number is greater?"), ["reward:-1.0000", "reward:1.0000"]);
const parts = [{ type: "text", text: "Do you see which number is greater?" }, { type: "image_url", image_url: { url: image } }];
await call("chat with an image, reward of two", () => rewards(parts), ["reward:-1.0000", "reward:1.0000"]);
await call("embeddings, the default format (base64)", async () =>
  (await api.embeddings.create({ model: "judge", input: texts })).data.map((one) => Array.from(one.embedding)), [[-1], [1]]);
await call("chat, role developer", async () =>
  (await complete({ messages: [{ role: "developer", content: "Be brief." }, ...chat] })).length > 0, true);
await call("chat, stream", async () => {
  let text = "";
  for await (const event of await api.chat.completions.create({ model: "judge", messages: chat, stream: true }))
    text += event.choices[0]?.delta?.content ?? "";
  return text.length > 0;
}, true);
await call("chat, stop", () => complete({ stop: ["x"] }), null, "'stop' is not supported");
await call("chat, response_format", () => complete({ response_format: { type: "json_object" } }), '{"better": 2}');
await call("responses.create", async () => (await api.responses.create({ model: "judge", input: chat, temperature: 0 })).output_text, "draw greedy");
await call("responses.create, tools", () => api.responses.create({ model: "judge", input: chat, tools: [{ type: "web_search" }] }), null, "'tools' is not supported");
await call("models.list and retrieve", async () => {
  const [model] = (await api.models.list()).data;
  return (await api.models.retrieve(model.id)).id === model.id;
}, true);
