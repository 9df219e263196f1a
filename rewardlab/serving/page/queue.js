// The badge, by /ready, which needs no key; and the queue, by /v1/status, every two seconds while it is looked at.
import { $, el, list, percent, plural, seconds, sentence } from "./dom.js";
import { template } from "./names.js";
import { access, ask } from "./server.js";

const NOT_READY_MS = 1000, READY_MS = 5000, QUEUE_MS = 2000, WIDTH = 480, HEIGHT = 160, LEFT = 56, BOTTOM = 140;
const COUNTS = { asked: "asked", cached: "from the cache", judged: "judged", failed: "failed", late: "too late",
                 gone: "hung up", refused: "refused", batches: "engine calls", sequences: "samples" };
const MEASURES = { "answers/novelty": "New word pairs", "answers/new_winners": "New and well paid",
                   "answers/repetition": "Repeated words", "answers/most_common": "Most common answer",
                   "answers/winners_length": "Length of winners", "judge/order_agreement": "Both orders agree",
                   "judge/blank_gap": "Effect of the picture", "judge/canaries": "Right on labelled pairs" };
const timers = {};
let policyIsChosen = false, judge = "";
export const health = { ready: true };  // as last known
export const setJudge = name => { judge = name; };

function again(name, milliseconds, call) {
  clearTimeout(timers[name]);
  timers[name] = setTimeout(call, milliseconds);
}

// What a person needs to know of a failure that passes. An endpoint elsewhere is not restarted by this server.
export function trouble({ status, message }) {
  const isEngine = status === "enginefailed" && !/^the server is shutting down/i.test(message);
  return isEngine ? `Judging is paused: ${reason()}` : message.split(/[;.]/)[0];
}

const reason = () => judge.startsWith("openai:") ? "the engine does not answer" : "the engine is being restarted";

function setBadge(text, isGood = false) {
  if ($("badge").textContent !== text) $("badge").textContent = text;  // a status is read aloud when it changes
  $("badge").className = `badge ${isGood ? "good" : "bad"}`;
}

// Say at once why a request failed, and look again soon.
export function reportTrouble(error) {
  const text = trouble(error);
  health.ready = false;
  setBadge(text.charAt(0).toLowerCase() + text.slice(1));
  again("badge", NOT_READY_MS, watchHealth);
}

export async function watchHealth() {
  clearTimeout(timers.badge);
  if (!document.hidden) {
    try {
      const state = await (await fetch("ready", { cache: "no-store" })).json();
      health.ready = state.ready;
      if (access.locked) setBadge("key needed", false);
      else if (state.ready) setBadge("ready", true);
      else if (state.failing) setBadge(`judging is paused: ${reason()}`);
      else setBadge("not ready: the queue is full, or the server is stopping");
    } catch {
      health.ready = false;
      setBadge("unreachable");
    }
  }
  again("badge", health.ready ? READY_MS : NOT_READY_MS, watchHealth);
}

// Ask once, and again and again while the queue is looked at.
export async function watchQueue() {
  clearTimeout(timers.queue);
  if (access.locked) return;
  let wait = QUEUE_MS;
  try {
    showStatus(await (await ask("v1/status")).json());
  } catch (error) {
    $("queue-note").textContent = error.message;
    wait = Math.max(wait, 1000 * (error.wait ?? 0));
  }
  if (!$("queue").hidden && !document.hidden) again("queue", wait, watchQueue);
}

function showStatus(status) {
  const ms = value => seconds(value == null ? null : value / 1000), number = status.recent.length;
  $("key").hidden = true;
  showJudge(status);
  list($("gauges"), [["Engine", status.failing ? "failing" : "running"],
    ["Pairs waiting", `${status.waiting} of ${status.max_waiting}`], ["In groups not full", status.group_members_waiting],
    ["Median", ms(status.median_ms)], ["95 % within", ms(status.p95_ms)],
    ["An engine call", status.counts.batches ? seconds(status.batch_seconds) : "–"]]);
  list($("counts"), Object.entries(status.counts).map(([name, value]) => [COUNTS[name] ?? name, value.toLocaleString("en")]));
  $("queue-note").textContent = number ? `Times are of the last ${plural(number, "judged pair")}.` : "Nothing was judged yet.";
  showSigns(status);
  draw($("latency"), status.recent.map(({ at, ms }) => [at, ms / 1000]), value => `${Number(value.toPrecision(3))} s`);
  draw($("waiting"), status.recent.map(({ at, waiting }) => [at, waiting]), String);
}

// How the answers of this key have changed, and which changes are signs of a policy that games the judge.
function showSigns({ answers, signs }) {
  const names = Object.keys(answers), found = Object.values(signs);
  $("signs").hidden = !names.length;
  $("sign-list").replaceChildren(...found.map(text => el("li", {}, sentence(text))));
  $("sign-note").textContent = (found.length ? "The policy may please the judge rather than get better. " :
    "No sign that the policy pleases the judge rather than gets better. ") + "At first → now:";
  const shown = (name, value) => name === "answers/winners_length" ? `${value.toFixed(2)} ×` : percent(value);
  list($("answers"), names.map(name => [MEASURES[name] ?? name, answers[name].map(value => shown(name, value)).join(" → ")]));
}

function showJudge(status) {
  setJudge(status.judge);
  template.labels = status.labels;
  $("judge").textContent = status.judge;
  $("judge").title = `${status.judge}, with the template ${status.template}`;
  const weighted = [...$("policy").options].find(option => option.value === "weighted");
  weighted.hidden = weighted.disabled = !status.weighs;
  if (!policyIsChosen) $("policy").value = status.policy;
  policyIsChosen = true;
}

function svg(tag, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

// Draw [Unix seconds, value] points over time: the left axis shows 0 and the largest value, the bottom the first and last time.
function draw(chart, points, format) {
  if (!points.length) return chart.replaceChildren();
  const start = points[0][0], end = Math.max(points.at(-1)[0], start + 1), most = Math.max(...points.map(([, value]) => value));
  const clock = at => new Date(1000 * at).toLocaleTimeString();
  const x = at => LEFT + (WIDTH - LEFT - 8) * (at - start) / (end - start);
  const y = value => BOTTOM - (BOTTOM - 10) * value / (most || 1);
  const levels = most ? [0, most] : [0];
  const grid = levels.flatMap(value => [svg("line", { x1: LEFT, x2: WIDTH, y1: y(value), y2: y(value) }),
    svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, format(value))]);
  const times = [svg("text", { x: LEFT, y: HEIGHT - 4 }, clock(start)),
    svg("text", { x: WIDTH, y: HEIGHT - 4, "text-anchor": "end" }, clock(end))];
  const line = points.map(([at, value], n) => `${n ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const dots = points.map(([at, value]) => svg("circle", { cx: x(at).toFixed(1), cy: y(value).toFixed(1), r: 2 }));
  chart.replaceChildren(...grid, ...times, svg("path", { d: line }), ...dots);
  chart.ariaLabel = `from ${clock(start)} to ${clock(end)}: last ${format(points.at(-1)[1])}, at most ${format(most)}`;
}

document.addEventListener("visibilitychange", () => document.hidden || (watchHealth(), watchQueue()));
$("policy").onchange = () => { policyIsChosen = true; };
