/** Charts as SVG, each with the same figures as a table beside it. */

import { loadFigures } from "./data.js";
import { count, duration, h, s } from "./dom.js";

const RESULTS = ["PASS", "FAIL", "ERROR"];
const PHASES = ["download", "load", "compile", "generate"];
const ROW = 30; // height of a bar with its label, pixels
const BILLION = 1000; // in millions of parameters
const SIZES = [
  ["up to 1 B", 1 * BILLION],
  ["1 to 4 B", 4 * BILLION],
  ["4 to 10 B", 10 * BILLION],
  ["10 to 40 B", 40 * BILLION],
  ["above 40 B", Infinity],
];

/**
 * A chart of stacked bars: `bars` are {label, parts: {name: number}}; `share` draws every bar in
 * full width, so that shares can be compared; `format` words a number.
 */
export function stackedBars({ title, note, names, bars, share, format = String }) {
  const sums = bars.map((bar) => names.reduce((sum, name) => sum + (bar.parts[name] ?? 0), 0));
  const largest = Math.max(...sums, 0);
  const shown = bars.filter((bar, i) => sums[i] > 0);
  if (shown.length === 0) {
    return h("figure", { class: "chart" }, h("figcaption", {}, title), h("p", {}, "No figures for these models."));
  }
  const width = 600;
  const drawing = s("svg", {
    viewBox: `0 0 ${width} ${shown.length * ROW}`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": `${title}; the same figures are in the table below`,
  });
  shown.forEach((bar, i) => {
    const sum = names.reduce((all, name) => all + (bar.parts[name] ?? 0), 0);
    let x = 0;
    for (const name of names) {
      const part = ((bar.parts[name] ?? 0) / (share ? sum : largest)) * width;
      if (part <= 0) continue;
      const rect = { x, y: i * ROW + 5, width: part, height: ROW - 10, class: `bar bar-${name}` };
      drawing.append(s("rect", rect, s("title", {}, `${bar.label}: ${name} ${format(bar.parts[name])}`)));
      x += part;
    }
  });
  const labels = shown.map((bar) => h("li", {}, bar.label));
  return h(
    "figure",
    { class: "chart" },
    h("figcaption", {}, title, note ? h("span", { class: "hint" }, ` ${note}`) : null),
    h("p", { class: "key", "aria-hidden": "true" }, names.map((name) => h("span", { class: `key-${name}` }, name))),
    h("div", { class: "plot" }, h("ol", { "aria-hidden": "true" }, labels), drawing),
    asTable({ title, names, bars: shown, share, format }),
  );
}

function asTable({ title, names, bars, share, format }) {
  const cells = (bar) => names.map((name) => h("td", {}, bar.parts[name] === undefined ? "-" : format(bar.parts[name])));
  const rate = (bar) => {
    const decided = (bar.parts.PASS ?? 0) + (bar.parts.FAIL ?? 0);
    return decided ? `${Math.round((100 * (bar.parts.PASS ?? 0)) / decided)} %` : "-";
  };
  return h(
    "details",
    {},
    h("summary", {}, "As a table"),
    h(
      "div",
      { class: "table", role: "region", tabindex: "0", "aria-label": title },
      h(
        "table",
        {},
        h("caption", { class: "visually-hidden" }, title),
        h(
          "thead",
          {},
          h("tr", {}, ["", ...names, ...(share ? ["PASS of PASS and FAIL"] : [])].map((name) =>
            name ? h("th", { scope: "col" }, name) : h("td"),
          )),
        ),
        h("tbody", {}, bars.map((bar) =>
          h("tr", {}, h("th", { scope: "row" }, bar.label), cells(bar), share ? h("td", {}, rate(bar)) : null),
        )),
      ),
    ),
  );
}

/** {label -> {PASS, FAIL, ERROR}} of rows, in the order of `labels`. */
function tally(labels, rows, labelOf) {
  const parts = new Map(labels.map((label) => [label, { PASS: 0, FAIL: 0, ERROR: 0 }]));
  for (const row of rows) {
    const held = parts.get(labelOf(row));
    if (held) held[row.result] += 1;
  }
  return [...parts].map(([label, counts]) => ({ label, parts: counts }));
}

function median(values) {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  if (sorted.length === 0) return undefined;
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** How the results of these models spread over stacks, cores and sizes, and where time went. */
export async function drawCharts(place, entries, data) {
  const rows = entries.map((entry) => entry.row).filter(Boolean);
  const all = entries.flatMap((entry) => entry.model.rows);
  const coreCounts = [...new Set(rows.map((row) => row.cores))].filter(Boolean).sort((a, b) => a - b);
  const coresLabel = (row) => (row.cores ? count(row.cores, "core") : "refused");
  const first = [
    stackedBars({
      title: "Results by stack",
      note: "share of all runs of these models on it, the newest stack first",
      names: RESULTS,
      share: true,
      bars: tally(data.stacks.map((stack) => stack.label), all, (row) => row.stack.label),
    }),
    stackedBars({
      title: "Results by cores",
      note: "share of the runs in the table",
      names: RESULTS,
      share: true,
      bars: tally([...coreCounts.map((cores) => count(cores, "core")), "refused"], rows, coresLabel),
    }),
  ];
  const waiting = h("p", { class: "loading" }, "Reading more figures ...");
  place.replaceChildren(...first, waiting);
  let figure;
  try {
    data.figures ??= loadFigures();
    figure = await data.figures;
  } catch (error) {
    data.figures = undefined;
    waiting.replaceWith(h("p", { class: "problem" }, `${error.message}. ${error.remedy ?? ""}`));
    return;
  }
  if (waiting.isConnected) waiting.replaceWith(bySize(entries, figure), timeSplit(rows, coreCounts, figure));
}

function bySize(entries, figure) {
  const sizeOf = new Map();
  for (const { row, model } of entries) {
    const parameters = figure("parameters", model);
    if (row && parameters !== null) sizeOf.set(row, SIZES.find(([, most]) => parameters <= most)[0]);
  }
  return stackedBars({
    title: "Results by model size",
    note: "parameters; share of the runs in the table",
    names: RESULTS,
    share: true,
    bars: tally(SIZES.map(([label]) => label), sizeOf.keys(), (row) => sizeOf.get(row)),
  });
}

function timeSplit(rows, coreCounts, figure) {
  const passed = rows.filter((row) => row.result === "PASS");
  const bars = coreCounts.map((cores) => {
    const these = passed.filter((row) => row.cores === cores);
    const parts = PHASES.map((phase) => [phase, median(these.map((row) => figure(phase, row)))]);
    return {
      label: count(cores, "core"),
      parts: Object.fromEntries(parts.filter(([, value]) => value !== undefined)),
    };
  });
  return stackedBars({
    title: "Where the time of a run goes",
    note: "medians of those that PASS; compile is the first call, generate the second, steady one",
    names: PHASES,
    share: false,
    bars,
    format: (value) => duration(value < 10 ? Math.round(value * 100) / 100 : Math.round(value)),
  });
}
