// What makes the pages live. All of them work without it.
"use strict";

const main = document.getElementById("main");
const offline = document.getElementById("offline");
const MARKED = "time[datetime]";
const memory = remembering();

// Where the browser lets no page remember anything, it is so for this page.
function remembering() {
  try {
    return localStorage;
  } catch {
    return {};
  }
}

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
    const clock = new Date(element.dateTime).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
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

function tellTimes(root = document) {
  const now = Date.now();
  for (const element of root.querySelectorAll(MARKED)) tellTime(element, now);
}

// Showing: the page becomes what was told of it last. Elements are known by their ids, and else by
// their place; each stays, with its focus, its selection, what was typed into it, and open or not.

const LISTS = "tbody, ol, ul, #groups, #busy, #troubles";
const READERS = ["open", "aria-busy", "data-sent"];
const note = document.createElement("button");
note.id = "waiting";
note.type = "button";
note.title = "Show them now. They are shown when you leave the list.";
note.hidden = true;
document.body.append(note);
let latest = main.cloneNode(true);
let waiting = 0;

function hasHand(list) {
  const selection = getSelection();
  const isSelected = !selection.isCollapsed && selection.containsNode(list, true);
  const active = document.activeElement;
  const isTyping = main.contains(active) && active.matches("input:not([type=checkbox]), textarea");
  return isSelected || isTyping || list.matches(":hover, :has(:checked)") || list.contains(active);
}

function morph(before, after, hold) {
  if (before.nodeType !== Node.ELEMENT_NODE) {
    if (before.data !== after.data) before.data = after.data;
    return;
  }
  for (const { name } of [...before.attributes]) {
    if (!after.hasAttribute(name) && !READERS.includes(name)) before.removeAttribute(name);
  }
  for (const { name, value } of after.attributes) {
    if (before.getAttribute(name) !== value && !READERS.includes(name)) before.setAttribute(name, value);
  }
  if (hold && before.matches(LISTS) && hasHand(before)) morphHeld(before, after);
  else morphChildren(before, after, hold);
}

// Rows change where they are; none comes, goes or moves.
function morphHeld(list, after) {
  const keyed = (rows) => new Map([...rows].map((row, at) => [row.id || at, row]));
  const there = keyed(list.children);
  const next = keyed(after.children);
  for (const [key, row] of there) if (next.has(key)) morph(row, next.get(key), true);
  const kept = [...there.keys()].filter((key) => next.has(key));
  const order = [...next.keys()].filter((key) => there.has(key));
  waiting += there.size + next.size - 2 * kept.length + kept.filter((key, at) => key !== order[at]).length;
}

// A form with a field named "id" has that field as its property.
const idOf = (node) => node.getAttribute?.("id");

function morphChildren(before, after, hold) {
  const known = new Map([...before.children].filter(idOf).map((each) => [idOf(each), each]));
  const wanted = new Set([...after.children].map(idOf).filter(Boolean));
  let at = before.firstChild;
  for (const next of [...after.childNodes]) {
    let found = idOf(next) ? known.get(idOf(next)) : at;
    if (next.nodeType === Node.ELEMENT_NODE && !idOf(next))
      while (found && (idOf(found) || found.nodeName !== next.nodeName)) found = found.nextSibling;
    if (found?.nodeName !== next.nodeName) {
      before.insertBefore(next, at);
      continue;
    }
    while (at !== found && at && !wanted.has(idOf(at))) at = drop(at);
    if (at === found) at = at.nextSibling;
    else before.insertBefore(found, at);
    morph(found, next, hold);
  }
  while (at) at = drop(at);
}

