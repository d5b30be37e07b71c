// Live parts of the developer's console. Every page works without this file.

const bench = document.querySelector("[data-dev-events]");

// What the server sent last for each part, to tell whether it would look otherwise now.
const known = new Map();
for (const part of document.querySelectorAll("[data-part]")) known.set(part.id, part.innerHTML);

function busy(part) {
  if (part.contains(document.activeElement) && document.activeElement !== document.body) return true;
  return [...part.querySelectorAll("textarea, input[type=text], input[type=number]")].some(
    (field) => field.value !== field.defaultValue,
  );
}

function refresh(page) {
  for (const now of page.querySelectorAll("[data-part]")) {
    const part = document.getElementById(now.id);
    if (!part || known.get(now.id) === now.innerHTML || busy(part)) continue;
    const open = new Set([...part.querySelectorAll("details[open]")].map((one) => one.id));
    known.set(now.id, now.innerHTML);
    part.replaceChildren(...now.childNodes);
    part.className = now.className;
    for (const one of part.querySelectorAll("details")) if (open.has(one.id)) one.open = true;
    if ("end" in part.dataset) toEnd(part);
  }
}

// What was printed last is what matters.
function toEnd(part) {
  for (const text of part.querySelectorAll("pre")) text.scrollTop = text.scrollHeight;
}
for (const part of document.querySelectorAll("[data-end]")) {
  toEnd(part);
  part.closest("details").addEventListener("toggle", () => toEnd(part));
}

let asking = false;
let again = false;
async function look() {
  if (asking) {
    again = true;
    return;
  }
  asking = true;
  try {
    const headers = { "x-live": "1" }; // asked for by the page, not by the person: keeps no session alive
    const answer = await fetch(location.href, { credentials: "same-origin", headers });
    if (answer.ok && !answer.redirected) {
      refresh(new DOMParser().parseFromString(await answer.text(), "text/html"));
    }
  } catch {
    // The console is away; the stream says when it is back.
  }
  asking = false;
  if (again) {
    again = false;
    look();
  }
}

if (bench && "EventSource" in window) {
  const events = new EventSource(bench.dataset.devEvents);
  events.addEventListener("changed", look);
  addEventListener("pagehide", () => events.close());
  addEventListener("focusout", () => setTimeout(look, 0));
}
