// The badge, by /ready, which needs no key; and the view of the queue, by /v1/status.
import { $, list, seconds, sentence } from "./dom.js";
import { access, ask } from "./server.js";

const PERIOD_MS = 2000;
export const judge = { labels: ["Response 1", "Response 2"], isKnown: false };  // what its template calls the responses
let timer = null;

function setBadge(text, isGood = false) {
  if ($("badge").textContent !== text) $("badge").textContent = text;  // a status is read aloud when it changes
  $("badge").className = `badge ${isGood ? "good" : "bad"}`;
}

async function showReady() {
  try {
    const state = await (await fetch("ready", { cache: "no-store" })).json();
    if (access.locked) setBadge("key needed");
    else if (state.ready) setBadge("ready", true);
    else setBadge(state.failing ? "judging is paused: the engine fails" : "not ready: the queue is full, or the server is stopping");
  } catch {
    setBadge("unreachable");
  }
}

// Look at the server now, and again and again; at the queue only while it is shown.
export async function watch() {
  clearTimeout(timer);
  if (!document.hidden) {
    await showReady();
    if (!access.locked && !(judge.isKnown && $("queue").hidden)) await showStatus();
  }
  clearTimeout(timer);
  timer = setTimeout(watch, PERIOD_MS);
}

async function showStatus() {
  let status;
  try {
    status = await (await ask("v1/status")).json();
  } catch (error) {
    $("queue-note").textContent = error.message;
    return;
  }
  const ms = value => seconds(value == null ? null : value / 1000);
  showJudge(status);
  list($("gauges"), [["Engine", status.failing ? "failing" : "running"],
    ["Pairs waiting", `${status.waiting} of ${status.max_waiting}`], ["In groups not full", status.group_members_waiting],
    ["Median", ms(status.median_ms)], ["95 % within", ms(status.p95_ms)],
    ["An engine call", status.counts.batches ? seconds(status.batch_seconds) : "–"],
    ...Object.entries(status.counts).map(([name, value]) => [sentence(name).slice(0, -1), value.toLocaleString("en")])]);
  const notes = ["times are of the last 500 judged pairs, counts since the start", ...Object.values(status.drift)];
  $("queue-note").textContent = notes.map(sentence).join(" ");
}

function showJudge(status) {
  judge.labels = status.labels;
  $("judge").textContent = status.judge;
  $("judge").title = `${status.judge}, with the template ${status.template}`;
  const weighted = [...$("policy").options].find(option => option.value === "weighted");
  weighted.hidden = weighted.disabled = !status.weighs;
  if (!judge.isKnown) $("policy").value = status.policy;
  judge.isKnown = true;
}

document.addEventListener("visibilitychange", watch);
access.onChange = watch;
