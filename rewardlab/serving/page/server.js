// Requests to the server, with the API key of this tab.
import { $, complain, sentence } from "./dom.js";

export const access = { locked: false, onChange: () => {} };  // locked: the server requires a key
const linked = location.hash.match(/^#key=(.+)/)?.[1];  // never sent: a browser keeps what follows # to itself
let key = linked ?? sessionStorage.getItem("rewardlab.key") ?? "";

export const hasKey = () => key !== "";

// A refusal or failure, as a sentence.
export class RequestError extends Error {
  constructor(text) { super(sentence(text)); }
}

// The answer to a request. Raises RequestError, and AbortError if it was stopped.
export async function ask(path, options = {}) {
  const headers = { ...(key && { Authorization: `Bearer ${key}` }), ...options.headers };
  const answer = await fetch(path, { cache: "no-store", ...options, headers }).catch(error => {
    throw error.name === "AbortError" ? error : new RequestError("The server cannot be reached; is it running?");
  });
  if (answer.ok) return answer;
  if (answer.status === 401) {
    $("key-reason").textContent = key ? "This key was not accepted. Another one:" :
      "This server requires an API key. It is kept in this tab only.";
    $("key").hidden = false;
    access.locked = true;
    access.onChange();
    throw new RequestError("This server requires an API key; enter it above and judge again");
  }
  const body = await answer.json().catch(() => ({}));
  throw new RequestError(body.error ?? `the server answered HTTP ${answer.status}`);
}

export const post = (path, body, signal) =>
  ask(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal });

// The JSON lines of a response. A line that is an error is raised.
export async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const whole = (rest + part.value).split("\n");
    rest = whole.pop();
    for (const line of whole.filter(Boolean).map(line => JSON.parse(line))) {
      if (line.error) throw new RequestError(line.error);
      yield line;
    }
  }
}

$("key").onsubmit = event => {
  event.preventDefault();
  sessionStorage.setItem("rewardlab.key", key = $("key-field").value);
  $("key-field").value = "";
  $("key").hidden = true;
  access.locked = false;
  complain("");
  access.onChange();
};
