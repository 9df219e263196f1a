// History: small, of this tab; whole images only as long as the page is open.
import { $, complain, el, forOf, OUTCOME } from "./dom.js";
import { addVote, begin, finish } from "./judging.js";
import { setImages, shrink } from "./media.js";

const MAX_KEPT = 20;
let kept = JSON.parse(sessionStorage.getItem("rewardlab.history") ?? "[]");
const whole = new Map();

export async function remember(asked, judgment) {
  const small = await Promise.all(asked.images.map(shrink)), id = Date.now();
  whole.set(id, asked.images);
  keep([{ id, asked: { ...asked, images: small }, lossy: small.some((url, n) => url !== asked.images[n]), judgment }, ...kept].slice(0, MAX_KEPT));
}
function keep(entries) {
  for (kept = entries; ; kept.pop()) {
    try { sessionStorage.setItem("rewardlab.history", JSON.stringify(kept)); break; } catch { if (!kept.length) break; }
  }
  for (const id of whole.keys()) if (!kept.some(one => one.id === id)) whole.delete(id);
  $("clear").hidden = !kept.length;
  $("history").lastElementChild.hidden = kept.length > 0;
  $("history").querySelector("ul").replaceChildren(...kept.map(one => el("li", {}, el("button", { type: "button", onclick: () => restore(one) },
    ...(one.asked.images[0] ? [el("img", { src: one.asked.images[0], alt: "" })] : []),
    el("span", {}, el("b", {}, one.asked.question), el("small", { className: forOf(one.judgment.outcome) }, OUTCOME[one.judgment.outcome]),
      el("small", {}, ` · ${new Date(one.id).toLocaleTimeString()}`))))));
}
function restore({ id, asked, lossy, judgment }) {
  for (const [field, value] of [["question", asked.question], ["a", asked.responses[0]], ["b", asked.responses[1]], ["num-votes", asked.votes], ["policy", asked.policy ?? ""]]) $(field).value = value;
  const lost = lossy && !whole.has(id);
  setImages(lost ? [] : whole.get(id) ?? asked.images);
  complain(lost ? "Only small copies of its images were kept; choose them again before you judge again." : "");
  begin(asked);
  judgment.votes.forEach(addVote);
  finish(judgment);
  if (innerWidth < 900) $("result").scrollIntoView({ behavior: "smooth" });
}
$("clear").onclick = () => keep([]);
keep(kept);
