// One judgment: its request, the votes so far, the result; asked again where what failed passes.
import { $, announce, complain, isNarrow, plural } from "./dom.js";
import { busy, readForm, readFrames, writeForm } from "./form.js";
import { groupHeadline, showGroup } from "./group.js";
import { health, reportTrouble, trouble } from "./health.js";
import { references, setReferences } from "./media.js";
import { template } from "./names.js";
import { addVote, clearPair, pairColor, pairHeadline, summarizePair } from "./pair.js";
import { lines, post, RequestError } from "./server.js";
import { offer } from "./share.js";

const MOST_TRIES = 20;
let running = null, current = null;
export const hooks = { onJudged: () => {} };

const isPair = request => request.responses.length === 2;

// Show a request of which nothing is judged yet, without empty columns.
function begin(request, labels = template.labels) {
  current = { request, votes: [], result: null, labels };
  clearPair(request);
  for (const id of ["pair", "group", "facts", "votes", "take"]) $(id).hidden = true;
  $("note").textContent = $("copied").textContent = "";
}

function headline(text, color = "") {
  $("headline").textContent = text;
  $("headline").className = color;
}

function show() {
  const { request, votes, result } = current;
  const pair = isPair(request);
  $("pair").hidden = $("votes").hidden = !pair || !votes.length;
  $("group").hidden = pair || !result;
  $("facts").hidden = pair ? !votes.length : !result;
  $("take").hidden = !result;
  if (pair && votes.length) summarizePair(current);
  if (!pair && result) showGroup(current);
  if (result) headline(pair ? pairHeadline(result) : groupHeadline(current), pair ? pairColor(result) : "");
}

function progress() {
  const { request, votes } = current;
  if (!isPair(request)) return headline(`Judging ${plural(request.responses.length, "response")}…`);
  headline(`Judging… ${votes.length} of ${request.policy === "sequential" ? "at most " : ""}${2 * request.votes} votes`);
}

function take(vote) {
  current.votes.push(vote);
  addVote(vote, current);
  show();
  progress();
}

async function once(signal) {
  const { request } = current;
  if (!isPair(request)) return (await post("v1/rewards", request, signal)).json();
  let result = null;
  for await (const line of lines((await post("v1/judge/live", request, signal)).body)) {
    if (line.judgment) result = line.judgment;
    else if (line.vote) take(line.vote);
  }
  if (!result) throw new RequestError("The connection ended before the judgment; the votes so far stand");
  return result;
}

// The result, however often the engine has to be waited for: what it has judged already comes from the server's cache.
async function patiently(signal) {
  for (let tries = 1; ; tries++) {
    try {
      return await once(signal);
    } catch (error) {
      if (!error.wait || tries === MOST_TRIES) throw error;
      reportTrouble(error);
      await countDown(error, signal);
      begin(current.request);
      progress();
    }
  }
}

// Wait as long as the server says, or until its engine is back.
async function countDown(error, signal) {
  const reason = trouble(error), isBack = () => error.status === "enginefailed" && health.ready;
  announce(`${reason}.`);
  for (let left = Math.ceil(error.wait); left > 0 && !isBack(); left--) {
    headline(reason);
    $("note").textContent = `It is asked again in ${left} s.`;
    await new Promise((done, stop) => {
      const timer = setTimeout(done, 1000);
      signal.addEventListener("abort", () => { clearTimeout(timer); stop(signal.reason); }, { once: true });
    });
  }
}

async function judge() {
  if (running) return;
  const form = readForm();
  if (!form) return;
  running = new AbortController();
  busy(true);
  try {
    begin({ ...form, images: [], videos: [] });
    headline("Sending the images…");
    const { images, videos } = await references();
    begin({ ...form, images, videos, ...(videos.length && { frames: readFrames() }) });
    progress();
    if (isNarrow()) $("result").scrollIntoView({ behavior: "smooth" });
    const result = await patiently(running.signal);
    current.result = result;  // of the last try, which began anew
    show();
    announce(`${$("headline").textContent}.`);
    hooks.onJudged(current);
  } catch (error) {
    end(error);
  }
  running = null;
  busy(false);
}

// What is left of a judgment that was stopped, or failed for good.
function end(error) {
  const count = current.votes.length, isStopped = error.name === "AbortError";
  show();
  headline(`${isStopped ? "Stopped" : "Not judged"}${count ? `: ${plural(count, "vote")} came` : ""}`);
  $("note").textContent = "";
  if (isStopped) return;
  if (error.wait) reportTrouble(error);
  const text = error.wait ? `${trouble(error)}.` : error.message;
  complain(error instanceof TypeError ? "The connection broke off before the judgment." : text);
  if (isNarrow()) $("go").scrollIntoView({ block: "center" });
}

// Show a judgment of the history or of a link, and its request in the form.
export function restore({ request, result, labels, thumbs }, note = "") {
  if (running) return;
  complain("");
  writeForm(request);
  setReferences(request.images, request.videos, thumbs);
  begin(request, labels);
  for (const vote of result.votes ?? []) {
    current.votes.push(vote);
    addVote(vote, current);
  }
  current.result = result;
  show();
  $("note").textContent = note;
  if (isNarrow()) $("result").scrollIntoView({ behavior: "smooth" });
}

$("form").onsubmit = event => { event.preventDefault(); judge(); };
$("form").onkeydown = event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.preventDefault(), judge();
};
$("stop").onclick = () => running?.abort();
offer(() => current);
