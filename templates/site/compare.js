/** Two stacks on the models that ran on both: what fails newly, what was fixed, what changed. */

import { stackedBars } from "./charts.js";
import { load, loadFigures, modelPage } from "./data.js";
import { age, count, duration, failureName, h, placement, readingMark, runLink, showError, staleMark } from "./dom.js";

const STEP = 50; // rows that a section shows at first, and with each "more"
const LEAST = "25"; // percent; only what is shown at first, the reader sets another
const RESULTS = ["PASS", "FAIL", "ERROR"];
const byId = (id) => document.getElementById(id);

let data;

function start() {
  for (const name of ["from", "to"]) {
    byId(name).replaceChildren(
      ...data.stacks.map((stack) => h("option", { value: stack.key }, stack.label)),
    );
  }
  byId("stacks").addEventListener("submit", (event) => event.preventDefault());
  byId("stacks").addEventListener("change", changed);
  byId("swap").addEventListener("click", () => {
    const [from, to] = [byId("from").value, byId("to").value];
    byId("from").value = to;
    byId("to").value = from;
    changed();
  });
  addEventListener("popstate", restore);
  restore();
  byId("status").hidden = true;
  byId("app").hidden = false;
}

/** The newest two stacks of one target, unless the address says otherwise. */
function standard() {
  const [to] = data.stacks;
  const from = data.stacks.find((stack) => stack !== to && stack.target === to.target) ?? data.stacks[1];
  return { from: from.key, to: to.key };
}

function restore() {
  const given = new URLSearchParams(location.search);
  const unknown = [];
  for (const name of ["from", "to"]) {
    const asked = given.get(name);
    const known = data.stacks.some((stack) => stack.key === asked);
    if (asked && !known) unknown.push(`${name} "${asked}"`);
    byId(name).value = known ? asked : standard()[name];
  }
  const least = given.get("least") ?? "";
  byId("least").value = /^\d{1,4}$/.test(least) ? least : LEAST;
  byId("ignored").hidden = unknown.length === 0;
  byId("ignored").textContent = `The address asks for ${unknown.join(", ")}, of which there are no results; shown are others.`;
  show();
}

function changed() {
  const kept = { from: byId("from").value, to: byId("to").value };
  if (!/^\d{1,4}$/.test(byId("least").value)) byId("least").value = LEAST;
  if (byId("least").value !== LEAST) kept.least = byId("least").value;
  history.pushState(null, "", `?${new URLSearchParams(kept)}`);
  byId("ignored").hidden = true;
  show();
}

// --- comparing ----------------------------------------------------------------------------------

/** {model, before, after} of all models that ran on both stacks, and how many ran on one only. */
function pairs(from, to) {
  const common = [];
  let single = 0;
  for (const model of data.models) {
    const before = model.rows.find((row) => row.stack.key === from);
    const after = model.rows.find((row) => row.stack.key === to);
    if (before && after) common.push({ model, before, after });
    else if (before || after) single += 1;
  }
  return { common, single };
}

/** The figures of a pair that differ, in words; [] when none does. */
function differences({ before, after }, least) {
  const told = [];
  if (before.failure && after.failure && before.failure !== after.failure) {
    told.push(`${before.failure} to ${after.failure}`);
  }
  if (placement(before) !== placement(after)) {
    told.push(`${coresOf(before)} to ${coresOf(after)}`);
  }
  const change = timeChange({ before, after });
  if (after.result === "PASS" && change !== null && Math.abs(change) >= least) {
    const words = `${duration(before.wall)} to ${duration(after.wall)}`;
    told.push(`time ${words} (${change > 0 ? "+" : ""}${Math.round(change)} %)`);
  }
  return told;
}

function coresOf(row) {
  if (!row.cores) return placement(row) ?? "unknown cores";
  return `${count(row.cores, "core")}${row.split === "none" ? "" : `, ${row.split}`}`;
}

/** Percent by which the wall time moved; null when a time is not known. */
function timeChange({ before, after }) {
  return before.wall && after.wall !== null ? (100 * (after.wall - before.wall)) / before.wall : null;
}

function sections(common, least) {
  const moved = (from, to) => common.filter(({ before, after }) => before.result === from && after.result === to);
  const same = [...moved("PASS", "PASS"), ...moved("FAIL", "FAIL")];
  const changedOnes = same
    .map((pair) => ({ ...pair, told: differences(pair, least) }))
    .filter((pair) => pair.told.length)
    .sort((a, b) => Math.abs(timeChange(b) ?? 0) - Math.abs(timeChange(a) ?? 0));
  return {
    newly: moved("PASS", "FAIL"),
    fixed: moved("FAIL", "PASS"),
    changed: changedOnes,
    errors: common.filter(({ before, after }) => before.result === "ERROR" || after.result === "ERROR"),
    unchanged: same.length - changedOnes.length,
  };
}

