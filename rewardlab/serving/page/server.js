// Talking to the server, with the key of this tab.
import { $, complain, plain } from "./dom.js";

export const access = { locked: false, onChange: () => {} };  // locked: a key is needed; onChange: another one was given
let key = sessionStorage.getItem("rewardlab.key") ?? "";

export async function ask(path, options = {}) {
  const headers = { ...(key && { Authorization: `Bearer ${key}` }), ...options.headers };
  const answer = await fetch(path, { cache: "no-store", ...options, headers }).catch(error => {
    throw error.name === "AbortError" ? error : Error("The server cannot be reached; is it running?");
  });
  if (answer.ok) return answer;
  if (answer.status === 401) wantKey();
  const body = await answer.json().catch(() => ({})), wait = answer.headers.get("Retry-After");
  const detail = Array.isArray(body.detail) ? body.detail.map(one => `${one.loc.slice(1).join(" ")}: ${one.msg}`).join("; ") : body.detail;
  let told = body.error ?? detail ?? `the server answered HTTP ${answer.status}`;
  if (answer.status === 401) told = "This server asks for an API key; enter it above and judge again";
  throw Object.assign(Error(plain(wait && !told.includes("again") ? `${told}; try again in ${wait} s` : told)), { wait });
}

export async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const whole = (rest + value).split("\n");
    rest = whole.pop();
    yield* whole.filter(Boolean).map(line => JSON.parse(line));
  }
}

function wantKey() {
  $("key-told").textContent = key ? "This key was not accepted. Another one:" : "This server asks for an API key. It is kept in this tab only.";
  access.locked = true;
  $("key").hidden = false;
}
$("key").onsubmit = event => {
  event.preventDefault();
  sessionStorage.setItem("rewardlab.key", key = $("key-field").value);
  $("key-field").value = "";
  access.locked = false;
  complain("");
  access.onChange();
};
