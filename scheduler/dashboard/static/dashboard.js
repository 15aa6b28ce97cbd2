// What makes the pages live. All of them work without it.
"use strict";

const main = document.getElementById("main");
const offline = document.getElementById("offline");
const MARKED = "time[datetime]";

// Times: relative, by this clock, the exact one on hover.

function rough(seconds) {
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 120) return `${minutes} m`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} m` : `${Math.floor(hours / 24)} d`;
}

function tellTime(element, now) {
  if (element.classList.contains("clock")) {
    const clock = new Date(element.dateTime).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
    if (element.textContent !== clock) element.textContent = clock;
    return;
  }
  const away = (Date.parse(element.dateTime) - now) / 1000;
  const told = away > 0 ? `in ${rough(away)}` : `${rough(-away)} ago`;
  if (element.textContent !== told) element.textContent = told;
  if (!element.dataset.yours) {
    const yours = new Date(element.dateTime).toLocaleString(undefined, {
      dateStyle: "medium",
      timeStyle: "long",
    });
    element.dataset.yours = yours;
    element.title = `${element.title}\nhere: ${yours}`;
  }
}

function tellTimes() {
  const now = Date.now();
  for (const element of document.querySelectorAll(MARKED)) tellTime(element, now);
}

// Parts: what has changed takes the place of what was there, with what the reader had done to it.

function made(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}

const FIELDS = "a, button, input, select, textarea, summary, [tabindex]";

function keepReader(before, after) {
  const open = [...before.querySelectorAll("details")].map((each) => each.open);
  [...after.querySelectorAll("details")].forEach((each, at) => {
    if (at in open) each.open = open[at];
  });
  const fields = [...before.querySelectorAll("input, textarea, select")];
  [...after.querySelectorAll("input, textarea, select")].forEach((each, at) => {
    const was = fields[at];
    if (each.type !== "hidden" && was && was.name === each.name && was.value !== was.defaultValue)
      each.value = was.value;
  });
}

function focusIn(element) {
  const active = document.activeElement;
  return element.contains(active) ? [...element.querySelectorAll(FIELDS)].indexOf(active) : -1;
}

function exchange(before, after, put) {
  const focused = focusIn(before);
  const caret = document.activeElement?.selectionStart;
  keepReader(before, after);
  const there = put();
  const field = focused >= 0 ? [...there.querySelectorAll(FIELDS)][focused] : undefined;
  field?.focus({ preventScroll: true });
  if (field && typeof caret === "number") field.setSelectionRange?.(caret, caret);
}

function showParts(parts) {
  for (const [name, html] of Object.entries(parts)) {
    const before = document.getElementById(name);
    const after = made(html).firstElementChild;
    if (before && after) exchange(before, after, () => (before.replaceWith(after), after));
  }
  tellTimes();
}

function showPage(html) {
  const after = document.createElement("div");
  after.append(made(html));
  exchange(main, after, () => (main.replaceChildren(...after.childNodes), main));
  tellTimes();
}

// News: one stream for the page that is shown.

const PATIENCE = 4000;
let news;
let missing;

function found() {
  clearTimeout(missing);
  missing = undefined;
  offline.hidden = true;
}

function miss(stream) {
  missing ??= setTimeout(() => (offline.hidden = false), PATIENCE);
  // A browser gives up where the answer was an error: then it is for us to try again.
  if (stream.readyState === EventSource.CLOSED) setTimeout(() => stream === news && listen(), PATIENCE);
}

function listen() {
  news?.close();
  if (!main.dataset.live || document.hidden) return;
  const stream = (news = new EventSource(main.dataset.live));
  news.addEventListener("open", found);
  news.addEventListener("error", () => miss(stream));
  news.addEventListener("parts", (event) => showParts(JSON.parse(event.data)));
  news.addEventListener("page", (event) => showPage(JSON.parse(event.data)));
}

// Strips: what the run was that is pointed at, or come to by the arrow keys.

const ENDINGS = {
  su: "✓ succeeded",
  re: "↻ retried",
  es: "✗ escalated",
  st: "■ stopped",
  sk: "» skipped",
  ca: "⊘ cancelled",
};
const BARS = 30;
const tip = document.createElement("p");
tip.className = "tip";
tip.id = "tip";
tip.setAttribute("role", "status");
tip.hidden = true;
document.body.append(tip);
const STRIP = ".strip[data-runs]";
let told = { place: "", began: 0 };

const placeOf = (strip) => strip.closest("[id]")?.id;

function runsOf(strip) {
  return strip.dataset.runs.split(" ").map((each) => {
    const [, ending, began, took] = each.match(/^([a-z]+)(\d+)\+(\d+)$/);
    return { ending: ENDINGS[ending] ?? ending, began: Number(began), took: Number(took) };
  });
}

function span(ms) {
  if (ms < 1000) return `${ms} ms`;
  return ms < 100_000 ? `${(ms / 1000).toFixed(1)} s` : rough(ms / 1000);
}

function showTip(strip, at) {
  const runs = runsOf(strip);
  const index = Math.min(Math.max(at, 0), runs.length - 1);
  const { ending, began, took } = runs[index];
  const moment = new Date(began).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
  told = { place: placeOf(strip), began };
  tip.textContent = `${ending}, ${moment}, took ${span(took)}`;
  tip.hidden = false;
  const box = strip.getBoundingClientRect();
  const bar = box.left + ((BARS - runs.length + index + 0.5) / BARS) * box.width;
  const left = Math.min(Math.max(bar - tip.offsetWidth / 2, 4), document.documentElement.clientWidth - tip.offsetWidth - 4);
  const above = box.top - tip.offsetHeight - 4;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 4 ? above : box.bottom + 4}px`;
}

