// A pair: the share of its votes for either response, how it depends on the order, and each vote with its rationale.
import { $, announce, colorOf, el, isNarrow, letter, list, percent, plural, seconds } from "./dom.js";
import { leanOf, share } from "./lean.js";
import { named } from "./names.js";

const UNREAD = {  // a link may name any status
  __proto__: null, empty: "no text", no_verdict: "no verdict", tie: "a tie", not_a_choice: "verdict is no choice",
  truncated: "cut off before its verdict", error: "failed", timeout: "ran out of time",
};
const OUTCOMES = {
  __proto__: null, response_0: "Response A is better", response_1: "Response B is better", tie: "A tie",
  no_majority: "No majority of the votes", no_valid_vote: "No vote of an order names a response",
};

export const pairHeadline = result => OUTCOMES[result.outcome] ?? result.outcome;
export const pairColor = result => colorOf(["response_0", "response_1"].indexOf(result.outcome));

export function clearPair(request) {
  $("votes").querySelectorAll(".vote").forEach(vote => vote.remove());
  for (const [n, id] of ["a", "b"].entries()) $(`short-${id}`).textContent = request.responses[n];
}

export function addVote(vote, { votes, labels }) {
  const round = votes.filter(other => other.order === vote.order).length;
  const first = vote.order === "given" ? "A" : "B";
  const chip = vote.winner !== null ? `${letter(vote.winner)} better` : UNREAD[vote.status] ?? vote.status;
  const card = el("details", { className: `vote ${colorOf(vote.winner)}`, open: !isNarrow() });
  card.setAttribute("aria-label", `Vote ${round}, ${first} shown first`);
  const place = el("small", { className: "order" }, `${first} shown first`);
  card.append(el("summary", {}, el("span", { className: "chip" }, chip), place), el("p", {}, ...rationale(vote, labels)),
    el("small", {}, detail(vote)));
  card.style.gridArea = `${round + 1} / ${vote.order === "given" ? 1 : 2}`;
  $("votes").append(card);
  announce(`Vote ${round}, ${first} shown first: ${chip}.`);
}

function detail(vote) {
  const place = vote.winner !== null && ((vote.winner === 0) === (vote.order === "given") ? "first" : "second");
  const parts = [place && `for the response shown ${place}`,
    vote.p_first_shown != null && `P(${vote.order === "given" ? "A" : "B"}) ${vote.p_first_shown.toFixed(2)}`,
    plural(vote.num_tokens, "token")];
  return parts.filter(Boolean).join(" · ");
}

// What a judge wrote, with the letters of the page for the responses it names.
function rationale(vote, labels) {
  const reasoning = vote.text.match(/^\s*<think>([^]*?)<\/think>\s*<answer>[^<]*<\/answer>\s*$/);
  const text = (reasoning ? reasoning[1].trim() : vote.text) || vote.error || "(no text)";
  return named(text, vote.order, labels).map(part => typeof part === "string" ? part :
    el("span", { className: `name ${colorOf(part.winner)}`, title: `written as ${part.original}` },
      `${letter(part.winner)} (shown ${part.place})`));
}

// The share, its parts by order, and what it cost; `result` is null while votes are still to come.
export function summarizePair({ request, votes, result }) {
  const better = result?.p_first_better ?? null;
  const isProbability = request.policy === "weighted" || votes.some(vote => vote.p_first_shown != null);
  for (const [n, part] of [better, better === null ? null : 1 - better].entries()) {
    $(`share-${"ab"[n]}`).textContent = letter(n) + (part === null ? "" : ` ${percent(part)}`);
    $("bar").children[n].style.flex = `0 0 ${part === null ? 50 : 100 * part}%`;
  }
  const meaning = isProbability ? "Probability of being the better one" : "Share of the valid votes";
  $("bar").classList.toggle("still", better === null);
  $("bar").ariaLabel = better === null ? "no share yet" : `${meaning}: A ${percent(better)}`;
  $("bar-caption").textContent = better === null ? "" : `${meaning}, both orders counted alike.`;
  showLean(share(votes, "given"), share(votes, "swapped"));
  const valid = votes.filter(vote => vote.winner !== null).length;
  const tokens = votes.reduce((sum, vote) => sum + vote.num_tokens, 0);
  list($("facts"), [["Valid votes", `${valid} of ${votes.length}`], ["Time", result ? seconds(result.seconds) : "…"],
    ["Tokens", tokens.toLocaleString("en")], ["Seed", request.seed]]);
}

function showLean(given, swapped) {
  $("lean").hidden = !given || !swapped;
  if ($("lean").hidden) return;
  const scale = el("span", { className: "scale" }, ...[0, .5, 1].map(value => el("i", {}, percent(value))));
  $("lean-rows").replaceChildren(leanRow("A shown first", given), leanRow("B shown first", swapped),
    el("div", { className: "lean-row" }, el("span"), scale, el("span")));
  $("lean-finding").textContent = leanOf(given, swapped);
}

function leanRow(name, { hits, number, interval: [low, high] }) {
  const range = el("i", { className: "range" }), point = el("i", { className: "point" });
  range.style.left = `${100 * low}%`;
  range.style.width = `${100 * (high - low)}%`;
  point.style.left = `${100 * hits / number}%`;
  const bounds = el("small", { title: "95 % interval (Wilson)" }, `(${Math.round(100 * low)}–${percent(high)})`);
  return el("div", { className: "lean-row" }, el("span", {}, name), el("span", { className: "track" }, range, point),
    el("span", { className: "soft" }, `${hits} of ${number} `, bounds));
}