function drop(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

function show(hold = true) {
  const next = latest.cloneNode(true);
  tellTimes(next);
  waiting = 0;
  morphChildren(main, next, hold);
  showBadges();
  note.hidden = !waiting;
  note.textContent = waiting === 1 ? "1 change waiting" : `${waiting} changes waiting`;
}

note.addEventListener("click", () => show(false));

// Outside of the page: the counts in the menu, the title and the icon of its tab.

const ICON = document.getElementById("favicon");
const TITLE = document.title;
const COLOURS = { ok: "3f9463", hold: "8367d1", off: "868e99", warn: "c07a10", bad: "d4372a" };
const SHAPES = { ok: "", hold: "M10.2 9.2v5.6M14 9.2v5.6", off: "", warn: "M12 8v4.4l2.6 1.6", bad: "M12 7.6v5.4M12 16.4h.01" };
const GREY = ICON.href;

function showBadges() {
  for (const badge of main.querySelectorAll("#badges b")) {
    const count = document.querySelector(`nav .count[data-of="${badge.dataset.of}"]`);
    if (count.textContent !== badge.textContent) count.textContent = badge.textContent;
    count.className = `count ${badge.className}`;
  }
  const { failing = "0", level = "off" } = main.querySelector("#badges i")?.dataset ?? {};
  document.title = failing === "0" ? TITLE : `(${failing}) ${TITLE}`;
  const mark = `%3Cpath fill='none' stroke='%23${COLOURS[level]}' stroke-width='3' d='${SHAPES[level]}'/%3E`;
  const icon = GREY.replace("868e99", COLOURS[level]).replace("%3C/svg%3E", `${mark}%3C/svg%3E`);
  if (ICON.href !== icon) ICON.href = icon;
}

function made(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}

function showParts(parts) {
  for (const [name, html] of Object.entries(parts))
    latest.querySelector(`#${CSS.escape(name)}`)?.replaceWith(made(html));
  show();
}

function showPage(html) {
  latest.replaceChildren(made(html));
  show();
}

// News: one stream for the page that is shown.

const PATIENCE = 4000;
let news;
let missing;

// A wall is open for months: after an upgrade of the dashboard, it reloads itself.
const STYLES = document.querySelector("link[rel=stylesheet]").getAttribute("href");
let hasOpened = false;

async function renew() {
  const answer = await fetch(location);
  if (answer.ok && !(await answer.text()).includes(STYLES)) location.reload();
}

function opened() {
  found();
  if (hasOpened && document.documentElement.classList.contains("wall")) renew().catch(() => {}); // at the next time
  hasOpened = true;
}

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
  if (!main.dataset.live || document.hidden || !live.checked) return;
  const stream = (news = new EventSource(main.dataset.live));
  news.addEventListener("open", opened);
  news.addEventListener("error", () => miss(stream));
  news.addEventListener("parts", (event) => showParts(JSON.parse(event.data)));
  news.addEventListener("page", (event) => showPage(JSON.parse(event.data)));
}

// Search: the page of the filter, as it is written; its address is that of the filter.

let typing;
let asked = 0;

async function search(form) {
  const mine = ++asked;
  const fields = [...new FormData(form)].filter(([, value]) => value !== "");
  const query = new URLSearchParams(fields).toString();
  const address = form.action + (query ? `?${query}` : "");
  const answer = await fetch(address);
  const html = await answer.text();
  if (answer.ok && mine === asked) enter(mainOf(html), address, false);
}

const mainOf = (html) => new DOMParser().parseFromString(html, "text/html").getElementById("main");

function enter(page, address, hold) {
  latest = page;
  history.replaceState(null, "", address);
  if (page.dataset.live) main.dataset.live = page.dataset.live;
  show(hold);
  listen();
}

// Search from any page: the best matches below the field; the arrow keys lead there.

const finder = document.querySelector(".find");
const hits = document.getElementById("hits");
let finding;

async function find() {
  finding?.abort();
  finding = new AbortController();
  const words = finder.q.value.trim();
  if (!words) return hits.replaceChildren();
  const address = `${finder.action}?${new URLSearchParams({ q: words })}`;
  try {
    const answer = await fetch(address, { signal: finding.signal });
    if (answer.ok) hits.replaceChildren(...mainOf(await answer.text()).querySelector("#found").children);
  } catch (error) {
    if (error.name !== "AbortError") hits.replaceChildren(made("<p>The dashboard cannot be reached.</p>"));
  }
}

finder.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(find, 150);
});

finder.addEventListener("keydown", (event) => {
  const places = [finder.q, ...hits.querySelectorAll("a")];
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  places[places.indexOf(document.activeElement) + by]?.focus();
});

// Acting in place: the result is shown where the reader is, and in the row; a question is asked
// over the page, which stays as it is.

const UNKNOWN = "The dashboard cannot be reached: it is not known whether this was done.";
const question = document.createElement("dialog");
document.body.append(question);

function tell(part) {
  if (part) latest.querySelector("#doing")?.replaceWith(part);
  show();
}

function refuse(why) {
  const part = made('<div id="doing"><section class="done bad" role="alert"><p></p></section></div>');
  part.querySelector("p").textContent = why;
  tell(part);
}

