// The views: judging, the queue, and a judgment that came by a link.
import { $ } from "./dom.js";
import { watchHealth, watchQueue } from "./queue.js";
import { access } from "./server.js";
import { showLink } from "./share.js";

function route() {
  const isQueue = location.hash === "#queue";
  $("queue").hidden = !isQueue;
  $("judging").hidden = isQueue;
  for (const link of document.querySelectorAll("nav a"))
    link.ariaCurrent = (link.hash === "#queue") === isQueue ? "page" : null;
  scrollTo(0, 0);
  watchQueue();
  showLink();
}

addEventListener("hashchange", route);
access.onChange = () => { watchHealth(); watchQueue(); };
route();
watchHealth();
