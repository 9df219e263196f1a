// The views: judging, and the queue.
import "./history.js";
import { $ } from "./dom.js";
import { watch } from "./queue.js";
import { access } from "./server.js";

function route() {
  const queue = location.hash === "#queue";
  $("queue").hidden = !queue;
  $("judging").hidden = queue;
  document.querySelectorAll("nav a").forEach(link => link.hash === (queue ? "#queue" : "#judging") ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current"));
  scrollTo(0, 0);
  watch();
}
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => document.hidden || watch());
access.onChange = watch;
route();
