/** Which models a view shows, with which of their rows, in which order. No DOM here. */

import { compilerOf, excluded, isStale, libraryOf, READINGS, reading } from "./data.js";

/** The three lists of a task, as people know them from the Hub. */
export const VIEWS = {
  // What the list names, and what was run although it no longer does.
  selected: {
    label: "Selected",
    says: "of the list",
    holds: (model) => model.wish !== null || model.rows.length > 0,
  },
  trending: { label: "Trending", says: "trending on the Hub", holds: (model) => model.trending },
  downloads: {
    label: "Downloads",
    says: "most downloaded from the Hub",
    holds: (model) => model.downloads,
  },
};

/** The row that answers a choice of stack: on the newest stack that fits; null without any. */
function answer(model, state, data) {
  const fits = (stack) =>
    (!state.compiler || compilerOf(stack) === state.compiler) &&
    (!state.library || libraryOf(stack) === state.library) &&
    (state.compiler || !data.target || stack.target === data.target);
  return model.rows.find((row) => fits(row.stack)) ?? null;
}

const TESTS = {
  q: (entry, wanted) => entry.model.key.includes(wanted.trim().toLowerCase()),
  type: (entry, wanted) => entry.model.type === wanted,
  cores: (entry, wanted) => entry.row?.cores === Number(wanted),
  split: (entry, wanted) => entry.row?.split === wanted,
  age: (entry, wanted, data) => entry.row && isStale(entry.row, data) === (wanted === "stale"),
};

/** An excluded model with a row is found under its result, and under EXCLUDED as well. */
const readsAs = (entry, wanted) =>
  entry.reading === wanted || (wanted === "EXCLUDED" && excluded(entry.model));

/**
 * `entries` that match, sorted: {model, row, reading}; `total` models in the view; `counts` of each
 * reading as they would be if no result were asked for.
 */
export function select(data, state) {
  const view = VIEWS[state.view || "selected"];
  const task = state.task || data.tasks[0];
  const asked = Object.entries(TESTS).filter(([name]) => state[name]);
  const results = state.result ? state.result.split(",") : null;
  const counts = Object.fromEntries(READINGS.map((name) => [name, 0]));
  const entries = [];
  let total = 0;
  for (const model of data.models) {
    if (model.task !== task || !view.holds(model)) continue;
    total += 1;
    const row = answer(model, state, data);
    const entry = { model, row, reading: reading(row, model) };
    if (!asked.every(([name, test]) => test(entry, state[name], data))) continue;
    for (const name of READINGS) if (readsAs(entry, name)) counts[name] += 1;
    if (!results || results.some((wanted) => readsAs(entry, wanted))) entries.push(entry);
  }
  return { entries: sorted(entries, state), total, counts };
}

/** Sort key -> what is compared; null comes last in either direction. */
export const SORTS = {
  model: { label: "Model", value: (entry) => entry.model.order },
  type: { label: "Architecture", value: (entry) => entry.model.type },
  result: { label: "Result", value: (entry) => READINGS.indexOf(entry.reading) },
  cores: { label: "Cores", value: (entry) => entry.row?.cores ?? null },
  time: { label: "Time", value: (entry) => entry.row?.wall ?? null },
  tested: { label: "Tested", value: (entry) => entry.row?.timeMs ?? null },
  stack: { label: "Stack", value: (entry) => entry.row?.stack.index ?? null },
  rank: { label: "Rank", value: null },
};

/** The column and direction in force: "-time" is time, largest first. */
export function sortOf(state) {
  const standard = state.view === "trending" || state.view === "downloads" ? "rank" : "model";
  const asked = state.sort || standard;
  const name = asked.replace(/^-/, "");
  if (name === "rank" && standard !== "rank") return { name: standard, down: false };
  return { name, down: asked.startsWith("-") };
}

function sorted(entries, state) {
  const { name, down } = sortOf(state);
  const value = name === "rank" ? (entry) => entry.model[state.view] : SORTS[name].value;
  const turn = down ? -1 : 1;
  const keyed = entries.map((entry) => [value(entry), entry]);
  keyed.sort(([a, one], [b, other]) => {
    if (a === b) return one.model.order - other.model.order;
    if (a === null || b === null) return a === null ? 1 : -1;
    return (a < b ? -1 : 1) * turn;
  });
  return keyed.map(([, entry]) => entry);
}
