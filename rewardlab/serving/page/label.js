// The page on which people rate pairs. It moves on when the server has committed a rating.
import { $, complain, el, isNarrow, list } from "./dom.js";
import { access, ask, post } from "./server.js";

const KEYS = { 1: "first", 2: "second", 3: "tie", 4: "skip", ArrowLeft: "first", ArrowRight: "second" };
const LETTERS = "asdfghjkl";  // keys of the reasons
const choices = [...$("choices").children];
let item = null, busy = false, last = {};

// Show what a request returns. While it is under way, further ones are ignored.
async function show(request) {
  if (busy) return false;
  busy = true;
  complain("");
  try {
    const next = await (await request()).json();
    const path = `v1/labels/media/${next.item?.join("/")}`;
    draw(next, await Promise.all((next.sides ?? []).map(parts => Promise.all(parts.map(part => element(part, path))))));
    return true;
  } catch (error) {
    if (access.locked) $("key-reason").textContent = "This link is not valid here. Open your link again, or enter what follows #key= in it:";
    else complain(error.message);
    return false;
  } finally { busy = false; }
}

// A text, or an image or video that is loaded.
async function element({ text, image, video }, path) {
  if (text) return el("p", {}, text);
  const src = URL.createObjectURL(await (await ask(`${path}/${image ?? video}`)).blob());
  if (image !== undefined) {
    const shown = el("img", { src, alt: "" });
    await shown.decode().catch(() => {});
    shown.className = shown.naturalWidth < 320 ? "small" : "";
    return el("button", { type: "button", className: "zoom", ariaLabel: "Resize the image",
      onclick: ({ currentTarget }) => currentTarget.classList.toggle("large") }, shown);
  }
  const shown = el("video", { src, controls: true, loop: true, muted: true, autoplay: true, playsInline: true });
  shown.onerror = () => complain("This browser cannot play a clip of the pair. Another browser may; or choose Cannot tell.");
  return shown;
}

function draw({ num_rated: done, num_items: all, ...next }, sides) {
  item = next.item ?? null;
  for (const shown of $("item").querySelectorAll("img, video")) URL.revokeObjectURL(shown.src);
  Object.assign($("progress"), { max: Math.max(all, 1), value: done });
  $("count").textContent = `${done} of ${all} rated`;
  $("undo").hidden = done === 0;
  $("item").hidden = $("bar").hidden = !item;
  $("done").hidden = Boolean(item);
  sides.forEach((elements, n) => $(`side-${n}`).replaceChildren(...elements));
  if (item) drawBar(next); else drawSummary(next.summary);
  scrollTo(0, 0);
}

function drawBar({ instruction, reasons }) {
  const before = String(last.item) === String(item) ? last : {};
  $("instruction").textContent = document.title = instruction;
  $("reasons").replaceChildren(...reasons.map((reason, n) => el("button", { type: "button", className: "chip", value: reason,
    ariaPressed: String((before.reasons ?? []).includes(reason)),
    onclick: ({ currentTarget: one }) => { one.ariaPressed = String(one.ariaPressed !== "true"); } },
    reason, " ", el("kbd", {}, LETTERS[n] ?? ""))));
  $("reason").value = before.other ?? "";
  $("why").open = !isNarrow() || Boolean(before.other || before.reasons?.length);
  for (const button of choices) button.ariaPressed = String(button.value === before.choice);
}

function drawSummary({ num_pairs: pairs, num_ties: ties, num_skipped: skipped, num_repeated: repeated, num_same: same }) {
  list($("summary"), [["Pairs rated", pairs], ["Ties", ties], ["Could not tell", skipped],
    ...(repeated ? [["Pairs shown twice", repeated], ["Same choice both times", `${same} of ${repeated}`]] : [])]);
}

async function rate(choice) {
  if (!item || busy) return;
  const reasons = [...$("reasons").children].filter(one => one.ariaPressed === "true").map(one => one.value);
  const other = $("reason").value.trim(), rating = { item, reasons, other, choice };
  const reason = [...reasons, other].filter(Boolean).join("; ");
  if (await show(() => post("v1/labels", { item, choice, reason }))) last = rating;
}

const undo = () => show(() => post("v1/labels/undo", {}));
const load = () => show(() => ask("v1/labels/next"));

// The second click of a double click would rate the next pair.
for (const button of choices) button.onclick = event => event.detail < 2 && rate(button.value);
$("undo").onclick = undo;
$("bar").onsubmit = event => { event.preventDefault(); $("reason").blur(); };
document.onkeydown = event => {
  if (event.target.matches("input, video") || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const reason = $("reasons").children[LETTERS.indexOf(event.key)];
  if (KEYS[event.key]) rate(KEYS[event.key]);
  else if (event.key === "u") undo();
  else if (item && reason) reason.click();
  else return;
  event.preventDefault();
};
onhashchange = () => location.reload();  // another rater's link
access.onChange = () => access.locked || load();
load();
