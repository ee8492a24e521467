// The history of a backend: hand-offs, losses and breaks, the newest first.
import { el, printable, say, show } from "./dom.js";

const most = 300; // lines

export function history() {
  const list = el("ol");
  list.tabIndex = 0; // it scrolls
  list.setAttribute("aria-label", "History, newest first");
  const none = el("p", "none", "No hand-off, loss or break since this was opened.");
  const counts = el("span", "facts");
  const part = el("section", "part history", el("h3", "", "History ", counts), el("div", "panel", none, list));
  let prefix = "";

  function line(e) {
    const time = el("time", "", new Date(e.at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false }));
    time.dateTime = e.at;
    const what = el("span", "what");
    const label = (text) => el("bdi", "label", text ? printable(text) : "no label");
    const name = el("b", "", el("bdi", "", printable(e.name)));
    if (e.kind === "not watched") {
      what.append("no page was open");
    } else if (e.kind === "handed off") {
      what.append(name, " ", label(e.from), " \u2192 ", label(e.to), e.count > 1 ? ` (${e.count} in a row)` : "");
    } else {
      what.append(name, " ", label(e.from), e.kind === "broken" ? ": an operator ended its hold" : ": its hold expired");
    }
    const item = el("li", "event " + e.kind.split(" ")[0], time, el("span", "kind", e.kind), what);
    item.event = e;
    return item;
  }

  function choose() {
    let shown = 0;
    for (const item of list.children) {
      const yes = item.event.kind === "not watched" || item.event.name.startsWith(prefix);
      show(item, yes);
      if (yes) shown++;
    }
    show(none, shown === 0);
    show(list, shown > 0);
  }

  return {
    part,
    add(events) {
      list.prepend(...events.map(line).reverse());
      while (list.children.length > most) list.lastElementChild.remove();
      choose();
    },
    filter(text) {
      if (text !== prefix) {
        prefix = text;
        choose();
      }
    },
    total(t) {
      say(counts, t ? `${t.handoffs} handed off, ${t.losses} lost, ${t.breaks} broken` : "");
    },
  };
}
