// Live changes and countdowns. Every page works without this file.

// Without TLS the pages of a session have a path of their own, which only this origin may know: cookies
// are sent to every port of a host. It is kept here, so that an address without it leads there.
const { console: base, place, following, ended } = document.body.dataset;
const key = `antiphon ${base}`;
try {
  const kept = localStorage.getItem(key) ?? "";
  if (place) localStorage.setItem(key, place);
  else if (ended && kept === ended) localStorage.removeItem(key);
  else if (following && /^\/s-[\w-]+$/.test(kept)) location.replace(kept + following);
} catch {
  // Nothing may be kept here: people sign in again.
}

const live = document.querySelector("[data-events]");
const form = document.getElementById("decide");
let over = false;

// Fetch the page again and hand its parts to `use`; a page that cannot be fetched changes nothing.
async function again(use) {
  try {
    const headers = { "x-live": "1" }; // asked for by the page, not by the person: keeps no session alive
    const answer = await fetch(location.href, { credentials: "same-origin", headers });
    if (!answer.ok || answer.redirected) return;
    use(new DOMParser().parseFromString(await answer.text(), "text/html"));
  } catch {
    // The server is away; the stream says when it is back.
  }
}

// A list never jumps: what is gone is marked where it stands, what is new is offered below.
function compare(page) {
  const items = document.getElementById("items");
  const found = new Map([...page.querySelectorAll("#items > [data-item]")].map((one) => [one.dataset.item, one]));
  const known = new Set();
  for (const item of items.querySelectorAll("[data-item]")) {
    known.add(item.dataset.item);
    const now = found.get(item.dataset.item);
    const gone = !now || now.dataset.status !== item.dataset.status;
    if (gone && !item.classList.contains("gone")) {
      item.classList.add("gone");
      item.querySelector(".state").textContent = now ? now.querySelector(".state").textContent : "Not waiting any more";
    }
  }
  const fresh = [...found.keys()].filter((id) => !known.has(id));
  const news = document.getElementById("news");
  if (!fresh.length || news.dataset.count === String(fresh.length)) return;
  news.dataset.count = String(fresh.length);
  const show = document.createElement("a");
  show.href = location.href;
  show.textContent = "show";
  news.replaceChildren(`${fresh.length} new · `, show);
}

// The parts of an item that say what has happened are filled anew. What somebody writes, and where
// the focus is, stays; buttons that can do nothing any more say so.
function swap(page) {
  for (const name of live.dataset.swap.split(" ")) {
    const part = document.getElementById(name);
    const now = page.getElementById(name);
    if (part && now && part.innerHTML !== now.innerHTML) part.replaceChildren(...now.childNodes);
  }
  if (form && !page.getElementById("decide")) {
    over = true;
    for (const button of form.querySelectorAll("button")) button.setAttribute("aria-disabled", "true");
  }
}

// A browser keeps few connections to one server, so only a page that is seen holds one.
let events = null;
function listen() {
  events?.close();
  events = null;
  if (!live || document.hidden) return;
  events = new EventSource(live.dataset.events);
  events.addEventListener("changed", () => again(live.dataset.list ? compare : swap));
}
listen();
document.addEventListener("visibilitychange", listen);
addEventListener("pagehide", () => events?.close());

// A form is sent once, however often its button is pressed, and not at all when it is too late.
form?.addEventListener("submit", (event) => {
  if (over) event.preventDefault();
  over = true;
});
addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload();
});

// Countdowns, by the minute.
function left(until) {
  const minutes = Math.floor((Date.parse(until) - Date.now()) / 60000);
  if (minutes < 0) return "time is over";
  if (minutes < 1) return "less than a minute left";
  if (minutes < 60) return `${minutes} min left`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min left` : `${Math.floor(hours / 24)} days left`;
}
setInterval(() => {
  for (const time of document.querySelectorAll("time[data-until]")) time.textContent = left(time.dateTime);
}, 30000);
