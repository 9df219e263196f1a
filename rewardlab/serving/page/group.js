// A group: a reward for each response, and who won against whom.
import { $, el, letter, list, percent, seconds } from "./dom.js";

// The rank of each response, from 1; null if none of its comparisons could be judged. A knockout ranks by how far a response
// came, for the rewards of early losers rest on few comparisons.
function ranksOf({ rewards, tiers }, strategy) {
  const tierOf = n => tiers.findIndex(tier => tier.includes(n));
  const isBetter = strategy === "knockout" ? (one, other) => tierOf(one) < tierOf(other) :
    (one, other) => rewards[one] > rewards[other] + 1e-9;
  const judged = [...rewards.keys()].filter(n => rewards[n] !== null);
  return rewards.map((reward, n) => reward === null ? null : 1 + judged.filter(other => isBetter(other, n)).length);
}

export function groupHeadline({ request, result }) {
  const ranks = ranksOf(result, request.strategy), best = [...ranks.keys()].filter(n => ranks[n] === 1).map(letter);
  if (!best.length) return "No comparison could be judged";
  if (best.length === 1) return `Response ${best[0]} is best`;
  return `Responses ${best.slice(0, -1).join(", ")} and ${best.at(-1)} are best, equally`;
}

export function showGroup({ request, result }) {
  const { matches, num_failed: failed } = result;
  $("group").replaceChildren(rewardTable(request, result), winTable(request.responses.length, matches));
  list($("facts"), [["Comparisons", `${matches.length}${failed ? `, ${failed} without a verdict` : ""}`],
    ["Time", seconds(result.seconds)], ["Tokens", result.num_tokens.toLocaleString("en")], ["Seed", request.seed]]);
}

function table(className, caption, head, rows) {
  const cell = name => el("th", { scope: "col" }, name);
  return el("div", { className: "scroll" }, el("table", { className }, el("caption", { className: "soft" }, caption),
    el("thead", {}, el("tr", {}, ...head.map(cell))), el("tbody", {}, ...rows)));
}

function rewardTable({ responses, strategy }, result) {
  const { rewards, deviations } = result, isFitted = strategy === "bradley_terry", ranks = ranksOf(result, strategy);
  const place = n => ranks[n] ?? Infinity;
  const number = value => value === null ? "–" : `${value > 0 ? "+" : ""}${value.toFixed(2)}`.replace("-", "−");
  const deviation = n => isFitted && deviations[n] !== null ? ` ± ${deviations[n].toFixed(2)}` : "";
  const order = [...responses.keys()].sort((one, other) => place(one) - place(other) || one - other);
  const rows = order.map(n => el("tr", {}, el("td", {}, String(ranks[n] ?? "–")), el("th", { scope: "row" }, letter(n)),
    el("td", { className: "text" }, el("div", { title: responses[n] }, responses[n])),
    el("td", {}, number(rewards[n]), el("small", {}, deviation(n)))));
  const caption = isFitted ? "Rewards: fitted strengths in logits" : "Rewards: wins less losses, from −1 to 1";
  return table("", caption, ["Rank", "", "Response", "Reward"], rows);
}

function winTable(size, matches) {
  const letters = [...Array(size).keys()];
  const rows = letters.map(row => el("tr", {}, el("th", { scope: "row" }, letter(row)),
    ...letters.map(column => winCell(matches.flatMap(match => sharesOf(match, row, column))))));
  const caption = "Wins: share of the votes for the response of the row, against that of the column";
  return table("wins", caption, ["", ...letters.map(letter)], rows);
}

// The share of the row in a match against the column; nothing in any other match.
function sharesOf({ first, second, share_first: share, statuses }, row, column) {
  const reason = Object.entries(statuses).map(([status, count]) => `${count} ${status}`).join(", ");
  if (first === row && second === column) return [{ share, reason }];
  return first === column && second === row ? [{ share: share === null ? null : 1 - share, reason }] : [];
}

// Comparisons of the same two are averaged; one that could not be judged says why.
function winCell(played) {
  const judged = played.filter(({ share }) => share !== null);
  if (!judged.length) return el("td", { className: "bad", title: played[0]?.reason ?? "" }, played.length ? "none" : "");
  return el("td", {}, percent(judged.reduce((sum, { share }) => sum + share, 0) / judged.length));
}
