// Small manners of the pages; everything can be read without it.
"use strict";

// "/" goes to the search field, "g" and a letter to a page, Escape closes what is open.
const pages = { o: "/", c: "/channels", s: "/schedules", d: "/deadletters", p: "/pipeline", q: "/query", t: "/trace", r: "/operations" };
let going = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") return document.querySelectorAll("dialog[open]").forEach((each) => each.close());
  if (event.target.closest("input, textarea, select")) return;
  if (event.key === "/") {
    const field = document.querySelector("input[type=search]");
    if (field) { event.preventDefault(); field.focus(); }
  } else if (going && pages[event.key]) {
    location.assign(pages[event.key]);
  }
  going = event.key === "g";
});

// Buttons that ask first open the dialog that they name.
document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-opens]");
  if (opener) document.getElementById(opener.dataset.opens)?.showModal();
  const closer = event.target.closest("dialog [data-closes]");
  if (closer) { event.preventDefault(); closer.closest("dialog").close(); }
});

// A question that was fetched opens as a dialog; closed, it is forgotten.
// An answer without a question, such as that the session is over, is shown as the page that it is.
document.addEventListener("htmx:after:swap", (event) => {
  const asking = document.getElementById("asking");
  if (asking?.firstElementChild) { if (!asking.open) asking.showModal(); }
  else if (event.target.matches("a[hx-target='#asking']")) location.assign(event.target.href);
});
document.addEventListener("close", (event) => { if (event.target.id === "asking") event.target.replaceChildren(); }, true);

// A live page asks again when its stream ends, until there is nothing more to tell.
document.addEventListener("htmx:sse:before:connection", (event) => {
  if (event.target.querySelector("[data-ended]")) event.preventDefault();
});

// A live page that has no connection says so; one whose reader is not let in any more leads to the door, as any page does.
const lost = (status) => status === 401 ? location.reload() : document.body.classList.add("stale");
document.addEventListener("htmx:sse:error", (event) => lost(event.detail.status));
document.addEventListener("htmx:before:response", (event) => {
  const status = event.detail.ctx.response.status;
  if (status < 400 || !event.target.matches("[hx-sse\\:connect]")) return;
  event.preventDefault(); // what went wrong is not what the page shows
  lost(status);
});
document.addEventListener("htmx:sse:after:message", () => document.body.classList.remove("stale"));
