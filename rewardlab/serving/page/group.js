// A group: a reward for each response, and who won against whom.
import { $, el, letter, list, percent, plural, seconds } from "./dom.js";

// The rank of each response, from 1; null where none of its comparisons could be judged. A knockout ranks by how far a response
// came, for the rewards of those that left early hold few comparisons.
function ranksOf({ rewards, tiers }, strategy) {
  const isBetter = strategy === "knockout" ? (one, other) => tierOf(tiers, one) < tierOf(tiers, other) :
    (one, other) => rewards[one] > rewards[other] + 1e-9;
  const judged = [...rewards.keys()].filter(n => rewards[n] !== null);
  return rewards.map((reward, n) => reward === null ? null : 1 + judged.filter(other => isBetter(other, n)).length);
}

const tierOf = (tiers, n) => tiers.findIndex(tier => tier.includes(n));

export function groupHeadline({ request, result }) {
  const ranks = ranksOf(result, request.strategy);
  const best = [...ranks.keys()].filter(n => ranks[n] === 1).map(letter);
  if (!best.length) return "No comparison could be judged";
  const names = best.length > 1 ? `${best.slice(0, -1).join(", ")} and ${best.at(-1)}` : best[0];
  return best.length > 1 ? `Responses ${names} are best, equally` : `Response ${names} is best`;
}

export function showGroup({ request, result }) {
  $("group").replaceChildren(rewardTable(request, result), el("h3", {}, "Wins"),
    el("p", { className: "soft" }, "Share of the votes for the response of the row, against that of the column."),
    winTable(request.responses.length, result.matches));
  list($("facts"), [["Comparisons", comparisons(result)], ["Time", seconds(result.seconds)],
    ["Tokens", result.num_tokens.toLocaleString("en")], ["Seed", request.seed]]);
}

const comparisons = ({ matches, num_failed: failed }) => `${matches.length}${failed ? `, ${failed} without a verdict` : ""}`;

const number = value => value === null ? "–" : `${value > 0 ? "+" : ""}${value.toFixed(2)}`.replace("-", "−");

function rewardTable({ responses, strategy }, result) {
  const { rewards, deviations } = result, isFitted = strategy === "bradley_terry", ranks = ranksOf(result, strategy);
  const place = n => ranks[n] ?? Infinity;
  const order = [...responses.keys()].sort((one, other) => place(one) - place(other) || one - other);
  const most = Math.max(1, ...rewards.map(Math.abs));
  const deviation = n => isFitted && deviations[n] !== null ? ` ± ${deviations[n].toFixed(2)}` : "";
  const rows = order.map(n => el("tr", {}, el("td", {}, String(ranks[n] ?? "–")),
    el("th", { scope: "row" }, letter(n)), el("td", { className: "text" }, el("div", { title: responses[n] }, responses[n])),
    el("td", { className: "reward" }, number(rewards[n]), el("small", {}, deviation(n)), rewardBar(rewards[n], most))));
  const caption = isFitted ? "Rewards: fitted strengths in logits" : "Rewards: wins less losses, from −1 to 1";
  return el("div", { className: "scroll" }, el("table", {}, el("caption", { className: "soft" }, caption),
    el("thead", {}, el("tr", {}, ...["Rank", "", "Response", "Reward"].map(name => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...rows)));
}

function rewardBar(reward, most) {
  const part = el("i"), share = reward === null ? 0 : reward / most;
  part.style.left = `${50 + Math.min(0, 50 * share)}%`;
  part.style.width = `${Math.abs(50 * share)}%`;
  return el("span", { className: "reward-bar", ariaHidden: "true" }, part);
}

function winTable(size, matches) {
  const shares = new Map();
  for (const { first, second, share_first: share, statuses } of matches) {
    const reason = Object.entries(statuses).map(([status, count]) => `${count} ${status}`).join(", ");
    for (const [row, column, value] of [[first, second, share], [second, first, share === null ? null : 1 - share]])
      shares.set(`${row} ${column}`, [...(shares.get(`${row} ${column}`) ?? []), { value, reason }]);
  }
  const letters = [...Array(size).keys()];
  const head = el("tr", {}, el("td"), ...letters.map(n => el("th", { scope: "col" }, letter(n))));
  const rows = letters.map(row => el("tr", {}, el("th", { scope: "row" }, letter(row)),
    ...letters.map(column => winCell(row === column ? undefined : shares.get(`${row} ${column}`)))));
  const table = el("table", { className: "wins" }, el("thead", {}, head), el("tbody", {}, ...rows));
  return el("div", { className: "scroll" }, table);
}

// Comparisons of the same two are averaged; one that could not be judged says why.
function winCell(played) {
  if (!played) return el("td", { className: "soft" }, "");
  const judged = played.filter(match => match.value !== null);
  if (!judged.length) return el("td", { className: "bad", title: played[0].reason }, "none");
  const mean = judged.reduce((sum, match) => sum + match.value, 0) / judged.length;
  return el("td", { className: mean > .5 ? "won" : "", title: plural(judged.length, "comparison") }, percent(mean));
}
