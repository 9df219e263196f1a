// The judgments of this tab, with small pictures of their images.
import { $, el, time } from "./dom.js";
import { groupHeadline } from "./group.js";
import { hooks, restore } from "./judging.js";
import { thumbs } from "./media.js";
import { pairColor, pairHeadline } from "./pair.js";

const MOST_KEPT = 20, PLACE = "rewardlab.judgments";
let kept = JSON.parse(sessionStorage.getItem(PLACE) ?? "[]");

async function remember({ request, result, labels }) {
  keep([{ at: Date.now(), request, result, labels, thumbs: await thumbs() }, ...kept].slice(0, MOST_KEPT));
}

// Keep as many as the browser has room for, the newest first.
function keep(entries) {
  for (kept = entries; ; kept.pop()) {
    try { sessionStorage.setItem(PLACE, JSON.stringify(kept)); break; } catch { if (!kept.length) break; }
  }
  $("clear").hidden = !kept.length;
  $("history-empty").hidden = kept.length > 0;
  $("history").querySelector("ul").replaceChildren(...kept.map(row));
}

function row(entry) {
  const { at, request, result } = entry, isPair = request.responses.length === 2;
  const thumb = entry.thumbs[request.images[0]];
  const outcome = isPair ? pairHeadline(result) : groupHeadline(entry);
  return el("li", {}, el("button", { type: "button", onclick: () => restore(entry) },
    ...(thumb ? [el("img", { src: thumb, alt: "" })] : []),
    el("span", {}, el("b", {}, request.question), el("small", { className: isPair ? pairColor(result) : "" }, outcome),
      el("small", {}, ` · ${time(at)}`))));
}

$("clear").onclick = () => keep([]);
hooks.onJudged = remember;
keep(kept);
