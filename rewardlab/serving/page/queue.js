// Queue: asked every second while it is looked at, else every ten.
import { $, el, list } from "./dom.js";
import { access, ask } from "./server.js";

let timer = 0;
const COUNTS = { asked: "asked", cached: "from the cache", judged: "judged", failed: "failed", late: "too late", gone: "hung up", refused: "refused", batches: "engine calls", sequences: "samples" };
const ms = value => value == null ? "–" : value < 10_000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;

export async function watch() {
  clearTimeout(timer);
  let wait = $("queue").hidden ? 10 : 1;
  if (!document.hidden && !access.locked) {
    try {
      showStatus(await (await ask("v1/status")).json());
    } catch (error) {
      setBadge(access.locked ? "key needed" : error.wait ? "asked too often" : "unreachable", "bad");
      $("queue-told").textContent = error.message;
      $("gauges").className = $("counts").className = "stale";
      wait = Math.max(wait, error.wait ?? 0);
    }
  }
  clearTimeout(timer);
  timer = setTimeout(watch, 1000 * wait);
}
function setBadge(text, kind) {
  if ($("badge").textContent !== text) $("badge").textContent = text;
  $("badge").className = `badge ${kind}`;
}
function showStatus(status) {
  $("key").hidden = true;
  setBadge(status.ready ? "ready" : status.failing ? "engine failing" : "queue full or closing", status.ready ? "good" : "bad");
  $("judge").replaceChildren(el("bdi", {}, status.judge));
  $("judge").title = `${status.judge}, asked with the template ${status.template}`;
  const weighted = $("policy").querySelector("[value=weighted]");
  weighted.hidden = weighted.disabled = !status.weighs;
  $("gauges").className = $("counts").className = "";
  list($("gauges"), [["Waiting", `${status.waiting} / ${status.max_waiting}`], ["Median", ms(status.median_ms)], ["95th percentile", ms(status.p95_ms)],
    ["A call of the engine", status.counts.batches ? ms(1000 * status.batch_seconds) : "–"]]);
  list($("counts"), Object.entries(status.counts).map(([name, value]) => [COUNTS[name] ?? name, value.toLocaleString("en")]));
  const recent = status.recent, times = recent.map(one => new Date(1000 * one.at).toLocaleTimeString());
  $("queue-told").textContent = recent.length ? `Of the last ${recent.length} answers of the engine.` : "Nothing was judged yet; the first answer starts the charts.";
  chart("latency", recent.map(one => one.ms), ms);
  chart("waiting", recent.map(one => one.waiting), value => value);
  document.querySelectorAll(".from").forEach(one => one.textContent = times[0] ?? "");
  document.querySelectorAll(".to").forEach(one => one.textContent = times.at(-1) ?? "");
}
function chart(id, values, say) {
  const top = Math.max(1, ...values), ys = (values.length === 1 ? [...values, ...values] : values).map(value => 100 - 94 * value / top);
  const path = ys.map((y, n) => `L${(100 * n / (ys.length - 1)).toFixed(2)} ${y.toFixed(2)}`).join("");
  $(id).firstElementChild.setAttribute("d", path && `M-1 101L-1 ${ys[0].toFixed(2)}${path}L101 ${ys.at(-1).toFixed(2)}L101 101Z`);
  $(`${id}-told`).textContent = values.length ? `last ${say(values.at(-1))}, most ${say(Math.max(...values))}` : "";
  $(id).ariaLabel = `${id} over the last answers: ${$(`${id}-told`).textContent || "none yet"}`;
}
