/** The site's data: fetched once, checked, and turned into models that know their rows. */

const VERSION = 1;
const DAY_MS = 24 * 60 * 60 * 1000;
const RESULTS = { P: "PASS", F: "FAIL", E: "ERROR" };
const SPLITS = { n: "none", t: "tensor", e: "expert", "-": "refused" };
const WISHES = { w: "wanted", n: "not_prioritised", i: "incompatible", "-": null };

/** All readings, in the order in which people look for them. */
export const READINGS = ["PASS", "FAIL", "ERROR", "EXCLUDED", "UNTESTED"];

/** What keeps the page from showing anything, with what to do about it. */
export class DataError extends Error {
  constructor(message, remedy) {
    super(message);
    this.remedy = remedy;
  }
}

/** Fetch data/index.json and read it. DataError when it cannot be had or is not what it should be. */
export async function load(url = "data/index.json") {
  const raw = await fetchJson(url);
  if (raw?.version !== VERSION) {
    throw new DataError(
      `${url} is of version ${raw?.version ?? "unknown"}, this page reads version ${VERSION}`,
      "Reload the page; if that does not help, the site was only half updated and its owner has to run `qualify site` again.",
    );
  }
  try {
    return read(raw);
  } catch (error) {
    throw new DataError(
      `${url} is damaged: ${error.message}`,
      "The site's owner has to run `qualify site` again. The plain list and the Parquet files are made apart from it.",
    );
  }
}

async function fetchJson(url) {
  let answer;
  try {
    answer = await fetch(url);
  } catch {
    throw new DataError(
      `${url} could not be fetched`,
      location.protocol === "file:"
        ? "Browsers let no page read files of its own folder: run `python3 -m http.server` in it and open http://localhost:8000."
        : "Look at your connection, then reload the page.",
    );
  }
  if (!answer.ok) {
    throw new DataError(
      `${url}: the server answered ${answer.status}`,
      "Reload the page later; if that does not help, tell the site's owner.",
    );
  }
  try {
    return await answer.json();
  } catch {
    throw new DataError(
      `${url} is cut off or no JSON`,
      "Reload the page; if that does not help, the site's owner has to run `qualify site` again.",
    );
  }
}

function read(raw) {
  const baseMs = Date.parse(raw.base_day);
  const generatedMs = raw.generated ? Date.parse(raw.generated) : 0;
  const stacks = raw.stacks.map((stack, index) => ({ ...stack, index }));
  const models = readModels(raw);
  const refer = (table, index, what) => {
    if (index === -1) return null;
    if (table[index] === undefined) throw new Error(`no ${what} ${index}`);
    return table[index];
  };
  const common = (columns, i) => ({
    stack: refer(stacks, columns.stack[i], "stack"),
    failure: refer(raw.failures, columns.failure[i], "failure"),
    cores: columns.cores[i] || null,
    split: SPLITS[columns.split[i]],
    timeMs: baseMs + ((raw.run_days[columns.run[i]] ?? 0) + columns.day[i]) * DAY_MS,
    wall: columns.wall[i] < 0 ? null : columns.wall[i],
    run: safeUrl(refer(raw.runs, columns.run[i], "run")),
  });
  checkColumns("rows", { ...raw.rows, moved: raw.rows.model });
  const moved = new Set(raw.rows.moved);
  raw.rows.model.forEach((model, i) => {
    const result = RESULTS[raw.rows.result[i]];
    if (!result) throw new Error(`no result ${raw.rows.result[i]}`);
    models[model].rows.push({ ...common(raw.rows, i), index: i, result, moved: moved.has(i) });
  });
  readOutside(raw, models, baseMs);
  for (const model of models) model.rows.sort((a, b) => a.stack.index - b.stack.index);
  return {
    stacks,
    tasks: bySize(raw.tasks, models),
    models,
    maxAgeDays: raw.max_age_days,
    generatedMs,
    // Rows of a CPU say nothing of Trainium: they decide a reading only where there are no others.
    target: stacks.some((stack) => stack.target === "neuron") ? "neuron" : null,
  };
}

