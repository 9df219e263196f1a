// The views: judging, the queue, and a judgment that came by a link.
import "./history.js";
import { $, complain } from "./dom.js";
import { watchHealth } from "./health.js";
import { restore } from "./judging.js";
import { watchQueue } from "./queue.js";
import { access } from "./server.js";
import { isLink, readLink } from "./share.js";

const LINK_NOTE = "From a link: anybody can have written it. Judge again to see what this server's judge says.";

function route() {
  const view = location.hash === "#queue" ? "#queue" : "#judging";
  $("queue").hidden = view !== "#queue";
  $("judging").hidden = view === "#queue";
  for (const link of document.querySelectorAll("nav a"))
    link.hash === view ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  scrollTo(0, 0);
  watchQueue();
  if (isLink(location.hash)) readLink(location.hash).then(entry => restore(entry, LINK_NOTE), error => complain(error.message));
}

function watch() {
  watchHealth();
  watchQueue();
}

addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => document.hidden || watchHealth());
access.onChange = watch;
route();
watchHealth();
