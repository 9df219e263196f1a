// A pair: the share of its votes for either response, by order of the responses, and each vote with its rationale.
import { $, announce, colorOf, el, isNarrow, letter, list, percent, plural, seconds } from "./dom.js";
import { named } from "./names.js";

const Z = 1.959963984540054;
const STATUSES = {  // a link may name any status
  __proto__: null, empty: "no text", no_verdict: "no verdict", tie: "a tie", not_a_choice: "verdict is no choice",
  truncated: "cut off before its verdict", error: "failed", timeout: "ran out of time",
};
const OUTCOMES = {
  __proto__: null, response_0: "Response A is better", response_1: "Response B is better", tie: "A tie",
  no_majority: "No majority of the votes", no_valid_vote: "No vote of an order names a response",
};

export const pairHeadline = result => OUTCOMES[result.outcome] ?? result.outcome;

// Wilson's 95 % interval of hits / number, in 0..1.
export function wilson(hits, number) {
  const share = hits / number, z2 = Z * Z;
  const center = (2 * number * share + z2) / (2 * (number + z2));
  const delta = Z / (2 * (number + z2)) * Math.sqrt(4 * number * share * (1 - share) + z2);
  return [hits === 0 ? 0 : center - delta, hits === number ? 1 : center + delta];
}

// The valid votes of one order: how many there are, how many are for A, and the interval of that share; null without any.
export function share(votes, order) {
  const valid = votes.filter(vote => vote.order === order && vote.winner !== null);
  const hits = valid.filter(vote => vote.winner === 0).length;
  return valid.length ? { hits, number: valid.length, interval: wilson(hits, valid.length) } : null;
}

// A sentence if the two intervals do not overlap; "" if chance explains the difference as well.
export function positionBias(given, swapped) {
  if (!given || !swapped) return "";
  if (given.interval[0] > swapped.interval[1]) return "The place counts: A gets more votes where it is shown first.";
  if (swapped.interval[0] > given.interval[1]) return "The place counts: A gets more votes where it is shown second.";
  return "";
}

export function addVote(vote, { votes, labels }) {
  const round = votes.filter(other => other.order === vote.order).length;
  const first = `${vote.order === "given" ? "A" : "B"} shown first`;
  const verdict = vote.winner !== null ? `${letter(vote.winner)} better` : STATUSES[vote.status] ?? vote.status;
  const card = el("details", { className: `vote ${colorOf(vote.winner)}`, open: !isNarrow() },
    el("summary", {}, el("span", { className: "chip" }, verdict), el("small", { className: "order" }, first)),
    el("p", {}, ...rationale(vote, labels)), el("small", {}, detail(vote)));
  card.ariaLabel = `Vote ${round}, ${first}`;
  card.style.gridArea = `${round + 1} / ${vote.order === "given" ? 1 : 2}`;
  $("votes").append(card);
  announce(`Vote ${round}, ${first}: ${verdict}.`);
}

function detail(vote) {
  const place = vote.winner !== null && ((vote.winner === 0) === (vote.order === "given") ? "first" : "second");
  const parts = [place && `for the response shown ${place}`,
    vote.p_first_shown != null && `P(${vote.order === "given" ? "A" : "B"}) ${vote.p_first_shown.toFixed(2)}`,
    plural(vote.num_tokens, "token")];
  return parts.filter(Boolean).join(" · ");
}

// The judge's text, with the letters of the page for the responses it names.
function rationale(vote, labels) {
  const reasoning = vote.text.match(/^\s*<think>([^]*?)<\/think>\s*<answer>[^<]*<\/answer>\s*$/);
  const text = (reasoning ? reasoning[1].trim() : vote.text) || vote.error || "(no text)";
  return named(text, vote.order, labels).map(part => typeof part === "string" ? part :
    el("span", { className: `name ${colorOf(part.winner)}`, title: `written as ${part.original}` },
      `${letter(part.winner)} (shown ${part.place})`));
}

// The share of either response, that of A by order, and the cost; `result` is null while votes are still to come.
export function summarizePair({ request, votes, result }) {
  const better = result?.p_first_better ?? null;
  for (const [n, part] of [better, better === null ? null : 1 - better].entries()) {
    $(`share-${"ab"[n]}`).textContent = letter(n) + (part === null ? "" : ` ${percent(part)}`);
    $(`short-${"ab"[n]}`).textContent = request.responses[n];
    $("bar").children[n].style.flex = `0 0 ${part === null ? 50 : 100 * part}%`;
  }
  const isProbability = request.policy === "weighted" || votes.some(vote => vote.p_first_shown != null);
  const meaning = isProbability ? "Probability of being the better one" : "Share of the valid votes";
  $("bar").classList.toggle("still", better === null);
  $("bar").ariaLabel = better === null ? "no share yet" : `${meaning}: A ${percent(better)}`;
  $("bar-caption").textContent = better === null ? "" : `${meaning}, both orders counted alike.`;
  const orders = [["A shown first", share(votes, "given")], ["B shown first", share(votes, "swapped")]];
  $("orders").hidden = orders.some(([, counts]) => !counts);
  if (!$("orders").hidden) list($("order-rows"), orders.map(([name, { hits, number, interval: [low, high] }]) =>
    [name, `${hits} of ${number} (${Math.round(100 * low)}–${percent(high)})`]));
  $("position-bias").textContent = positionBias(orders[0][1], orders[1][1]);
  const valid = votes.filter(vote => vote.winner !== null).length;
  const tokens = votes.reduce((sum, vote) => sum + vote.num_tokens, 0);
  list($("facts"), [["Valid votes", `${valid} of ${votes.length}`], ["Time", result ? seconds(result.seconds) : "…"],
    ["Tokens", tokens.toLocaleString("en")], ["Seed", request.seed]]);
}
