/** The page of models: what was chosen is in the address, and the page shows what the address says. */

import { drawCharts } from "./charts.js";
import { compilerOf, libraryOf, load, READINGS } from "./data.js";
import { count, h, readingMark, showError } from "./dom.js";
import { select, SORTS, sortOf, VIEWS } from "./select.js";
import { FILTERS, fromSearch, toSearch, valid } from "./state.js";
import { modelTable, PAGE_SIZE, pageLinks } from "./table.js";

const TYPING_MS = 400; // browsers refuse to change the address at every key
const byId = (id) => document.getElementById(id);

let data;
let state;
let options; // name of a choice -> Map of its values to what people read
let typing;

function start() {
  options = choices();
  for (const name of ["compiler", "library", "cores", "split", "type", "age", "sort"]) fillSelect(name);
  fillTabs(byId("tasks"), "task");
  fillTabs(byId("views"), "view");
  for (const name of READINGS) byId("results").append(resultButton(name));
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("filters").addEventListener("change", (event) => {
    if (event.target.tagName === "SELECT") change({ [event.target.name]: event.target.value });
  });
  byId("q").addEventListener("input", (event) => type(event.target.value));
  byId("clear").addEventListener("click", () => {
    change(Object.fromEntries(FILTERS.map((name) => [name, ""])));
    byId("q").focus();
  });
  byId("charts").addEventListener("toggle", toggleCharts);
  document.addEventListener("keydown", searchKey);
  document.addEventListener("click", followLink);
  addEventListener("popstate", restore);
  restore();
  byId("more").open = matchMedia("(min-width: 48rem)").matches || activeSelects() > 0;
  byId("status").hidden = true;
  byId("app").hidden = false;
}

// --- choices ------------------------------------------------------------------------------------

function choices() {
  const rows = data.models.flatMap((model) => model.rows);
  const distinct = (values) => [...new Set(values)].filter((value) => value !== null);
  const named = (values, name = String) => new Map(values.map((value) => [String(value), name(value)]));
  const compilers = new Map(
    data.stacks.map((stack) => [
      compilerOf(stack),
      compilerOf(stack) + (stack.target === "neuron" ? "" : ` (${stack.target}, not Trainium)`),
    ]),
  );
  return {
    task: named(data.tasks),
    view: named(Object.keys(VIEWS), (view) => VIEWS[view].label),
    compiler: compilers,
    library: named(distinct(data.stacks.map(libraryOf))),
    cores: named(distinct(rows.map((row) => row.cores)).sort((a, b) => a - b)),
    split: named(distinct(rows.map((row) => row.split)).sort()),
    type: named(distinct(data.models.map((model) => model.type)).sort()),
    age: new Map([
      ["fresh", data.maxAgeDays === null ? "fresh" : `at most ${data.maxAgeDays} days`],
      ["stale", "stale"],
    ]),
    sort: new Map(
      Object.entries(SORTS).flatMap(([name, { label }]) => [
        [name, label],
        [`-${name}`, `${label}, descending`],
      ]),
    ),
    result: named(READINGS),
    charts: named(["open"]),
  };
}

const ANY = { compiler: "newest tested", library: "any", sort: "usual order" };

function fillSelect(name) {
  const any = h("option", { value: "" }, ANY[name] ?? "any");
  byId(name).replaceChildren(
    any,
    ...[...options[name]].map(([value, label]) => h("option", { value }, label)),
  );
}

function fillTabs(nav, name) {
  nav.replaceChildren(
    ...[...options[name]].map(([value, label]) => h("a", { href: "?", "data-here": true, "data-name": name, "data-value": value }, label)),
  );
}

function resultButton(name) {
  const button = h(
    "button",
    { type: "button", "data-result": name, "aria-pressed": "false" },
    readingMark(name),
    " ",
    h("span", { class: "number" }),
  );
  button.addEventListener("click", () => {
    const chosen = new Set(state.result.split(",").filter(Boolean));
    if (!chosen.delete(name)) chosen.add(name);
    change({ result: READINGS.filter((one) => chosen.has(one)).join(",") });
  });
  return button;
}

// --- the address --------------------------------------------------------------------------------

/** Show the state that the address names; say so when it names what is not in the data. */
function restore() {
  clearTimeout(typing);
  typing = undefined;
  const allowed = Object.fromEntries(
    Object.entries(options).map(([name, values]) => [name, new Set(values.keys())]),
  );
  const checked = valid(fromSearch(location.search), allowed);
  state = checked.state;
  byId("ignored").hidden = checked.unknown.length === 0;
  byId("ignored").textContent = checked.unknown.length
    ? `The address asks for ${checked.unknown.join(", ")}, which is not in the results; shown without it.`
    : "";
  byId("q").value = state.q;
  byId("charts").open = state.charts === "open";
  show();
}

/** A choice: shown at once, and a step that the back button undoes. */
function change(choice) {
  flushTyping();
  state = { ...state, page: "", ...choice };
  history.pushState(null, "", toSearch(state));
  byId("ignored").hidden = true;
  byId("q").value = state.q;
  show();
}

/** Typing is shown at once; the address follows when the reader pauses, as one step for a word. */
function type(q) {
  if (typing === undefined) history.pushState(null, "", location.href);
  state = { ...state, q, page: "" };
  clearTimeout(typing);
  typing = setTimeout(flushTyping, TYPING_MS);
  show();
}

