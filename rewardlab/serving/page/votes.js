// A pair: the share of its votes for either response, by order, and each vote. A group: a reward for each response.
import { $, colorOf, el, isNarrow, letter, list, percent, seconds } from "./dom.js";

const Z = 1.959963984540054;
const OUTCOMES = {  // a link may name any other
  __proto__: null, response_0: "Response A is better", response_1: "Response B is better", tie: "A tie",
  no_majority: "No majority of the votes", no_valid_vote: "No vote of an order names a response",
  abstained: "Abstained: not sure enough",
};

// The parts of a response with media, and what is shown of a response in words.
export const partsOf = (text, media) =>
  [...(text ? [{ type: "text", text }] : []), ...media.map(({ kind, reference }) => ({ type: kind, [kind]: reference }))];
const wordsOf = response => typeof response === "string" ? response :
  response.map(part => part.text ?? `[${part.type}]`).join(" ");

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
  if (given.interval[0] > swapped.interval[1]) return "Position bias: A gets more votes when it is shown first.";
  if (swapped.interval[0] > given.interval[1]) return "Position bias: A gets more votes when it is shown second.";
  return "";
}

// Parts of a text: strings, and { winner, place, original } where a response is named. `labels` are the template's two names of
// the responses, such as ["Response 1", "Response 2"]: the one shown first is B in the swapped order.
export function named(text, order, labels) {
  const [first, second] = labels.map(label => label.split(" ").at(-1));
  const nouns = [...new Set([labels[0].split(" ")[0], "Response", "Answer"])].flatMap(noun => [noun, noun.toLowerCase()]);
  const label = `(?:${first}|${second})\\b`, noun = `\\b(?:${nouns.join("|")})`;
  const joint = "(?:,? (?:and|or|over|vs\\.?|versus|than) |, | ?[/&] ?)", mark = "[*\"']{0,2}";
  const inText = `(?<=${noun}(?:s|\\(s\\))?[ #*"']{0,3}(?:${label}${mark}${joint}${mark})?)${label}`;
  const verdict = `(?<=\\[\\[|\\\\boxed\\{|<answer>[ \\n]{0,3}|<\\|begin_of_box\\|>|"better_response": ?")${label}`;
  const lastLine = `(?<=^[ \\t]{0,9})${label}(?=[.\\s]{0,9}(?![^]))`;
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(new RegExp(`${inText}|${verdict}|${lastLine}`, "gm"))) {
    const isFirst = match[0] === first;
    const winner = isFirst === (order === "given") ? 0 : 1;
    parts.push(text.slice(end, match.index), { winner, place: isFirst ? "first" : "second", original: match[0] });
    end = match.index + match[0].length;
  }
  return [...parts, text.slice(end)].filter(part => part !== "");
}

export function addVote(vote, { votes, labels }) {
  const round = votes.filter(other => other.order === vote.order).length, isGiven = vote.order === "given";
  const first = `${isGiven ? "A" : "B"} shown first`;
  const verdict = vote.winner !== null ? `${letter(vote.winner)} better` : vote.status.replaceAll("_", " ");
  const chance = vote.p_first_shown == null ? "" : `P(${isGiven ? "A" : "B"}) ${vote.p_first_shown.toFixed(2)} · `;
  const card = el("details", { className: `vote ${colorOf(vote.winner)}`, open: !isNarrow() },
    el("summary", {}, el("span", { className: "chip" }, verdict), el("small", { className: "order" }, first)),
    el("p", {}, ...rationale(vote, labels)), el("small", {}, `${chance}${vote.num_tokens} tokens`));
  card.ariaLabel = `Vote ${round}, ${first}`;
  card.style.gridArea = `${round + 1} / ${isGiven ? 1 : 2}`;
  $("votes").append(card);
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
    $(`short-${"ab"[n]}`).textContent = wordsOf(request.responses[n]);
  }
  const isProbability = request.policy === "weighted" || votes.some(vote => vote.p_first_shown != null);
  const meaning = isProbability ? "Probability of being the better one" : "Share of the valid votes";
  $("share-caption").textContent = better === null ? "" : `${meaning}; both orders weigh the same.`;
  const orders = [["A shown first", share(votes, "given")], ["B shown first", share(votes, "swapped")]];
  $("orders").hidden = orders.some(([, counts]) => !counts);
  if (!$("orders").hidden) list($("order-rows"), orders.map(([name, { hits, number, interval: [low, high] }]) =>
    [name, `${hits} of ${number} (${Math.round(100 * low)}–${percent(high)})`]));
  $("position-bias").textContent = positionBias(orders[0][1], orders[1][1]);
  const valid = votes.filter(vote => vote.winner !== null).length;
  list($("facts"), [["Valid votes", `${valid} of ${votes.length}`], ["Time", result ? seconds(result.seconds) : "…"],
    ["Tokens", votes.reduce((sum, vote) => sum + vote.num_tokens, 0)], ["Seed", request.seed]]);
}

// The key by which a response is ranked, the lowest first. In a knockout it is the tier: early losers have few comparisons.
function rankKey({ request, result: { rewards, tiers } }, n) {
  if (rewards[n] === null) return Infinity;
  return request.strategy === "knockout" ? tiers.findIndex(tier => tier.includes(n)) : -rewards[n].toFixed(9);
}

export function groupHeadline(judgment) {
  const keys = judgment.result.rewards.map((_, n) => rankKey(judgment, n)), least = Math.min(...keys);
  const best = [...keys.keys()].filter(n => keys[n] === least).map(letter);
  if (least === Infinity) return "No comparison could be judged";
  return best.length === 1 ? `Response ${best[0]} is best` : `Responses ${best.join(", ")} are best, equally`;
}

export function showGroup(judgment) {
  const { request, result } = judgment;
  const { matches, rewards, deviations, num_failed: failed } = result, isFitted = request.strategy === "bradley_terry";
  const number = n => rewards[n] === null ? "–" : `${rewards[n] > 0 ? "+" : ""}${rewards[n].toFixed(2)}`.replace("-", "−");
  const deviation = n => isFitted && deviations[n] !== null ? ` ± ${deviations[n].toFixed(2)}` : "";
  const order = [...rewards.keys()].sort((one, other) => rankKey(judgment, one) > rankKey(judgment, other) ? 1 : -1);
  const rows = order.map(n => el("tr", {}, el("th", { scope: "row" }, letter(n)),
    el("td", { className: "text" }, wordsOf(request.responses[n])), el("td", {}, number(n), el("small", {}, deviation(n)))));
  const caption = isFitted ? "Rewards: fitted strengths in logits" : "Rewards: wins less losses, from −1 to 1";
  $("group").replaceChildren(el("table", {}, el("caption", { className: "soft" }, caption), el("tbody", {}, ...rows)));
  list($("facts"), [["Comparisons", `${matches.length}${failed ? `, ${failed} without a verdict` : ""}`],
    ["Time", seconds(result.seconds)], ["Tokens", result.num_tokens], ["Seed", request.seed]]);
}
