// One judgment: what was asked, its votes so far by order, and the whole of it at last.
import { $, complain, el, FOR, forOf, LETTER, list, OUTCOME, plain } from "./dom.js";
import { remember } from "./history.js";
import { images } from "./media.js";
import { ask, lines } from "./server.js";

const UNREAD = { empty: "said nothing", no_verdict: "no verdict found", tie: "called it a tie", not_a_choice: "verdict is no choice",
                 truncated: "cut off before its verdict", error: "failed", timeout: "ran out of time" };
let running = null, shown = null;

export function begin(asked) {
  shown = { asked, cast: { given: [], swapped: [] }, judgment: null };
  $("votes").querySelectorAll(".vote").forEach(one => one.remove());
  for (const [n, id] of ["a", "b"].entries()) $(`short-${id}`).textContent = asked.responses[n];
  $("hint").hidden = true;
  for (const id of ["summary", "facts", "votes"]) $(id).hidden = false;
  summarize();
}

export function addVote(vote) {
  const own = shown.cast[vote.order], round = own.push(vote), first = vote.order === "given" ? "A" : "B", valid = vote.winner !== null;
  const place = valid && ((vote.winner === 0) === (vote.order === "given") ? "chose the first" : "chose the second");
  const chip = valid ? `${LETTER[vote.winner]} better` : UNREAD[vote.status] ?? vote.status;
  const reasoning = vote.text.match(/^\s*<think>([^]*?)<\/think>\s*<answer>[^<]*<\/answer>\s*$/);
  const known = [place, vote.p_first_shown != null && `P(first) ${vote.p_first_shown.toFixed(2)}`, `${vote.num_tokens} tokens`];
  const card = el("article", { className: `vote ${FOR[vote.winner] ?? ""}`, ariaLabel: `Vote ${round}, ${first} shown first` },
    el("span", { className: "chip" }, chip), el("small", { className: "order" }, `  ${first} shown first`),
    el("p", {}, (reasoning ? reasoning[1].trim() : vote.text) || vote.error || "(no text)"), el("small", {}, known.filter(Boolean).join(" · ")));
  card.style.gridArea = `${round + 1} / ${vote.order === "given" ? 1 : 2}`;
  const other = shown.cast[vote.order === "given" ? "swapped" : "given"][round - 1];
  if (other && valid && other.winner !== null && other.winner !== vote.winner)
    for (const one of [card, other.card]) one.prepend(el("span", { className: "chip flip" }, "flip"));
  own[round - 1] = { ...vote, card };
  $("votes").append(card);
  $("said").textContent = `Vote ${round}, ${first} shown first: ${chip}.`;
  summarize();
}

function agreement({ given, swapped }) {
  const both = given.map((vote, k) => [vote.winner, swapped[k]?.winner ?? null]).filter(([one, other]) => one !== null && other !== null);
  const flips = both.filter(([one, other]) => one !== other), first = flips.filter(([one]) => one === 0).length;
  if (!both.length) return "no two votes to compare yet";
  const place = first === flips.length ? "shown first" : first ? "in one place or the other" : "shown second";
  const told = `${both.length - flips.length} of ${both.length} consistent, ${flips.length} position flip${flips.length === 1 ? "" : "s"}`;
  if (!flips.length) return `${told}: the verdict follows the responses, not their places`;
  return `${told}: ${flips.length === both.length ? "" : "in part "}it chose the one ${place}, not a response`;
}

function summarize(state = "") {
  const { asked, cast, judgment } = shown, votes = [...cast.given, ...cast.swapped], most = 2 * asked.votes;
  $("headline").textContent = judgment ? OUTCOME[judgment.outcome] ?? judgment.outcome
    : state ? `${state} after ${votes.length} vote${votes.length === 1 ? "" : "s"}` : `Judging… ${votes.length} of ${asked.policy === "sequential" ? "at most " : ""}${most} votes`;
  $("headline").className = judgment ? forOf(judgment.outcome) : "";
  const share = judgment?.p_first_better ?? null, weighed = !["majority", "sequential"].includes(asked.policy) && votes.some(one => one.p_first_shown != null);
  const percent = share === null ? ["", ""] : [share, 1 - share].map(part => ` ${Math.round(100 * part)} %`);
  for (const [n, id] of ["a", "b"].entries()) $(`share-${id}`).textContent = LETTER[n] + percent[n];
  $("bar").classList.toggle("still", share === null);
  $("bar").ariaLabel = share === null ? "no share yet" : `${weighed ? "probability that" : "share of the valid votes for"} A${weighed ? " is better" : ""}:${percent[0]}`;
  [...$("bar").children].forEach((part, n) => part.style.flex = `0 0 ${100 * (share === null ? .5 : n ? 1 - share : share)}%`);
  const facts = [["Valid votes", `${votes.filter(one => one.winner !== null).length} of ${votes.length}`], ["Between the orders", agreement(cast), "wide"],
    ["The bar shows", weighed ? "P(better)" : "share of votes"], ["Seconds", judgment ? judgment.seconds.toFixed(2) : "…"],
    ["Tokens", votes.reduce((sum, one) => sum + one.num_tokens, 0).toLocaleString("en")], ["Seed", asked.seed]];
  list($("facts"), facts);
}

async function judge() {
  if (running) return;
  complain("");
  const empty = [["question", "The question"], ["a", "Response A"], ["b", "Response B"]].find(([id]) => !$(id).value.trim());
  if (empty) return complain(`${empty[1]} is empty.`), $(empty[0]).focus();
  const votes = $("num-votes").value = Math.min(16, Math.max(1, Math.round($("num-votes").value) || 1));
  const asked = { question: $("question").value, responses: [$("a").value, $("b").value], images, votes, orders: "both",
                  policy: $("policy").value || null, seed: crypto.getRandomValues(new Uint32Array(1))[0] >>> 1 };
  running = new AbortController();
  busy(true);
  begin(asked);
  if (innerWidth < 900) $("result").scrollIntoView({ behavior: "smooth" });
  let state = "Broken off";
  try {
    const headers = { "Content-Type": "application/json" };
    const answer = await ask("v1/judge/live", { method: "POST", body: JSON.stringify(asked), headers, signal: running.signal });
    for await (const line of lines(answer.body)) {
      if (line.vote) addVote(line.vote);
      else if (line.judgment) shown.judgment = line.judgment;
      else throw Error(plain(line.error ?? "the server sent something else than votes"));
    }
    if (!shown.judgment) throw Error("The connection ended before the judgment; the votes so far stand.");
    $("said").textContent = `${OUTCOME[shown.judgment.outcome]}.`;
    remember(asked, shown.judgment);
  } catch (error) {
    if (error.name === "AbortError") state = "Stopped";
    else complain(error instanceof TypeError ? "The connection broke off before the judgment; the votes so far stand." : error.message);
    if (error.name !== "AbortError" && innerWidth < 900) $("go").scrollIntoView({ block: "center" });
  }
  running = null;
  busy(false);
  summarize(state);
}
function busy(on) {
  $("go").ariaDisabled = on;
  if (!on && document.activeElement === $("stop")) $("go").focus();
  $("stop").hidden = !on;
  $("history").inert = on;
}
$("form").onsubmit = event => { event.preventDefault(); judge(); };
$("form").onkeydown = event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.preventDefault(), judge(); };
$("stop").onclick = () => running?.abort();

export function finish(judgment) {
  shown.judgment = judgment;
  summarize();
}
