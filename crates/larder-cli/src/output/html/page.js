"use strict";
const byId = (id) => document.getElementById(id);
const [search, state, cards, states] = ["search", "state", "cards", "states"].map(byId);
let connection = "";
// The state whose cards alone are shown.
let only = "";
const articles = () => [...cards.children];
const sections = (root) => root.querySelectorAll("details");

// Search: a line stays if it, what it belongs to, or what belongs to it has all the words.
function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (text) => words.every((word) => text.includes(word));
  let shown = 0;
  for (const card of articles()) {
    const text = card.textContent.toLowerCase();
    const head = (card.querySelector("h2")?.textContent ?? "").toLowerCase();
    card.hidden = !has(text) || (only !== "" && card.dataset.state !== only);
    shown += card.hidden ? 0 : 1;
    for (const line of card.querySelectorAll("li")) {
      const around = line.parentElement.closest("li")?.querySelector("summary")?.textContent ?? "";
      line.hidden = words.length > 0 && !has([head, around, line.textContent].join(" ").toLowerCase());
      if (!line.hidden && words.length > 0) line.closest("details").open = true;
    }
  }
  state.textContent = words.length > 0 || only ? `${shown} of ${articles().length} shown` : connection;
}
search.addEventListener("input", filter);

// A button for each state, with the number of its cards; pressed, it shows only these.
function count() {
  const counts = new Map();
  for (const { dataset } of articles()) if (dataset.state) counts.set(dataset.state, (counts.get(dataset.state) ?? 0) + 1);
  if (!counts.has(only)) only = "";
  const focus = document.activeElement?.dataset.only;
  states.replaceChildren(...[...counts].map(([name, number]) => {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: `${number} ${name}` });
    button.dataset.only = name;
    button.setAttribute("aria-pressed", String(only === name));
    button.addEventListener("click", () => {
      only = only === name ? "" : name;
      count();
      filter();
    });
    return button;
  }));
  if (focus) states.querySelector(`[data-only="${CSS.escape(focus)}"]`)?.focus();
}
count();

function age(seconds) {
  const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  const [unit, length] = units.find(([, length]) => seconds >= length) ?? ["s", 1];
  return `${Math.max(0, Math.floor(seconds / length))}${unit}`;
}
function tellAges() {
  for (const time of cards.querySelectorAll("time")) time.textContent = age((Date.now() - Date.parse(time.dateTime)) / 1000);
}
tellAges();
setInterval(tellAges, 5000);

function openAll(open) {
  for (const section of sections(cards)) section.open = open;
}
byId("open").addEventListener("click", () => openAll(true));
byId("close").addEventListener("click", () => openAll(false));
addEventListener("beforeprint", () => openAll(true));

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.target === search) {
    if (event.key === "Escape") {
      search.value = "";
      filter();
      search.blur();
    }
    return;
  }
  if (event.key === "/") {
    event.preventDefault();
    search.focus();
  } else if (event.key === "j" || event.key === "k") {
    const heads = articles().filter((card) => !card.hidden).map((card) => card.querySelector("summary"));
    const seen = heads.filter(Boolean);
    const step = event.key === "j" ? 1 : -1;
    const now = seen.findIndex((head) => head.parentElement.contains(document.activeElement));
    const next = now < 0 ? 0 : Math.min(Math.max(now + step, 0), seen.length - 1);
    seen[next]?.focus();
    seen[next]?.scrollIntoView({ block: "center" });
  }
});

// The live page. The server escapes every text, so what it sends is markup.
const nameOf = (section) => section.querySelector("summary span").textContent;
const opened = (card) => new Map([...sections(card)].map((one) => [nameOf(one), one.open]));
const known = new Map();
function put({ id, html }) {
  const old = byId(id);
  // A new connection sends every card again.
  if (old && known.get(id) === html) return;
  known.set(id, html);
  const template = document.createElement("template");
  template.innerHTML = html;
  const card = template.content.firstElementChild;
  if (!old) {
    // The server sends the cards in their order.
    cards.append(card);
  } else {
    // What its reader has opened or closed stays so, until its state is another.
    const before = old.dataset.state === card.dataset.state ? opened(old) : new Map();
    for (const section of sections(card)) section.open = before.get(nameOf(section)) ?? section.open;
    const heads = [...old.querySelectorAll("summary")];
    const focus = heads.indexOf(document.activeElement);
    old.replaceWith(card);
    if (focus >= 0) card.querySelectorAll("summary")[focus]?.focus();
  }
  if (old) {
    card.classList.add("fresh");
    setTimeout(() => card.classList.remove("fresh"), 1500);
  }
}

const home = document.body.dataset.live;
if (home) {
  // The token in the address works once.
  history.replaceState(null, "", home);
  const source = new EventSource(`${home}events`);
  source.addEventListener("cards", (event) => {
    const { order, changed, summary } = JSON.parse(event.data);
    for (const card of articles()) if (!order.includes(card.id)) card.remove();
    changed.forEach(put);
    order.forEach((id, place) => {
      if (cards.children[place]?.id !== id && byId(id)) cards.insertBefore(byId(id), cards.children[place]);
    });
    byId("summary").textContent = summary;
    tellAges();
    count();
    filter();
  });
  const tell = (text) => {
    connection = text;
    filter();
  };
  source.onopen = () => tell("live");
  source.onerror = () => tell("not connected, trying again");
}