function readModels(raw) {
  const columns = raw.models;
  checkColumns("models", { ...columns, note: columns.id }); // notes are sparse: index -> text
  const models = columns.id.map((id, i) => ({
    id,
    index: i,
    key: id.toLowerCase(),
    task: raw.tasks[columns.task[i]],
    type: columns.type[i] === -1 ? null : raw.types[columns.type[i]],
    wish: WISHES[columns.wish[i]],
    note: columns.note[i] ?? null,
    trending: columns.trending[i] || null,
    downloads: columns.downloads[i] || null,
    rows: [],
    outside: [],
  }));
  // Their order by name is found once, so that no sort compares text again.
  const byName = [...models].sort((a, b) => (a.key < b.key ? -1 : 1));
  byName.forEach((model, order) => Object.assign(model, { order }));
  return models;
}

/** Tasks, that with the most models first. */
function bySize(tasks, models) {
  const sizes = new Map(tasks.map((task) => [task, 0]));
  for (const { task } of models) sizes.set(task, sizes.get(task) + 1);
  return [...tasks].sort((a, b) => sizes.get(b) - sizes.get(a));
}

/** What another dataset says of the same models: its words, kept apart from our rows. */
function readOutside(raw, models, baseMs) {
  if (!raw.also) return;
  const columns = raw.also;
  checkColumns("also", columns);
  columns.model.forEach((model, i) => {
    models[model].outside.push({
      dataset: raw.also_datasets[columns.dataset[i]],
      result: raw.also_results[columns.result[i]],
      stack: raw.also_stacks[columns.stack[i]],
      cores: columns.cores[i] || null,
      timeMs: columns.day[i] < 0 ? null : baseMs + columns.day[i] * DAY_MS,
    });
  });
}

function checkColumns(name, columns) {
  const lengths = new Set(Object.values(columns).map((column) => column.length));
  if (lengths.size !== 1) throw new Error(`the columns of ${name} differ in length`);
}

/** Only addresses that a reader may safely follow. */
function safeUrl(url) {
  return url && /^https?:\/\//.test(url) ? url : null;
}

export const excluded = (model) => model.wish === "incompatible" || model.wish === "not_prioritised";

/** Whole days between a row's day and the reader's today, never below 0. */
export function ageDays(row, data) {
  return Math.max(0, Math.floor((Math.max(Date.now(), data.generatedMs) - row.timeMs) / DAY_MS));
}

/** Older than the list allows, or of a revision that is no longer the one asked for. */
export const isStale = (row, data) =>
  row.moved || (data.maxAgeDays !== null && ageDays(row, data) > data.maxAgeDays);

/**
 * The figures of all rows, asked for only where they are shown: a function (name, row or model) ->
 * number, null when it is not known. Of models: parameters (millions); of rows: seconds, GiB.
 */
export async function loadFigures(url = "data/figures.json") {
  const raw = await fetchJson(url);
  if (raw?.version !== VERSION) throw new DataError(`${url} is of another version`, "Reload the page.");
  const columns = { ...raw.rows, ...raw.models };
  return (name, { index }) => {
    const value = columns[name]?.[index];
    return value === undefined || value < 0 ? null : value;
  };
}

/** PASS, FAIL or ERROR of a row; without one EXCLUDED as the list says, else UNTESTED. */
export function reading(row, model) {
  if (row) return row.result;
  return excluded(model) ? "EXCLUDED" : "UNTESTED";
}

export const modelPage = (model) =>
  `models/${encodeURIComponent(model.id.replaceAll("/", "--"))}/index.html`;

/** A run id spells it without the dash that its package has. */
const compilerName = (name) => (name === "neuronxcc" ? "neuronx-cc" : name);

export const compilerOf = (stack) => `${compilerName(stack.compiler)} ${stack.compiler_version}`;
export const libraryOf = (stack) => `${stack.library} ${stack.library_version}`;
