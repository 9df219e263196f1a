// Helpers of every view: elements, sentences, letters, numbers.
export const $ = id => document.getElementById(id);

export function el(tag, props = {}, ...children) {
  const element = Object.assign(document.createElement(tag), props);
  element.append(...children);
  return element;
}

// A text of the server as a sentence.
export function sentence(text) {
  const words = String(text).trim();
  return words.charAt(0).toUpperCase() + words.slice(1) + (/[.!?]$/.test(words) ? "" : ".");
}

export const letter = n => (n < 26 ? "" : "A") + String.fromCharCode(65 + n % 26);  // 0 is A, 26 is AA
export const colorOf = winner => ["for-a", "for-b"][winner] ?? "";
// Rounded so that a share and the rest add up to 100.
export const percent = share => `${share < .5 ? 100 - Math.round(100 * (1 - share)) : Math.round(100 * share)} %`;
export const seconds = value => value == null ? "–" : `${value.toFixed(value < 10 ? 2 : 1)} s`;
export const isNarrow = () => matchMedia("(max-width: 56rem)").matches;
export const complain = text => { $("error").textContent = text; };

// Fill a description list with [name, value] pairs.
export function list(dl, facts) {
  dl.replaceChildren(...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value)))));
}
