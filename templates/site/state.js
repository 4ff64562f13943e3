/** What a reader chose, as the page's address keeps it: every value is a string, "" is no choice. */

const FIELDS = [
  "task", "view", "q", "compiler", "library", "result", "cores", "split", "type", "age",
  "sort", "page", "charts",
];

/** The choices that narrow down the models, and can be cleared together. */
export const FILTERS = ["q", "compiler", "library", "result", "cores", "split", "type", "age"];

/** The state in the query part of an address. */
export function fromSearch(search) {
  const given = new URLSearchParams(search);
  return Object.fromEntries(FIELDS.map((name) => [name, given.get(name) ?? ""]));
}

/** The query part of an address for a state, "?" when nothing was chosen. */
export function toSearch(state) {
  const kept = FIELDS.filter((name) => state[name]).map((name) => [name, state[name]]);
  return `?${new URLSearchParams(kept)}`;
}

/** The state without choices that are not among `options` (name -> Set), and what was left out. */
export function valid(state, options) {
  const unknown = [];
  const kept = { ...state };
  for (const [name, allowed] of Object.entries(options)) {
    const good = state[name].split(",").filter((value) => value && allowed.has(value));
    const bad = state[name].split(",").filter((value) => value && !allowed.has(value));
    kept[name] = good.join(",");
    unknown.push(...bad.map((value) => `${name} "${value}"`));
  }
  if (state.page && !/^[1-9]\d{0,5}$/.test(state.page)) kept.page = "";
  return { state: kept, unknown };
}
