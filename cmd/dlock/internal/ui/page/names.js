// The names of a backend: the holders of each, and its queue in order, with ages as bars.
import { el, keep, printable, say, show, span } from "./dom.js";

const few = 5; // how much of a queue is shown until all of it is wanted

/** names makes the part of a page with the names. ask(lock, request) asks whether to end a hold;
 *  null: the page is read-only. */
export function names(ask) {
  const list = el("div", "list");
  const none = el("p", "none");
  const part = el("section", "part names", el("h3", "", "Names"), none, list);
  if (ask) list.classList.add("breakable");
  let locks = [];
  let came = 0; // when they arrived
  let fresh = null; // the requests of the update before; null: there was none

  function card(lock) {
    const title = el("h4", "", el("bdi", "", printable(lock.name)));
    const queue = el("ol", "queue");
    const more = el("button", "quiet more");
    const e = el("article", "name", el("header", "", title, el("span", "pill kind"), el("span", "pill count"), el("span", "pill rate")), queue, more);
    e.tabIndex = 0;
    e.setAttribute("aria-label", printable(lock.name));
    more.type = "button";
    more.addEventListener("click", () => toggle(e));
    e.toggle = () => toggle(e);
    e.breakFirst = () => queue.querySelector("button.break")?.click();
    return e;
  }

  function toggle(e) {
    if (!e.whole && e.querySelector(".more").hidden) return;
    e.whole = !e.whole;
    fill(e, e.lock);
  }

  function fill(e, lock) {
    e.lock = lock;
    const first = lock.holders[0] ?? lock.waiters[0];
    say(e.querySelector(".kind"), !first ? "free" : first.limit ? "semaphore of " + first.limit : first.mode);
    say(e.querySelector(".count"), lock.waiting === 0 ? "no waiters" : lock.waiting === 1 ? "1 waiter" : lock.waiting + " waiters");
    const rate = e.querySelector(".rate");
    show(rate, lock.handoffs_per_second >= 0.05);
    say(rate, lock.handoffs_per_second.toFixed(1) + " hand-offs/s");
    const rows = [];
    const shownHolders = e.whole ? lock.holders : lock.holders.slice(0, few);
    for (const r of shownHolders) rows.push({ r, place: placeOfHolder(r, lock), holds: true, lock });
    const shown = e.whole ? lock.waiters : lock.waiters.slice(0, few);
    shown.forEach((r, i) => rows.push({ r, place: String(i + 1), holds: false, lock }));
    keep(e.querySelector(".queue"), rows, (x) => x.r.key, row, fillRow);
    const unseen = lock.waiting - lock.waiters.length;
    const hidden = lock.holders.length - shownHolders.length + lock.waiters.length - shown.length;
    const more = e.querySelector(".more");
    show(more, hidden > 0 || e.whole);
    say(more, hidden > 0 ? `and ${hidden + unseen} more` : unseen > 0 ? `fewer; ${unseen} more are not shown` : "fewer");
    more.setAttribute("aria-expanded", String(!!e.whole));
  }

  function placeOfHolder(r, lock) {
    if (r.broken) return "broken";
    if (r.fixed) return "fixed";
    return lock.holders.find((h) => h.owner === r.owner) === r ? "holds" : "joins";
  }

  function row(x) {
    const bar = el("span", "bar", el("i"));
    bar.setAttribute("aria-hidden", "true");
    const e = el("li", "entry", el("span", "place"), el("span", "who"), bar, el("span", "age"), el("span", "left"));
    if (ask) {
      const b = el("button", "break", "Break\u2026");
      b.type = "button";
      b.addEventListener("click", () => ask(e.lock, e.request));
      e.append(b);
    }
    if (fresh && !fresh.has(x.r.key)) e.classList.add("new");
    return e;
  }

  function fillRow(e, { r, place, holds, lock }) {
    e.request = r;
    e.lock = lock;
    e.classList.toggle("holds", holds && r.mode === "exclusive");
    e.classList.toggle("shares", holds && r.mode !== "exclusive");
    e.classList.toggle("waits", !holds);
    e.classList.toggle("broken", !!r.broken);
    say(e.querySelector(".place"), place);
    const who = e.querySelector(".who");
    say(who, r.label ? printable(r.label) : "no label");
    who.title = (r.label ? printable(r.label) : "no label") + (r.token ? "\ntoken " + r.token : "");
    const b = e.querySelector(".break");
    if (b) {
      b.style.visibility = holds && !r.broken ? "visible" : "hidden";
      b.setAttribute("aria-label", `Break the hold of ${printable(lock.name)} by ${printable(r.label)}`);
    }
  }

  /** tick advances ages and bars between two snapshots. */
  function tick(now) {
    const since = (now - came) / 1000;
    const rows = [...list.querySelectorAll(".entry")];
    const scale = Math.log10(Math.max(10, ...rows.map((e) => e.request.age_seconds + since)) + 1);
    for (const e of rows) {
      const age = e.request.age_seconds + since;
      say(e.querySelector(".age"), span(age));
      const left = e.request.left_seconds - since;
      say(e.querySelector(".left"), e.request.ttl_seconds > 0 ? "left " + span(left) : "");
      e.querySelector("i").style.width = Math.max(1, (100 * Math.log10(age + 1)) / scale).toFixed(1) + "%";
    }
  }

  /** update shows the locks in that order; they arrived at that time. */
  function update(all, nothing, at) {
    locks = all;
    came = at;
    keep(list, locks, (l) => l.name, card, fill);
    fresh = new Set(locks.flatMap((l) => [...l.holders, ...l.waiters].map((r) => r.key)));
    show(none, locks.length === 0);
    say(none, nothing);
  }

  return { part, update, tick };
}