// --- showing ------------------------------------------------------------------------------------

function show() {
  const from = data.stacks.find((stack) => stack.key === byId("from").value);
  const to = data.stacks.find((stack) => stack.key === byId("to").value);
  const { common, single } = pairs(from.key, to.key);
  const found = sections(common, Number(byId("least").value));
  byId("count").textContent = from === to
    ? "This is one stack twice: choose another one."
    : `${count(common.length, "model")} ran on both (${count(single, "model")} on one only): ` +
      `${found.newly.length} newly failing, ${found.fixed.length} fixed, ` +
      `${found.changed.length} with changed figures, ${found.unchanged} unchanged, ` +
      `${found.errors.length} undecided.`;
  showScope(from, to);
  byId("sections").replaceChildren(
    ...(from === to || common.length === 0
      ? [h("p", { class: "nothing" }, "No common rows to show.")]
      : [
          section("Newly failing", "PASS before, FAIL now", found.newly, from, to),
          section("Fixed", "FAIL before, PASS now", found.fixed, from, to),
          section("Changed figures", "the same result, but other cores, another failure or another time; time is the whole run, compilation included", found.changed, from, to),
          section("Undecided", "ERROR on one side: infrastructure, says nothing of the model", found.errors, from, to),
          overview(common, from, to),
        ]),
  );
}

function showScope(from, to) {
  const off = [from, to].filter((stack) => stack.target !== "neuron");
  byId("scope").hidden = off.length === 0;
  byId("scope").textContent = "A stack that was run on a CPU says nothing of Trainium.";
}

function overview(common, from, to) {
  const tally = (name) => {
    const counts = Object.fromEntries(RESULTS.map((result) => [result, 0]));
    for (const pair of common) counts[pair[name].result] += 1;
    return counts;
  };
  const bars = [
    { label: `from ${from.label}`, parts: tally("before") },
    { label: `to ${to.label}`, parts: tally("after") },
  ];
  return stackedBars({ title: "Results on common models", names: RESULTS, share: true, bars });
}

function section(title, says, found, from, to) {
  const id = title.toLowerCase().replace(" ", "-");
  const heading = h("h2", { id }, `${title} (${found.length.toLocaleString("en")})`);
  const parts = [heading, h("p", { class: "hint" }, says)];
  if (found.length === 0) return h("section", {}, heading, h("p", {}, "None."));
  const body = h("tbody", { role: "rowgroup" });
  const more = h("button", { type: "button" });
  const grow = () => {
    const done = body.childElementCount;
    body.append(...found.slice(done, done + STEP).map(rowOf));
    const left = found.length - body.childElementCount;
    more.textContent = `Show ${Math.min(STEP, left)} more of ${left}`;
    more.hidden = left === 0;
  };
  more.addEventListener("click", grow);
  grow();
  const head = (name) => h("th", { role: "columnheader", scope: "col" }, name);
  parts.push(
    h(
      "table",
      { class: "models pairs", role: "table", "aria-labelledby": id },
      h(
        "thead",
        { role: "rowgroup" },
        h("tr", { role: "row" }, ["Model", "Before", "Now", "Change"].map(head)),
      ),
      body,
    ),
    more,
  );
  return h("section", { "data-from": from.key, "data-to": to.key }, parts);
}

function rowOf(pair) {
  const { model, before, after } = pair;
  const told = pair.told ?? differences(pair, Infinity);
  return h(
    "tr",
    { role: "row" },
    h("th", { role: "rowheader", scope: "row", class: "c-model" }, h("a", { href: modelPage(model) }, model.id)),
    side("Before", before, model),
    side("Now", after, model),
    h("td", { role: "cell", "data-label": "Change", class: told.length ? "c-change" : "empty" }, told.length ? told.map((one) => h("span", {}, one)) : "-"),
  );
}

function side(label, row, model) {
  const facts = [coresOf(row), duration(row.wall)].filter(Boolean).join("; ");
  return h(
    "td",
    { role: "cell", "data-label": label, class: "c-result" },
    readingMark(row.result),
    staleMark(row, data),
    row.failure ? failureName(row) : null,
    h("span", { class: "hint" }, facts ? `${facts}; ` : "", age(row, data), " ", runLink(row, model)),
  );
}

// Last, when all above is defined.
try {
  data = await load();
  // The index holds times as they are shown, to the minute; what moved is told from exact ones.
  const figure = await loadFigures();
  for (const model of data.models) for (const row of model.rows) row.wall = figure("wall", row);
  if (data.stacks.length < 2) {
    throw Object.assign(new Error("There are results of fewer than two stacks: nothing to compare"), {
      remedy: "Come back when a second one was run.",
    });
  }
  start();
} catch (error) {
  showError(byId("status"), error);
  if (!error.remedy) throw error;
}