function hideTip() {
  tip.hidden = true;
}

// The same run as before, though more have come; else the last one.
function toldOf(strip) {
  const at = placeOf(strip) === told.place ? runsOf(strip).findIndex((run) => run.began === told.began) : -1;
  return at < 0 ? BARS : at;
}

function pointAt(event) {
  const strip = event.target.closest?.(STRIP);
  if (strip) {
    const box = strip.getBoundingClientRect();
    const bar = Math.floor(((event.clientX - box.left) / box.width) * BARS);
    showTip(strip, bar - (BARS - runsOf(strip).length));
  } else if (!document.activeElement.matches(STRIP)) hideTip();
}

document.addEventListener("pointermove", pointAt);
document.addEventListener("pointerdown", pointAt);
document.addEventListener("scroll", hideTip, { passive: true });
document.addEventListener("focusin", ({ target }) => target.matches(STRIP) && showTip(target, toldOf(target)));
document.addEventListener("focusout", hideTip);

const STEPS = { ArrowLeft: -1, ArrowRight: 1, Home: -BARS, End: BARS };

document.addEventListener("keydown", (event) => {
  if (!event.target.matches?.(STRIP)) return;
  if (event.key === "Escape") hideTip();
  if (!(event.key in STEPS)) return;
  event.preventDefault();
  showTip(event.target, Math.min(toldOf(event.target), runsOf(event.target).length - 1) + STEPS[event.key]);
});

// Search: the page of the filter, as it is written; its address is that of the filter.

let typing;

async function search(form) {
  const fields = [...new FormData(form)].filter(([, value]) => value !== "");
  const query = new URLSearchParams(fields).toString();
  const address = form.action + (query ? `?${query}` : "");
  const answer = await fetch(address);
  if (!answer.ok) return;
  const document_ = new DOMParser().parseFromString(await answer.text(), "text/html");
  const found = document_.getElementById("main");
  const active = document.activeElement;
  const { name, selectionStart } = active;
  history.replaceState(null, "", address);
  main.dataset.live = found.dataset.live;
  main.replaceChildren(...found.childNodes);
  const again = name && main.querySelector(`.filter [name="${name}"]`);
  if (again) {
    again.focus();
    if (again.type === "search") again.setSelectionRange(selectionStart, selectionStart);
  }
  tellTimes();
  listen();
}

document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-live-search]");
  if (!form) return;
  clearTimeout(typing);
  typing = setTimeout(() => search(form), event.target.type === "search" ? 200 : 0);
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const field = main.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  if (field) {
    event.preventDefault();
    field.focus();
  }
});

document.addEventListener("submit", (event) => {
  // Not twice: what is done shows on the page that comes.
  for (const button of event.target.querySelectorAll("button")) button.setAttribute("aria-busy", "true");
  if (event.target.dataset.sent && event.target.method === "post") event.preventDefault();
  event.target.dataset.sent = "yes";
});

// Nobody looks at a hidden tab; and a browser holds six connections to a place, which tabs share.
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return listen();
  news?.close();
  found();
});

window.addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload();
});

document.documentElement.classList.add("live");
tellTimes();
setInterval(tellTimes, 1000);
listen();
