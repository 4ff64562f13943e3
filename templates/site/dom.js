/** Elements, and the small pieces that all pages show alike. Text is always text, never markup. */

import { ageDays, isStale } from "./data.js";

/** An element with attributes (true = present, false or null = absent) and children. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export const readingMark = (name) => h("span", { class: "reading", "data-reading": name }, name);

export const staleMark = (row, data) =>
  row && isStale(row, data)
    ? h(
        "span",
        {
          class: "stale",
          title: row.moved ? "of a revision that has moved" : `older than ${data.maxAgeDays} days`,
        },
        "stale",
      )
    : null;

/** A name that may break behind its slash and underscores, and nowhere else if that is enough. */
export const breakable = (name) =>
  name.split(/(?<=[/_])/).flatMap((part, i) => (i ? [h("wbr"), part] : [part]));

export const failureName = (row) => h("span", { class: "failure" }, breakable(row.failure));

/** "34 s", "5 min", "2.5 h"; null when unknown. */
export function duration(seconds) {
  if (seconds === null) return null;
  if (seconds < 100) return `${seconds} s`;
  if (seconds < 100 * 60) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export const count = (number, one, many = `${one}s`) =>
  `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

/** "4, tensor"; what was refused had no cores. */
export function placement(row) {
  if (row.split === "refused") return "refused";
  if (row.cores === null) return null;
  return row.split === "none" ? String(row.cores) : `${row.cores}, ${row.split}`;
}

/** When a row was made, as its age, with the day itself as its title; `unit` "d" is the short form. */
export function age(row, data, unit = "") {
  const days = ageDays(row, data);
  const day = new Date(row.timeMs).toISOString().slice(0, 10);
  const words = unit ? `${days} ${unit}` : days === 0 ? "today" : days === 1 ? "1 day ago" : `${days} days ago`;
  return h("time", { datetime: day, title: day }, words);
}

/** A link to the workflow run that made a row; null when the row names none. */
export function runLink(row, model, text = "run") {
  if (!row.run) return null;
  const link = h("a", { href: row.run, rel: "noreferrer", class: "run" }, text);
  link.setAttribute("aria-label", `${link.textContent}: run of ${model.id} on ${row.stack.label}`);
  return link;
}

/** The message of an error, with what to do, in place of what cannot be shown. */
export function showError(place, error) {
  place.className = "problem";
  place.setAttribute("role", "alert");
  place.replaceChildren(
    h("strong", {}, "The results cannot be shown. "),
    `${error.message}. ${error.remedy ?? "Reload the page; if that does not help, tell the site's owner."} `,
    "Meanwhile: the ",
    h("a", { href: "models.html" }, "plain list"),
    " and the ",
    h("a", { href: "results/files.json" }, "Parquet files"),
    ".",
  );
}
