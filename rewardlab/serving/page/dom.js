// What every view uses: elements, sentences, what outcomes are called.
export const $ = id => document.getElementById(id);
export const el = (tag, props, ...kids) => { const made = Object.assign(document.createElement(tag), props); made.append(...kids); return made; };
export const plain = text => (text = String(text).trim(), text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : "."));
export const LETTER = ["A", "B"], FOR = ["for-a", "for-b"];
export const OUTCOME = { response_0: "Response A is better", response_1: "Response B is better", tie: "A tie", no_valid_vote: "No valid vote" };
export const forOf = outcome => FOR[["response_0", "response_1"].indexOf(outcome)] ?? "";
export const complain = text => { $("error").textContent = text; };
export const list = (dl, facts) => dl.replaceChildren(...facts.map(([name, value, kind = ""]) => el("div", { className: kind }, el("dt", {}, name), el("dd", {}, String(value)))));
