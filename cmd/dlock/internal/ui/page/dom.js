// Small helpers that the parts of the page share. Text is inserted as text only: names and labels
// cannot be trusted.

/** el makes an element with a class and children, which are elements or text. */
export function el(tag, name, ...children) {
  const e = document.createElement(tag);
  if (name) e.className = name;
  e.append(...children);
  return e;
}

/** say sets an element's text, if it differs. */
export function say(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

/** show shows an element, or hides it. */
export function show(e, yes) {
  if (e.hidden === !!yes) e.hidden = !yes;
}

/** printable replaces characters that would be invisible, or would reverse the text beside them. */
export function printable(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu, "\u25a1");
}

/** span formats a duration in seconds in about six characters at most. */
export function span(s) {
  s = Math.max(s, 0);
  const two = (n) => String(Math.floor(n)).padStart(2, "0");
  if (s < 10) return s.toFixed(1) + "s";
  if (s < 60) return Math.floor(s) + "s";
  if (s < 3600) return Math.floor(s / 60) + "m" + two(s % 60) + "s";
  if (s < 360000) return Math.floor(s / 3600) + "h" + two((s % 3600) / 60) + "m";
  return Math.floor(s / 86400) + "d";
}

/** keep gives a list one child for each item, in the order of the items. The element of a key stays
 *  the same. An element that stays in its place is not moved, so it keeps the focus. */
export function keep(list, items, key, make, update) {
  list.kept ??= new Map();
  const wanted = new Set(items.map(key));
  for (const [k, e] of list.kept) {
    if (!wanted.has(k)) {
      e.remove();
      list.kept.delete(k);
    }
  }
  let at = list.firstElementChild;
  for (const item of items) {
    const k = key(item);
    let e = list.kept.get(k);
    if (!e) list.kept.set(k, (e = make(item)));
    update(e, item);
    if (e === at) at = at.nextElementSibling;
    else list.insertBefore(e, at);
  }
}
