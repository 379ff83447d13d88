"use strict";
const byId = (id) => document.getElementById(id);
const [search, state, cards] = ["search", "state", "cards"].map(byId);
let connection = "";
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
    card.hidden = !has(text);
    shown += card.hidden ? 0 : 1;
    for (const line of card.querySelectorAll("li")) {
      const around = line.parentElement.closest("li")?.querySelector("summary")?.textContent ?? "";
      line.hidden = words.length > 0 && !has([head, around, line.textContent].join(" ").toLowerCase());
      if (!line.hidden && words.length > 0) line.closest("details").open = true;
    }
  }
  state.textContent = words.length > 0 ? `${shown} of ${articles().length} shown` : connection;
}
search.addEventListener("input", filter);

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
const nameOf = (section) => section.querySelector("summary").textContent;
const closed = (card) => new Set([...sections(card)].filter((one) => !one.open).map(nameOf));
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
    const stay = closed(old);
    for (const section of sections(card)) if (stay.has(nameOf(section))) section.open = false;
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
    filter();
  });
  const tell = (text) => {
    connection = text;
    filter();
  };
  source.onopen = () => tell("live");
  source.onerror = () => tell("not connected, trying again");
}
