// The form and one judgment of it: its request, the votes so far, the result. And which view is shown.
import { $, colorOf, complain, el, isNarrow, letter } from "./dom.js";
import { references, setReferences } from "./media.js";
import { lines, post, RequestError } from "./server.js";
import { copyCurl, copyLink, readLink } from "./share.js";
import { judge as served, watch } from "./status.js";
import { addVote, groupHeadline, pairHeadline, showGroup, summarizePair } from "./votes.js";

const MOST_RESPONSES = 32;
const TIMEOUT_S = 600;  // a person stops what takes too long
let running = null;
let current = null;  // { request, votes, result, labels }

const isPair = request => request.responses.length === 2;
const fields = () => [...document.querySelectorAll("#responses textarea")];
const headline = text => { $("headline").textContent = text; };

function setResponses(responses) {
  $("responses").replaceChildren(...responses.map((text, n) => el("div", {},
    el("label", { htmlFor: `response-${n}`, className: responses.length === 2 ? colorOf(n) : "" }, `Response ${letter(n)}`),
    el("textarea", { id: `response-${n}`, rows: 3, required: true, value: text }))));
  $("strategy-field").hidden = $("remove-response").hidden = responses.length < 3;
  $("add-response").hidden = responses.length >= MOST_RESPONSES;
}

// The request that the form describes, but for its media.
function readForm() {
  const responses = fields().map(field => field.value);
  const request = { question: $("question").value, responses, votes: Number($("num-votes").value), policy: $("policy").value,
                    timeout_s: TIMEOUT_S, seed: crypto.getRandomValues(new Uint32Array(1))[0] >>> 1 };
  return responses.length === 2 ? { ...request, orders: "both" } : { ...request, strategy: $("strategy").value };
}

// Show a request of which nothing is judged yet.
function begin(request, labels = served.labels) {
  current = { request, votes: [], result: null, labels };
  $("votes").querySelectorAll(".vote").forEach(vote => vote.remove());
  for (const id of ["pair", "group", "facts", "votes", "take"]) $(id).hidden = true;
  $("note").textContent = $("copied").textContent = "";
}

function show() {
  const { request, votes, result } = current, pair = isPair(request);
  $("pair").hidden = $("votes").hidden = !pair || !votes.length;
  $("group").hidden = pair || !result;
  $("facts").hidden = pair ? !votes.length : !result;
  $("take").hidden = !result;
  if (pair && votes.length) summarizePair(current);
  if (!pair && result) showGroup(current);
  if (result) return headline(pair ? pairHeadline(result) : groupHeadline(current));
  const most = `${request.policy === "sequential" ? "at most " : ""}${2 * request.votes}`;
  headline(pair ? `Judging… ${votes.length} of ${most} votes` : `Judging ${request.responses.length} responses…`);
}

function take(vote) {
  current.votes.push(vote);
  addVote(vote, current);
}

async function resultOf(request, signal) {
  if (!isPair(request)) return (await post("v1/rewards", request, signal)).json();
  let result = null;
  for await (const line of lines((await post("v1/judge/live", request, signal)).body)) {
    if (line.judgment) result = line.judgment;
    else if (line.vote) take(line.vote), show();
  }
  if (!result) throw new RequestError("The connection ended before the judgment; the votes so far stand");
  return result;
}

async function judge() {
  if (running) return;
  running = new AbortController();
  busy(true);
  complain("");
  const form = readForm();
  try {
    begin({ ...form, images: [], videos: [] });
    headline("Sending the images…");
    const { images, videos } = await references();
    begin({ ...form, images, videos });
    show();
    if (isNarrow()) $("result").scrollIntoView({ behavior: "smooth" });
    current.result = await resultOf(current.request, running.signal);
    show();
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

// Show what is left of a judgment that was stopped, or failed.
function end(error) {
  const count = current.votes.length, isStopped = error.name === "AbortError";
  show();
  headline(`${isStopped ? "Stopped" : "Not judged"}${count ? `; ${count} votes came` : ""}`);
  if (isStopped) return;
  complain(error instanceof TypeError ? "The connection broke off before the judgment." : error.message);
  if (isNarrow()) $("go").scrollIntoView({ block: "center" });
}

// Show a judgment that came by a link, and its request in the form.
function restore({ request, result, labels }) {
  $("question").value = request.question;
  setResponses(request.responses);
  for (const [id, value] of [["num-votes", request.votes], ["policy", request.policy],
                             ["strategy", request.strategy ?? "all_pairs"]]) $(id).value = value;
  setReferences(request.images, request.videos);
  begin(request, labels);
  for (const vote of result.votes ?? []) take(vote);
  current.result = result;
  show();
  $("note").textContent = "From a link: anybody can have written it. Judge again to see what this server's judge says.";
}

async function showLink() {
  try {
    const entry = await readLink();
    if (entry && !running) complain(""), restore(entry);
  } catch {
    if (current) begin(current.request);
    headline("No judgment yet");
    complain("This link is damaged; ask for it again.");
  }
}

function route() {
  const isQueue = location.hash === "#queue";
  $("queue").hidden = !isQueue;
  $("judging").hidden = isQueue;
  for (const link of document.querySelectorAll("nav a"))
    link.ariaCurrent = (link.hash === "#queue") === isQueue ? "page" : null;
  scrollTo(0, 0);
  watch();
  showLink();
}

$("add-response").onclick = () => {
  setResponses([...fields().map(field => field.value), ""]);
  fields().at(-1).focus();
};
$("remove-response").onclick = () => setResponses(fields().slice(0, -1).map(field => field.value));
$("form").onsubmit = event => { event.preventDefault(); judge(); };
$("form").onkeydown = event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.preventDefault(), $("form").requestSubmit();
};
$("stop").onclick = () => running?.abort();
$("copy-link").onclick = () => copyLink(current);
$("copy-curl").onclick = () => copyCurl(current.request);
addEventListener("hashchange", route);
setResponses(["", ""]);
route();
