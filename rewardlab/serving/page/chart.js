// A line over time, with a scale of its own on either axis.
const NAMESPACE = "http://www.w3.org/2000/svg";
const HEIGHT = 190, LEFT = 52, RIGHT = 12, TOP = 10, BOTTOM = 26;
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400];

function svg(tag, attributes, text = "") {
  const element = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

// Round values from 0 to at least `most`: 1, 2 or 5 times a power of ten apart, no closer than `least`.
export function ticks(most, least = 0) {
  const rough = Math.max(most / 4, least, 1e-9), power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(least, [1, 2, 5, 10].map(factor => factor * power).find(one => one >= rough - 1e-12));
  return Array.from({ length: Math.max(1, Math.ceil(most / step - 1e-9)) + 1 }, (_, n) => n * step);
}

// Whole times within start..end (Unix seconds), at most `number` of them.
export function timeTicks(start, end, number) {
  const step = TIME_STEPS.find(one => (end - start) / one <= number) ?? 86400 * Math.ceil((end - start) / 86400 / number);
  const offset = new Date(1000 * start).getTimezoneOffset() * 60;
  const first = Math.ceil((start - offset) / step) * step + offset;
  return Array.from({ length: Math.max(0, Math.floor((end - first) / step) + 1) }, (_, n) => first + n * step);
}

function clock(at, span) {
  const second = span < 600 ? { second: "2-digit" } : {};
  return new Date(1000 * at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...second, hour12: false });
}

// Draw points { at: Unix seconds, value } by time; `format` writes a value, `least` is the smallest step between two ticks.
export function draw(element, points, { format, least, name }) {
  const width = element.clientWidth || 480;
  element.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  if (!points.length) return element.replaceChildren();
  const marks = ticks(Math.max(...points.map(point => point.value)), least), most = marks.at(-1);
  const start = points[0].at, end = Math.max(points.at(-1).at, start + 1);
  const x = at => LEFT + (width - LEFT - RIGHT) * (at - start) / (end - start);
  const y = value => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most);
  const grid = marks.flatMap(value => [
    svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
    svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, format(value))]);
  const times = timeTicks(start, end, Math.max(2, Math.floor((width - LEFT) / 68))).flatMap(at => [
    svg("line", { class: "grid", x1: x(at), x2: x(at), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 }),
    svg("text", { x: Math.min(width - 28, x(at)), y: HEIGHT - 6, "text-anchor": "middle" }, clock(at, end - start))]);
  const line = points.map(({ at, value }, n) => `${n ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const r = points.length > 80 ? 1.5 : 2.5;
  const dots = points.map(({ at, value }) => svg("circle", { cx: x(at).toFixed(1), cy: y(value).toFixed(1), r }));
  element.replaceChildren(...grid, ...times, svg("path", { d: line }), ...dots);
  element.ariaLabel = `${name}, from ${clock(start, 0)} to ${clock(end, 0)}: last ${format(points.at(-1).value)}, at most `
    + format(Math.max(...points.map(point => point.value)));
}
