// The page: a stream with the states of the backends, and the part of them that the user selects.
import { ask } from "./ask.js";
import { drawing } from "./drawing.js";
import { el, say, show, span } from "./dom.js";
import { history } from "./history.js";
import { names } from "./names.js";

const $ = (id) => document.getElementById(id);
let backends = [];
let about = null; // the first event of the stream
let received = 0; // when the last event came
let stream = null;

const prefix = () => $("prefix").value;

const orders = {
  name: () => 0, // as they arrive
  waiters: (a, b) => b.waiting - a.waiting,
  age: (a, b) => (b.holders[0]?.age_seconds ?? -1) - (a.holders[0]?.age_seconds ?? -1),
};

/** backend makes the part of the page for one backend. */
function backend(number, title, breakable) {
  const facts = el("p", "facts");
  const stale = el("p", "facts stale");
  const trouble = el("p", "trouble");
  trouble.setAttribute("role", "alert");
  trouble.hidden = true;
  const me = { number, title, view: null, came: 0 };
  const askHere = (lock, request) => ask(me, lock, request, request.age_seconds + (performance.now() - me.came) / 1000);
  const parts = { names: names(breakable ? askHere : null), drawing: drawing(), history: history() };
  const heading = el("h2", "", title);
  heading.id = "backend-" + number;
  me.section = el("section", "backend", el("header", "", heading, facts, stale), trouble,
    el("div", "parts", parts.names.part, parts.drawing.part, parts.history.part));
  me.section.setAttribute("aria-labelledby", heading.id);

  me.render = () => {
    const v = me.view;
    show(trouble, !!v?.error);
    if (v?.error) say(trouble, v.error);
    parts.history.filter(prefix());
    parts.history.total(v?.total);
    if (!v?.at) {
      say(facts, v?.error ? "not reached" : "loading \u2026");
      parts.names.update([], v?.error ? "Nothing is known about this backend yet." : "Loading \u2026", me.came);
      return;
    }
    const mine = v.names.filter((l) => l.name.startsWith(prefix()));
    const shown = mine.toSorted(orders[$("order").value]);
    const sum = (f) => mine.reduce((n, l) => n + f(l), 0);
    const rate = sum((l) => l.handoffs_per_second);
    say(facts, `${mine.length === 1 ? "1 name" : mine.length + " names"} \u00b7 holders ${sum((l) => l.held)} \u00b7 waiters ${sum((l) => l.waiting)}` +
      (rate >= 0.05 ? ` \u00b7 ${rate.toFixed(1)} hand-offs/s` : "") +
      (v.left_out > 0 ? ` \u00b7 ${v.left_out} names are not shown; dlock ui --prefix shows fewer` : ""));
    const nothing = v.names.length > 0 ? `None of the ${v.names.length} names begins with this prefix.`
      : v.in_use > 0 ? `None of the ${v.in_use} names in use begins with ${about.prefix}.`
      : "No name is held or waited for under this URL. Is it the right URL, with the right prefix?";
    parts.names.update(shown, nothing, me.came);
    parts.drawing.update(v.graph, v.undrawn, prefix());
    parts.names.tick(performance.now());
  };
  me.take = (view) => {
    if (view.at && view.at !== me.view?.at) me.came = performance.now();
    me.view = view;
    me.render();
  };
  me.history = (events) => parts.history.add(events);
  me.tick = (now) => {
    if (me.view?.at) parts.names.tick(now);
    const old = (now - me.came) / 1000;
    show(stale, !!me.view?.at && old > 2 + 3 * about.interval_seconds);
    say(stale, `seen ${span(old)} ago`);
  };
  return me;
}

function begin(hello) {
  about = hello;
  backends = hello.backends.map((title, i) => backend(i, title, hello.breakable));
  $("backends").replaceChildren(...backends.map((b) => b.section));
  document.title = "dlock: " + hello.backends.join(", ");
}

function connect() {
  stream?.close();
  received = performance.now();
  stream = new EventSource("api/events");
  const on = (name, f) => stream.addEventListener(name, (e) => {
    received = performance.now();
    f(JSON.parse(e.data));
    status(true);
  });
  on("hello", begin);
  on("look", (v) => backends[v.backend].take(v));
  on("history", (h) => backends[h.backend].history(h.events));
  on("alive", () => {});
  stream.onerror = () => status(false);
}

function status(live) {
  const s = $("status");
  s.classList.toggle("live", live);
  s.classList.toggle("gone", !live);
  say(s, live ? (about?.breakable ? "live, may end holds" : "live, read-only") : "dlock ui does not answer; what you see is old");
}

setInterval(() => {
  const now = performance.now();
  const silence = now - received;
  if (silence > 3000 + 1000 * (about?.keep_alive_seconds ?? 5)) {
    status(false);
    connect(); // the browser abandons some streams for good
  }
  if ($("status").classList.contains("live")) backends.forEach((b) => b.tick(now));
}, 200);

// The address has what the user selected, so that it can be kept and passed on.
const chosen = new URLSearchParams(location.hash.slice(1));
$("prefix").value = chosen.get("prefix") ?? "";
if (chosen.get("order") in orders) $("order").value = chosen.get("order");

function choose() {
  const c = new URLSearchParams();
  if (prefix()) c.set("prefix", prefix());
  if ($("order").value !== "name") c.set("order", $("order").value);
  window.history.replaceState(null, "", "#" + c);
  backends.forEach((b) => b.render());
}
$("choose").addEventListener("input", choose);
$("choose").addEventListener("submit", (e) => e.preventDefault());

addEventListener("resize", () => backends.forEach((b) => b.render()));

document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || $("ask").open) return;
  if (e.target.matches("input, select")) {
    if (e.key === "Escape") {
      e.target.blur();
      e.preventDefault(); // the text stays
    }
    return;
  }
  const cards = [...document.querySelectorAll("article.name")];
  const at = cards.indexOf(document.activeElement?.closest("article.name"));
  if (e.key === "/") {
    $("prefix").focus();
    $("prefix").select();
  } else if (e.key === "j" && cards.length) {
    cards[Math.min(at + 1, cards.length - 1)].focus();
  } else if (e.key === "k" && cards.length) {
    cards[Math.max(at - 1, 0)].focus();
  } else if (e.key === "Enter" && cards.includes(e.target)) {
    e.target.toggle();
  } else if (e.key === "b" && at >= 0) {
    cards[at].breakFirst();
  } else {
    return;
  }
  e.preventDefault();
});

connect();
