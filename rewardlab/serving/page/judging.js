// The form, and one judgment of it: its request, the votes so far, the result; asked again while a failure may pass.
import { $, announce, colorOf, complain, el, isNarrow, letter, plural } from "./dom.js";
import { groupHeadline, showGroup } from "./group.js";
import { addFiles, references, setMedia, setReferences } from "./media.js";
import { template } from "./names.js";
import { health, reportTrouble, trouble } from "./queue.js";
import { lines, post, RequestError } from "./server.js";
import { addVote, pairHeadline, summarizePair } from "./votes.js";

const MOST_RESPONSES = 32, MOST_TRIES = 20;
const TIMEOUT_S = 600;  // a person stops what takes too long
let running = null;
export let current = null;  // { request, votes, result, labels }

const isPair = request => request.responses.length === 2;
const fields = () => [...document.querySelectorAll("#responses textarea")];

function setResponses(responses) {
  $("responses").replaceChildren(...responses.map((text, n) => el("div", {},
    el("label", { htmlFor: `response-${n}`, className: responses.length === 2 ? colorOf(n) : "" }, `Response ${letter(n)}`),
    el("textarea", { id: `response-${n}`, rows: 3, value: text }))));
  $("strategy-field").hidden = $("remove-response").hidden = responses.length < 3;
  $("add-response").hidden = responses.length >= MOST_RESPONSES;
}

// The request that the form describes, but for its media; null, and a sentence beside the button, if something is missing.
function readForm() {
  complain("");
  const named = [["The question", $("question")], ...fields().map((field, n) => [`Response ${letter(n)}`, field])];
  const missing = named.find(([, field]) => !field.value.trim());
  if (missing) {
    complain(`${missing[0]} is empty.`);
    missing[1].focus();
    return null;
  }
  const responses = fields().map(field => field.value);
  const request = { question: $("question").value, responses, votes: whole("num-votes"), policy: $("policy").value,
                    timeout_s: TIMEOUT_S, seed: crypto.getRandomValues(new Uint32Array(1))[0] >>> 1 };
  return responses.length === 2 ? { ...request, orders: "both" } : { ...request, strategy: $("strategy").value };
}

// A number within its field's bounds, which the field then shows.
function whole(id) {
  const { min, max, value, defaultValue } = $(id);
  return $(id).value = Math.min(Number(max), Math.max(Number(min), Math.round(value) || Number(defaultValue)));
}

// A picture as small and plain as those that the demonstration's judge knows, with a true and a false response.
async function fillExample() {
  const canvas = el("canvas", { width: 56, height: 56 }), draw = canvas.getContext("2d");
  draw.fillStyle = "#f4f1ea";
  draw.fillRect(0, 0, 56, 56);
  draw.fillStyle = "#dc2828";
  draw.arc(14, 14, 9.5, 0, 2 * Math.PI);
  draw.fill();
  draw.fillStyle = "#2850dc";
  draw.fillRect(34, 34, 16, 16);
  const blob = await new Promise(done => canvas.toBlob(done, "image/png"));
  setMedia([]);
  $("question").value = "What color is the circle?";
  setResponses(["The circle is red.", "The circle is blue."]);
  await addFiles([new File([blob], "example.png", { type: "image/png" })]);
}

// Show a request of which nothing is judged yet.
function begin(request, labels = template.labels) {
  current = { request, votes: [], result: null, labels };
  $("votes").querySelectorAll(".vote").forEach(vote => vote.remove());
  for (const id of ["pair", "group", "facts", "votes", "take"]) $(id).hidden = true;
  $("note").textContent = $("copied").textContent = "";
}

const headline = text => { $("headline").textContent = text; };

function show() {
  const { request, votes, result } = current, pair = isPair(request);
  $("pair").hidden = $("votes").hidden = !pair || !votes.length;
  $("group").hidden = pair || !result;
  $("facts").hidden = pair ? !votes.length : !result;
  $("take").hidden = !result;
  if (pair && votes.length) summarizePair(current);
  if (!pair && result) showGroup(current);
  if (result) headline(pair ? pairHeadline(result) : groupHeadline(current));
}

function progress() {
  const { request, votes } = current;
  if (!isPair(request)) return headline(`Judging ${plural(request.responses.length, "response")}…`);
  headline(`Judging… ${votes.length} of ${request.policy === "sequential" ? "at most " : ""}${2 * request.votes} votes`);
}

function take(vote) {
  current.votes.push(vote);
  addVote(vote, current);
}

async function once(signal) {
  const { request } = current;
  if (!isPair(request)) return (await post("v1/rewards", request, signal)).json();
  let result = null;
  for await (const line of lines((await post("v1/judge/live", request, signal)).body)) {
    if (line.judgment) result = line.judgment;
    else if (line.vote) take(line.vote), show(), progress();
  }
  if (!result) throw new RequestError("The connection ended before the judgment; the votes so far stand");
  return result;
}

// The result, however often the server has to be asked: votes that it has judged already come from its cache.
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
  const isBack = () => error.status === "enginefailed" && health.ready;
  announce(`${trouble(error)}.`);
  for (let left = Math.ceil(error.wait); left > 0 && !isBack(); left--) {
    headline(trouble(error));
    $("note").textContent = `It is asked again in ${left} s.`;
    await new Promise(done => setTimeout(done, 1000));
    signal.throwIfAborted();
  }
}

async function judge() {
  const form = running ? null : readForm();
  if (!form) return;
  running = new AbortController();
  busy(true);
  try {
    begin({ ...form, images: [], videos: [] });
    headline("Sending the images…");
    const { images, videos } = await references();
    begin({ ...form, images, videos, ...(videos.length && { frames: whole("frames") }) });
    progress();
    if (isNarrow()) $("result").scrollIntoView({ behavior: "smooth" });
    const result = await patiently(running.signal);
    current.result = result;  // of the last try, which began anew
    show();
    announce(`${$("headline").textContent}.`);
  } catch (error) {
    end(error);
  }
  running = null;
  busy(false);
}

function busy(on) {
  $("go").ariaDisabled = on;
  if (!on && document.activeElement === $("stop")) $("go").focus();
  $("stop").hidden = !on;
}

// Show what is left of a judgment that was stopped, or failed for good.
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

// Show a judgment that came by a link, and its request in the form.
export function restore({ request, result, labels }, note) {
  if (running) return;
  complain("");
  $("question").value = request.question;
  setResponses(request.responses);
  for (const [id, value] of [["num-votes", request.votes], ["frames", request.frames ?? 8], ["policy", request.policy],
                             ["strategy", request.strategy ?? "all_pairs"]]) $(id).value = value;
  setReferences(request.images, request.videos);
  begin(request, labels);
  try {
    for (const vote of result.votes ?? []) take(vote);
    current.result = result;
    show();
    $("note").textContent = note;
  } catch (error) {
    begin(request);
    headline("No judgment yet");
    throw error;
  }
}

$("add-response").onclick = () => {
  setResponses([...fields().map(field => field.value), ""]);
  fields().at(-1).focus();
};
$("remove-response").onclick = () => setResponses(fields().slice(0, -1).map(field => field.value));
$("example").onclick = fillExample;
$("form").onsubmit = event => { event.preventDefault(); judge(); };
$("form").onkeydown = event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.preventDefault(), judge();
};
$("stop").onclick = () => running?.abort();
setResponses(["", ""]);
