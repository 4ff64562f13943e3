/** The table of models: one page of rows at a time, so that ten thousand models stay fast. */

import { compilerOf, excluded, libraryOf, modelPage } from "./data.js";
import { age, breakable, count, duration, failureName, h, placement, readingMark, runLink, staleMark } from "./dom.js";
import { SORTS } from "./select.js";

export const PAGE_SIZE = 50;
const OTHERS = 2; // other stacks that a row names; its own page has all

const COLUMNS = ["rank", "model", "type", "result", "cores", "time", "tested", "stack", "others"];

/** The columns of a view: ranks only where it is a ranking, others only where there are any. */
function columnsOf(ranked, data) {
  const others = data.stacks.length > 1 || data.models.some((model) => model.outside.length);
  return COLUMNS.filter((name) => (name !== "rank" || ranked) && (name !== "others" || others));
}

/** The table of `entries` (one page); `sort`: {name, down}; `onSort` is called with a new one. */
export function modelTable({ entries, caption, ranked, sort, data, onSort }) {
  const columns = columnsOf(ranked, data);
  return h(
    "table",
    { class: "models", role: "table" },
    h("caption", { class: "visually-hidden" }, caption),
    h(
      "thead",
      { role: "rowgroup" },
      h("tr", { role: "row" }, columns.map((name) => header(name, sort, onSort))),
    ),
    h(
      "tbody",
      { role: "rowgroup" },
      entries.map((entry) =>
        h("tr", { role: "row" }, columns.map((name) => cell(name, entry, ranked, data))),
      ),
    ),
  );
}

function header(name, sort, onSort) {
  const label = SORTS[name]?.label ?? "Other stacks";
  const attributes = { role: "columnheader", scope: "col", class: `c-${name}` };
  if (!SORTS[name]) return h("th", attributes, label);
  const isSorted = sort.name === name;
  attributes["aria-sort"] = !isSorted ? "none" : sort.down ? "descending" : "ascending";
  const button = h("button", { type: "button", id: `sort-${name}` }, label);
  button.addEventListener("click", () => onSort({ name, down: isSorted && !sort.down }));
  return h("th", attributes, button);
}

function cell(name, entry, ranked, data) {
  const attributes = { role: "cell", class: `c-${name}`, "data-label": SORTS[name]?.label ?? "Other stacks" };
  if (name === "model") {
    return h(
      "th",
      { ...attributes, role: "rowheader", scope: "row" },
      h("a", { href: modelPage(entry.model) }, breakable(entry.model.id)),
    );
  }
  const held = CELLS[name](entry, data, ranked);
  const empty = held === null || (Array.isArray(held) && held.length === 0);
  return h("td", { ...attributes, class: `c-${name}${empty ? " empty" : ""}` }, empty ? "-" : held);
}


const CELLS = {
  rank: (entry, data, ranked) => `${entry.model[ranked]}`,
  type: ({ model }) => (model.type ? breakable(model.type) : null),
  result: (entry, data) => [
    readingMark(entry.reading),
    staleMark(entry.row, data),
    entry.row ? offDevice(entry.row) : null,
    entry.row?.failure ? failureName(entry.row) : null,
    exclusion(entry),
  ],
  cores: ({ row }) => (row ? placement(row) : null),
  time: ({ row }) => (row ? duration(row.wall) : null),
  tested: ({ row, model }, data) => (row ? [age(row, data), " ", runLink(row, model)] : null),
  stack: ({ row }) => (row ? stackLines(row.stack) : null),
  others: (entry, data) => others(entry, data),
};

/** A result that says nothing of Trainium says so beside its word. */
const offDevice = ({ stack }) =>
  stack.target === "neuron" ? null : h("span", { class: "target" }, `on ${stack.target}`);

/** Why people left a model out; beside a row of it, that they did, or no longer list it. */
function exclusion({ model, row }) {
  if (row && model.wish === null) return h("span", { class: "exclusion" }, "not on the list");
  if (!excluded(model)) return null;
  const reason = model.wish.replace("_", " ");
  return h(
    "span",
    { class: "exclusion" },
    row ? `EXCLUDED on the list, ${reason}` : reason,
    model.note ? `: ${model.note}` : null,
  );
}

const stackLines = (stack) => [
  h("span", {}, compilerOf(stack)),
  h("span", {}, libraryOf(stack)),
  h("span", {}, `torch ${stack.torch}`),
];

function others({ model, row }, data) {
  const rest = model.rows.filter((other) => other !== row);
  const items = rest.slice(0, OTHERS).map((other) =>
    h(
      "span",
      { class: "other" },
      readingMark(other.result),
      staleMark(other, data),
      " ",
      h(
        "span",
        { title: other.stack.label },
        `${other.stack.target === "neuron" ? other.stack.compiler_version : other.stack.target}, ${other.stack.library_version}, `,
        runLink(other, model, age(other, data, "d")) ?? age(other, data, "d"),
      ),
    ),
  );
  if (rest.length > OTHERS) {
    items.push(
      h(
        "a",
        { href: modelPage(model), "aria-label": `${rest.length - OTHERS} more stacks of ${model.id}` },
        `${rest.length - OTHERS} more`,
      ),
    );
  }
  return [...items, ...model.outside.slice(0, OTHERS).map(outside)];
}

/** Evidence of another dataset, in its own words and never in the shape of ours. */
function outside(row) {
  const day = row.timeMs === null ? null : new Date(row.timeMs).toISOString().slice(0, 10);
  const parts = [row.stack, row.cores ? count(row.cores, "core") : null, day].filter(Boolean);
  return h(
    "span",
    { class: "outside-row", title: `${row.dataset}: ${parts.join(", ")}` },
    h("span", { class: "hint" }, "outside: "),
    `${row.result} (${parts.join(", ")})`,
  );
}

/** Links to the pages around `page` of `last`; `address` gives the address of a page. */
export function pageLinks(place, page, last, address) {
  place.hidden = last <= 1;
  const link = (to, text, rel) =>
    to >= 1 && to <= last
      ? h("a", { href: address(to), rel, "data-here": true }, text)
      : h("span", { class: "off", "aria-hidden": "true" }, text);
  place.replaceChildren(
    link(page - 1, "Previous", "prev"),
    h("span", {}, `Page ${page} of ${last}`),
    link(page + 1, "Next", "next"),
  );
}