function ask(asked) {
  question.replaceChildren(asked);
  question.setAttribute("aria-label", asked.querySelector("h1").textContent);
  question.showModal();
}

// What leads back, leaves the page as it was written.
question.addEventListener("click", (event) => {
  if (!event.target.closest("a")) return;
  event.preventDefault();
  question.close();
});

async function act(form, button) {
  const mine = ++asked;
  const address = button?.hasAttribute("formaction") ? button.formAction : form.action;
  const body = new URLSearchParams(new FormData(form, button));
  const row = form.closest("tr, section")?.id;
  const busy = [form, form.closest("tr")].filter(Boolean);
  for (const each of busy) each.setAttribute("aria-busy", "true");
  document.documentElement.classList.add("acted");
  try {
    const answer = await fetch(address, { method: "POST", body });
    const html = await answer.text();
    const page = mainOf(html);
    if (question.contains(form)) question.close();
    if (!answer.ok) refuse((page?.querySelector("[role=alert]") ?? page)?.textContent.trim() ?? html);
    else if (!answer.redirected) ask(page.querySelector("#question"));
    else arrive(page, answer.url, mine);
  } catch {
    if (question.open) question.close();
    refuse(UNKNOWN);
  }
  delete form.dataset.sent;
  for (const each of busy) each.removeAttribute("aria-busy");
  if (document.activeElement === document.body)
    document.getElementById(row)?.querySelector("button")?.focus({ preventScroll: true });
}

function arrive(page, address, mine) {
  for (const each of main.querySelectorAll("#picked, [form=picked]:checked")) each.checked = false;
  if (new URL(address).pathname !== location.pathname) location.assign(address);
  else if (mine === asked) enter(page, address, true);
  else tell(page.querySelector("#doing"));
}

document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-live-search]");
  if (!form) return;
  clearTimeout(typing);
  typing = setTimeout(() => search(form), event.target.type === "search" ? 200 : 0);
});

const keys = document.getElementById("keys");
const current = () => document.activeElement.closest("main tbody tr[id]");

function step(by) {
  const rows = [...main.querySelectorAll("tbody tr[id]")];
  const at = rows.indexOf(current());
  const next = rows[at < 0 ? 0 : Math.min(Math.max(at + by, 0), rows.length - 1)];
  next?.querySelector("th a, a, button")?.focus();
}

// In a row, of that row; on the page of a loop, of the loop.
function press(...actions) {
  const place = current() ?? document.getElementById("head");
  place?.querySelector(actions.map((each) => `form[action$="/do/${each}"]`).join())?.requestSubmit();
}

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  x: () => current()?.querySelector(".pick input")?.click(),
  p: () => press("pause", "resume"),
  r: () => press("trigger", "now"),
  z: () => main.querySelector("#doing .undo")?.click(),
  u: () => live.click(),
  "?": () => keys.showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("dialog")) return;
  if (event.target.closest("input:not([type=checkbox]), textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const field = event.key === "/" ? (main.querySelector("[data-key='/']") ?? finder.q) : undefined;
  if (!field && !Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  if (field) field.focus();
  else KEYS[event.key]();
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  event.preventDefault();
  if (form.dataset.sent) return; // not twice
  form.dataset.sent = "yes";
  act(form, event.submitter);
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

// The switch: off, the page stands still; this browser remembers it.

const live = document.getElementById("live");
live.checked = memory["scheduler.live"] !== "off";
live.addEventListener("change", () => {
  memory["scheduler.live"] = live.checked ? "on" : "off";
  found();
  listen();
});

// The theme: a cookie, so that the next page comes in it.

const theme = document.getElementById("theme");
theme.addEventListener("change", () => {
  document.documentElement.dataset.theme = theme.value;
  document.cookie = `scheduler-theme=${theme.value}; path=${main.dataset.base || "/"}; max-age=31536000; samesite=lax`;
});
document.getElementById("help").addEventListener("click", () => keys.showModal());

const clock = document.querySelector(".clock");
const NOW = {
  weekday: "short",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
  timeZoneName: "short",
};

function tellClock() {
  clock.textContent = new Date().toLocaleString([], NOW);
}

document.documentElement.classList.add("live");
showBadges();
tellClock();
setInterval(tellClock, 1000);
tellTimes();
setInterval(() => (waiting ? show() : tellTimes()), 1000);
listen();
