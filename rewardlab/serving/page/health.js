// The badge: whether a request would be judged now, by /ready, which needs no key, and by what requests fail of.
import { $ } from "./dom.js";
import { access } from "./server.js";

const OFTEN_MS = 1000, SELDOM_MS = 5000;
let timer = 0, judge = "";
export const health = { ready: true };  // as last known

export const setJudge = name => { judge = name; };

// What a person is to know of a failure that passes: an endpoint elsewhere is not ours to start again.
export function trouble({ status, message }) {
  const isEngine = status === "enginefailed" && !/^the server is shutting down/i.test(message);
  return isEngine ? `Judging is paused: ${reason()}` : message.split(/[;.]/)[0];
}

const reason = () => judge.startsWith("openai:") ? "the engine does not answer" : "the engine is being restarted";

function setBadge(text, kind) {
  if ($("badge").textContent !== text) $("badge").textContent = text;  // a status is read aloud where it changes
  $("badge").className = `badge ${kind}`;
}

// Say at once what a request has met, and look again soon.
export function reportTrouble(error) {
  const text = trouble(error);
  health.ready = false;
  setBadge(text.charAt(0).toLowerCase() + text.slice(1), "bad");
  clearTimeout(timer);
  timer = setTimeout(watchHealth, OFTEN_MS);
}

function badgeOf(state) {
  if (access.locked) return ["key needed", "bad"];
  if (state.ready) return ["ready", "good"];
  return [state.failing ? `judging is paused: ${reason()}` : "not ready: the queue is full, or the server is stopping", "bad"];
}

export async function watchHealth() {
  clearTimeout(timer);
  let wait = SELDOM_MS;
  if (!document.hidden) {
    try {
      const state = await (await fetch("ready", { cache: "no-store" })).json();
      health.ready = state.ready;
      setBadge(...badgeOf(state));
      if (!state.ready) wait = OFTEN_MS;
    } catch {
      setBadge("unreachable", "bad");
    }
  }
  clearTimeout(timer);
  timer = setTimeout(watchHealth, wait);
}