function flushTyping() {
  if (typing === undefined) return;
  clearTimeout(typing);
  typing = undefined;
  history.replaceState(null, "", toSearch(state));
}

/** Tabs and pages are links, so that they can be opened elsewhere; here they need no new page. */
function followLink(event) {
  flushTyping(); // whatever is clicked may lead away, and the way back leads here
  const link = event.target.closest?.("a[data-here]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
  event.preventDefault();
  change(fromSearch(link.search));
  if (byId("pages").contains(link)) {
    byId("table").scrollIntoView();
    byId("table").focus({ preventScroll: true });
  }
}

/** The first of a list of tabs is what an address without a choice shows. */
function tabChoice(name, value) {
  const [first] = options[name].keys();
  return { [name]: value === first ? "" : value, sort: "", page: "" };
}

function searchKey(event) {
  const typed = event.target.closest?.("input, select, textarea");
  if (event.key !== "/" || typed || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  byId("q").focus();
  byId("q").select();
}

// --- showing ------------------------------------------------------------------------------------

const activeSelects = () =>
  FILTERS.filter((name) => state[name] && name !== "q" && name !== "result").length;

function show() {
  const found = select(data, state);
  showChoices(found);
  showTable(found);
  if (byId("charts").open) drawCharts(byId("charts").querySelector(".figures"), found.entries, data);
}

function showChoices({ counts }) {
  for (const name of ["compiler", "library", "cores", "split", "type", "age", "sort"]) {
    byId(name).value = state[name];
  }
  for (const link of document.querySelectorAll(".tabs a")) {
    const { name, value } = link.dataset;
    const [first] = options[name].keys();
    link.href = toSearch({ ...state, ...tabChoice(name, value) });
    if (value === (state[name] || first)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const chosen = state.result.split(",");
  for (const button of byId("results").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(chosen.includes(button.dataset.result)));
    button.querySelector(".number").textContent = counts[button.dataset.result].toLocaleString("en");
  }
  const active = activeSelects();
  byId("active").textContent = active ? `(${active} in use)` : "";
  byId("clear").hidden = !FILTERS.some((name) => state[name]);
  showScope();
}

/** Where the table holds what says nothing of Trainium, that stands above it. */
function showScope() {
  const asked = data.stacks.find((stack) => compilerOf(stack) === state.compiler);
  const elsewhere = asked ? asked.target !== "neuron" : data.target === null;
  byId("scope").hidden = !elsewhere;
  byId("scope").textContent = data.stacks.length
    ? "These runs took place on a CPU, with PyTorch's own compiler: the same code path, but they say nothing of Trainium."
    : "There is no result yet: every model that is not excluded is UNTESTED.";
}

function showTable({ entries, total }) {
  const view = VIEWS[state.view || "selected"];
  const last = Math.max(1, Math.ceil(entries.length / PAGE_SIZE));
  const page = Math.min(Number(state.page || 1), last);
  const from = (page - 1) * PAGE_SIZE;
  const shown = entries.slice(from, from + PAGE_SIZE);
  const range = last > 1 ? `, shown: ${from + 1} to ${from + shown.length}` : "";
  byId("count").textContent =
    `${entries.length.toLocaleString("en")} of ${count(total, "model")} ${view.says} match${range}`;
  const focused = document.activeElement?.id;
  byId("table").replaceChildren(
    entries.length === 0
      ? nothing(total)
      : modelTable({
          entries: shown,
          caption: `${view.label} models for ${state.task || data.tasks[0]}`,
          ranked: state.view === "trending" || state.view === "downloads" ? state.view : null,
          sort: sortOf(state),
          data,
          onSort: ({ name, down }) => change({ sort: down ? `-${name}` : name }),
        }),
  );
  if (focused?.startsWith("sort-")) byId(focused)?.focus();
  pageLinks(byId("pages"), page, last, (to) => toSearch({ ...state, page: to === 1 ? "" : String(to) }));
}

/** What to do where nothing matches: the other lists that have what was searched for. */
function nothing(total) {
  const elsewhere = [];
  for (const task of data.tasks) {
    for (const view of Object.keys(VIEWS)) {
      const there = { ...state, task, view, sort: "", page: "" };
      const found = select(data, there).entries.length;
      if (found) {
        elsewhere.push(
          h("li", {}, h("a", { href: toSearch(there), "data-here": true }, `${count(found, "model")} in ${VIEWS[view].label}, ${task}`)),
        );
      }
    }
  }
  const said = total === 0 ? "This list holds no model." : "No model of this list matches.";
  return h(
    "div",
    { class: "nothing" },
    h("p", {}, h("strong", {}, said), elsewhere.length ? " Other lists have some:" : " Clear a filter, or look for a shorter part of the name."),
    elsewhere.length ? h("ul", {}, elsewhere) : null,
  );
}

/** Charts are drawn when they are opened, and stay open in a shared address. */
function toggleCharts() {
  const open = byId("charts").open ? "open" : "";
  if (open) drawCharts(byId("charts").querySelector(".figures"), select(data, state).entries, data);
  if (open === state.charts) return;
  state = { ...state, charts: open };
  history.replaceState(null, "", toSearch(state));
}

// Last, when all above is defined.
try {
  data = await load();
  start();
} catch (error) {
  showError(byId("status"), error);
  if (!error.remedy) throw error;
}
