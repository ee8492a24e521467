// The dialog that ends a hold.
import { printable, say, show, span } from "./dom.js";

const $ = (id) => document.getElementById(id);
let secret = ""; // kept in this page only
let wanted = null;

/** ask shows the dialog. */
export function ask(backend, lock, request, age) {
  wanted = { backend, lock, request };
  say($("ask-name"), printable(lock.name));
  say($("ask-holder"), (request.label ? printable(request.label) : "no label") + (request.token ? `, token ${request.token}` : ""));
  say($("ask-age"), span(age));
  say($("ask-backend"), backend.title);
  show($("ask-trouble"), false);
  show($("ask-secret"), secret === "");
  $("secret").value = "";
  $("ask").querySelector("input[value=ttl]").checked = true;
  $("ask-yes").disabled = false;
  $("ask").showModal();
  (secret === "" ? $("secret") : $("ask-no")).focus();
}

$("ask-no").addEventListener("click", () => $("ask").close());

$("ask").addEventListener("submit", async (e) => {
  e.preventDefault();
  const given = secret || $("secret").value.trim();
  const mine = wanted;
  const trouble = (text) => {
    say($("ask-trouble"), text);
    show($("ask-trouble"), true);
  };
  if (!given) {
    trouble("Enter the token that dlock ui printed when it was started.");
    $("secret").focus();
    return;
  }
  $("ask-yes").disabled = true;
  try {
    const res = await fetch("api/break", {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: "Bearer " + encodeURIComponent(given) },
      body: JSON.stringify({
        backend: mine.backend.number, name: mine.lock.name, token: mine.request.token ?? "",
        force: $("ask").querySelector("input[value=now]").checked,
      }),
    });
    const answer = await res.json();
    if (mine !== wanted) return;
    if (res.ok) {
      secret = given;
      $("ask").close();
      return;
    }
    if (res.status === 401) {
      secret = "";
      show($("ask-secret"), true);
      $("secret").focus();
    }
    trouble(answer.error);
  } catch (err) {
    trouble("dlock ui does not answer: " + err.message);
  } finally {
    $("ask-yes").disabled = false;
  }
});
