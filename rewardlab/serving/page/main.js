// The form and one judgment of it: its request, the votes so far, the result. And which view is shown.
import { $, colorOf, complain, el, isNarrow, letter } from "./dom.js";
import { Media, questionMedia, takeFiles } from "./media.js";
import { lines, post, RequestError } from "./server.js";
import { copyCurl, copyLink, readLink } from "./share.js";
import { judge as served, watch } from "./status.js";
import { addVote, groupHeadline, pairHeadline, partsOf, showGroup, summarizePair } from "./votes.js";

const MOST_RESPONSES = 32;
const TIMEOUT_S = 600;  // a person stops what takes too long
let running = null;
let current = null;  // { request, votes, result, labels }

const isPair = request => request.responses.length === 2;
const fields = () => [...document.querySelectorAll("#responses .response")];
const texts = () => fields().map(field => field.querySelector("textarea").value);
const headline = text => { $("headline").textContent = text; };

// A field for response n, with the images and videos of its own.
function responseField(text, n, isOfPair) {
  const thumbs = el("div", { className: "thumbs" });
  const area = el("textarea", { id: `response-${n}`, rows: 3, required: true, value: text });
  const input = el("input", { type: "file", accept: "image/*,video/*", multiple: true,
    ariaLabel: `Images and videos of ${letter(n)}` });
  const media = new Media(` of ${letter(n)}`, thumbs);
  media.onChange = () => { area.required = !media.items.length; };
  takeFiles(input, media);
  return Object.assign(el("div", { className: "response" },
    el("label", { htmlFor: area.id, className: isOfPair ? colorOf(n) : "" }, `Response ${letter(n)}`), area, thumbs,
    el("label", { className: "drop" }, input, "Add images or videos to this response")), { media });
}

function setResponses(responses, media = []) {
  $("responses").replaceChildren(...responses.map((text, n) => responseField(text, n, responses.length === 2)));
  media.forEach((items, n) => fields()[n]?.media.set(items));
  $("strategy-field").hidden = $("remove-response").hidden = responses.length < 3;
  $("add-response").hidden = responses.length >= MOST_RESPONSES;
}

// The request that the form describes, but for its media.
function readForm() {
  const responses = texts();
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
    const all = [questionMedia, ...fields().map(field => field.media)];
    const [media, ...own] = await Promise.all(all.map(one => one.references()));
    const of = kind => media.filter(item => item.kind === kind).map(item => item.reference);
    const responses = form.responses.map((text, n) => own[n].length ? partsOf(text, own[n]) : text);
    begin({ ...form, responses, images: of("image"), videos: of("video") });
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

const referencesOf = parts =>
  parts.filter(({ type }) => type !== "text").map(part => ({ kind: part.type, reference: part[part.type] }));

// Show a judgment that came by a link, and its request in the form.
function restore({ request, result, labels }) {
  $("question").value = request.question;
  const parts = request.responses.map(response => typeof response === "string" ? [{ type: "text", text: response }] : response);
  setResponses(parts.map(some => some.map(part => part.text ?? "").join("")));
  parts.forEach((some, n) => fields()[n].media.setReferences(referencesOf(some)));
  for (const [id, value] of [["num-votes", request.votes], ["policy", request.policy],
                             ["strategy", request.strategy ?? "all_pairs"]]) $(id).value = value;
  const media = ["image", "video"].flatMap(kind => request[`${kind}s`].map(reference => ({ type: kind, [kind]: reference })));
  questionMedia.setReferences(referencesOf(media));
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

const ownMedia = () => fields().map(field => field.media.items);
$("add-response").onclick = () => {
  setResponses([...texts(), ""], ownMedia());
  fields().at(-1).querySelector("textarea").focus();
};
$("remove-response").onclick = () => setResponses(texts().slice(0, -1), ownMedia());
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
