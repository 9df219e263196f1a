// The queue and the engine, as the server shows them to this key: every two seconds while they are looked at.
import { $, el, list, percent, plural, seconds, sentence } from "./dom.js";
import { draw } from "./chart.js";
import { setJudge } from "./health.js";
import { template } from "./names.js";
import { access, ask } from "./server.js";

const EVERY_MS = 2000;
const COUNTS = { asked: "asked", cached: "from the cache", judged: "judged", failed: "failed", late: "too late",
                 gone: "hung up", refused: "refused", batches: "engine calls", sequences: "samples" };
const MEASURES = { "answers/novelty": "New word pairs", "answers/new_winners": "New and well paid",
                   "answers/repetition": "Repeated words",
                   "answers/most_common": "Most common answer", "answers/winners_length": "Length of winners",
                   "judge/order_agreement": "Both orders agree", "judge/blank_gap": "Effect of the picture",
                   "judge/canaries": "Right on labelled pairs" };
let timer = 0, policyIsChosen = false, last = null;

const ms = value => seconds(value == null ? null : value / 1000);
const isLooking = () => !$("queue").hidden && !document.hidden;

// Ask once, and again and again while the queue is looked at.
export async function watchQueue() {
  clearTimeout(timer);
  if (access.locked) return;
  let wait = EVERY_MS;
  try {
    showStatus(await (await ask("v1/status")).json());
  } catch (error) {
    $("queue-note").textContent = error.message;
    $("gauges").className = $("counts").className = "stale";
    wait = Math.max(wait, 1000 * (error.wait ?? 0));
  }
  clearTimeout(timer);
  if (isLooking()) timer = setTimeout(watchQueue, wait);
}

function showStatus(status) {
  $("key").hidden = true;
  showJudge(status);
  $("gauges").className = $("counts").className = "";
  list($("gauges"), [["Engine", status.failing ? "failing" : "running"],
    ["Pairs waiting", `${status.waiting} of ${status.max_waiting}`],
    ["In groups not full", status.group_members_waiting], ["Median", ms(status.median_ms)], ["95 % within", ms(status.p95_ms)],
    ["An engine call", status.counts.batches ? seconds(status.batch_seconds) : "–"]]);
  list($("counts"), Object.entries(status.counts).map(([name, value]) => [COUNTS[name] ?? name, value.toLocaleString("en")]));
  const number = status.recent.length;
  $("queue-note").textContent = number ? `Times are of the last ${plural(number, "judged pair")}.` : "Nothing was judged yet.";
  last = status;
  showSigns(status);
  showCharts();
}

// How the answers of this key have changed since its beginning, and what of it is a sign.
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
  $("judge").replaceChildren(el("bdi", {}, status.judge));
  $("judge").title = `${status.judge}, with the template ${status.template}`;
  const weighted = [...$("policy").options].find(option => option.value === "weighted");
  weighted.hidden = weighted.disabled = !status.weighs;
  if (!policyIsChosen) $("policy").value = status.policy;
  policyIsChosen = true;
}

function showCharts() {
  if (!last || $("queue").hidden) return;
  const points = value => last.recent.map(one => ({ at: one.at, value: value(one) }));
  const format = value => `${Number(value.toPrecision(3))} s`;
  chart("latency", points(one => one.ms / 1000), { format, least: 0.001, name: "Latency" });
  chart("waiting", points(one => one.waiting), { format: String, least: 1, name: "Pairs waiting" });
}

function chart(id, points, options) {
  draw($(id), points, options);
  const { format } = options;
  const most = points.length && Math.max(...points.map(point => point.value));
  $(`${id}-note`).textContent = points.length ? `last ${format(points.at(-1).value)}, at most ${format(most)}` : "";
}

addEventListener("resize", showCharts);
document.addEventListener("visibilitychange", () => isLooking() && watchQueue());
$("policy").onchange = () => { policyIsChosen = true; };
