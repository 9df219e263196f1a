// The form: what it holds, what is missing in it, an example.
import { $, complain, el, letter, colorOf } from "./dom.js";
import { addFiles, setMedia } from "./media.js";

const MOST_RESPONSES = 32;
const PATIENCE_S = 600;  // a person stops what takes too long

const texts = () => [...document.querySelectorAll("#responses textarea")];

export function setResponses(responses) {
  $("responses").replaceChildren(...responses.map((text, n) => field(text, n, responses.length)));
  $("strategy-field").hidden = responses.length < 3;
  $("add-response").hidden = responses.length >= MOST_RESPONSES;
}

function field(text, n, number) {
  const id = `response-${n}`;
  const label = el("label", { htmlFor: id, className: number === 2 ? colorOf(n) : "" }, `Response ${letter(n)}`);
  const box = el("div", {}, el("div", { className: "row spread" }, label), el("textarea", { id, rows: 3, value: text }));
  if (number > 2) {
    const rest = () => texts().map(one => one.value).filter((_, m) => m !== n);
    box.firstChild.append(el("button", { type: "button", className: "quiet", ariaLabel: `Remove response ${letter(n)}`,
      onclick: () => setResponses(rest()) }, "Remove"));
  }
  return box;
}

// The request that the form describes, but for its media; null, and a sentence beside the button, where something is missing.
export function readForm() {
  complain("");
  const fields = [["The question", $("question")], ...texts().map((text, n) => [`Response ${letter(n)}`, text])];
  const missing = fields.find(([, text]) => !text.value.trim());
  if (missing) {
    complain(`${missing[0]} is empty.`);
    missing[1].focus();
    return null;
  }
  const responses = texts().map(text => text.value);
  const request = { question: $("question").value, responses, votes: whole("num-votes"), policy: $("policy").value,
                    timeout_s: PATIENCE_S, seed: crypto.getRandomValues(new Uint32Array(1))[0] >>> 1 };
  return responses.length === 2 ? { ...request, orders: "both" } : { ...request, strategy: $("strategy").value };
}

export const readFrames = () => whole("frames");

// A number within its field's bounds, which then shows it.
function whole(id) {
  const { min, max, value, defaultValue } = $(id);
  return $(id).value = Math.min(Number(max), Math.max(Number(min), Math.round(value) || Number(defaultValue)));
}

export function writeForm(request) {
  $("question").value = request.question;
  setResponses(request.responses);
  $("num-votes").value = request.votes;
  $("frames").value = request.frames ?? 8;
  if (request.policy) $("policy").value = request.policy;
  if (request.strategy) $("strategy").value = request.strategy;
}

export function busy(on) {
  $("go").ariaDisabled = on;
  if (!on && document.activeElement === $("stop")) $("go").focus();
  $("stop").hidden = !on;
  $("history").inert = on;
}

// A picture of two shapes, as small and plain as those the demonstration's judge knows.
function drawExample() {
  const canvas = el("canvas", { width: 56, height: 56 }), draw = canvas.getContext("2d");
  draw.fillStyle = "#f4f1ea";
  draw.fillRect(0, 0, 56, 56);
  draw.lineWidth = 2;
  draw.strokeStyle = "#3c3c3c";
  draw.strokeRect(1, 1, 54, 54);
  draw.fillStyle = "#dc2828";
  draw.arc(14, 14, 9.5, 0, 2 * Math.PI);
  draw.fill();
  draw.fillStyle = "#2850dc";
  draw.fillRect(34, 34, 16, 16);
  return new Promise(done => canvas.toBlob(done, "image/png"));
}

// The picture, a question about it, a true and a false response.
async function fillExample() {
  const blob = await drawExample();
  setMedia([]);
  $("question").value = "What color is the circle?";
  setResponses(["The circle is red.", "The circle is blue."]);
  await addFiles([new File([blob], "example.png", { type: "image/png" })]);
}

$("add-response").onclick = () => {
  setResponses([...texts().map(text => text.value), ""]);
  texts().at(-1).focus();
};
$("example").onclick = fillExample;
setResponses(["", ""]);
