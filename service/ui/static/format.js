// From values to what is read.

export const DASH = "–";

/** A number to so many digits, without zeros that say nothing, and with a real minus. */
export function number(value, digits = 4) {
  if (value === null || value === undefined) return DASH;
  const rounded = Number(value.toPrecision(digits));
  const size = Math.abs(value);
  const isOdd = size !== 0 && (size >= 1e6 || size < 1e-4);
  const text = isOdd ? rounded.toExponential() : Number.isInteger(value) ? value : rounded;
  return asPower(String(text).replaceAll("-", "−"));
}

/** "2e+6" with a power of ten in place of the exponent: "2 × 10⁶". */
function asPower(text) {
  const [digits, exponent] = text.split(/e\+?/);
  if (exponent === undefined) return digits;
  const raised = `10${[...exponent].map((sign) => RAISED[sign]).join("")}`;
  return digits === "1" ? raised : `${digits} × ${raised}`;
}

const RAISED = { 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹", "−": "⁻" };

/** A number at an axis: on a log axis 1000 is 10³. */
export function tick(value, isLog = false) {
  const power = Math.round(Math.log10(Math.abs(value)));
  const isPower = isLog && Math.abs(power) > 2 && value === Number(`1e${power}`);
  return isPower ? asPower(`1e${power}`.replace("-", "−")) : number(value, 6);
}

/** A value without an error: three decimals, or three digits below 1. */
function exact(value) {
  const size = Math.abs(value);
  if (Number.isInteger(value) || size >= 1e6) return number(value, 6);
  return size < 1 ? number(value, 3) : value.toFixed(3).replace("-", "−");
}

const NO_ERROR = 1e-10; // of a value: below it an error is one of rounding

/** A value and its standard error, with as many decimals as the error deserves. */
export function withError(value, error) {
  if (value === null || value === undefined) return DASH;
  if (!error || error < NO_ERROR * Math.abs(value)) return exact(value);
  const decimals = Math.min(8, Math.max(0, 1 - Math.floor(Math.log10(error))));
  const rounded = value.toFixed(decimals);
  return `${Number(rounded) === 0 ? rounded.replace("-", "") : rounded} ± ${error.toFixed(decimals)}`.replaceAll("-", "−"); // no "−0.00"
}

/** How far a value is from another, with its sign; without an error of its own with as many decimals as the value's text. */
export function differenceText({ value, std_err: error }, of) {
  const [, decimals = ""] = of.split(" ")[0].split(".");
  return (value > 0 ? "+" : "") + (error ? withError(value, error) : value.toFixed(decimals.length).replace("-", "−"));
}

/** What was measured, with a decimal more than what was published; beside a published 0 two digits. */
export function beside({ published, measured }) {
  if (measured === null || !Number.isFinite(measured) || Math.abs(measured) < 1e-3) return number(measured, published ? 5 : 2);
  if (!published) return number(measured, 2);
  const decimals = (String(published).split(".")[1] ?? "").length;
  return measured.toFixed(Math.min(8, decimals + 1)).replace("-", "−");
}

const UNITS = [
  ["d", 86_400],
  ["h", 3600],
  ["min", 60],
  ["s", 1],
];

export function duration(seconds) {
  if (seconds < 1) return "less than 1 s";
  const smaller = (i) => UNITS[i + 1] ?? UNITS[i];
  const rounded = (i) => Math.round(seconds / smaller(i)[1]) * smaller(i)[1];
  const at = UNITS.findIndex(([, size], i) => rounded(i) >= size); // 59.7 s is a minute
  const [unit, size] = UNITS[at];
  const [nextUnit, nextSize] = smaller(at);
  const rest = (rounded(at) % size) / nextSize;
  return `${Math.floor(rounded(at) / size)} ${unit}${rest ? ` ${rest} ${nextUnit}` : ""}`;
}

/** A time to expect, with its spread. */
export function expected({ median_s: median, low_s: low, high_s: high }) {
  const [middle, least, most] = [median, low, high].map(duration);
  return middle === most ? middle : `${middle} (${least} to ${most})`;
}

export function ago(moment) {
  const seconds = (Date.now() - Date.parse(moment)) / 1000;
  if (seconds < 5) return "just now";
  const [unit, size] = UNITS.find(([, one]) => seconds >= one);
  return `${Math.floor(seconds / size)} ${unit} ago`;
}

/** A moment to the minute, or with `timeStyle` "medium" to the second. */
export const dateTime = (moment, timeStyle = "short") => (moment ? new Date(moment).toLocaleString(undefined, { dateStyle: "medium", timeStyle }) : DASH);

export function bytes(count) {
  if (count === null || count === undefined) return DASH;
  const units = ["B", "kB", "MB", "GB", "TB"];
  const at = count < 1 ? 0 : Math.min(4, Math.floor(Math.log10(count) / 3));
  return `${number(count / 1000 ** at, 3)} ${units[at]}`;
}

/** The title of an experiment or sweep, as the service gives it. */
export const titleOf = ({ title }) => title;

const SWEEP_CHARACTERS = 24; // of a sweep's name in the title of a point

/** The title of a sweep's point below its sweep: without the name of the sweep. */
export function pointTitle({ title }, { name }) {
  const start = `${cut(name ?? "sweep", SWEEP_CHARACTERS)}: `;
  return title.startsWith(start) ? title.slice(start.length).replace(/^latent_dim (\d+)/, "K = $1") : title;
}

/** The titles of several; those that are the same get the ends of their ids. */
export function distinctTitles(experiments) {
  const count = (title) => experiments.filter((one) => titleOf(one) === title).length;
  return experiments.map((one) => (count(titleOf(one)) > 1 ? `${titleOf(one)} · ${one.id.slice(-6)}` : titleOf(one)));
}

/** Labels as text: "seed 4, model baseline". */
export const labelText = (labels) =>
  Object.entries(labels)
    .map(([name, value]) => `${name} ${value}`)
    .join(", ");

/** Seconds that a run has yet to go, as the service expects; null where that is not known. */
export function secondsLeft({ progress }) {
  if (!progress?.estimated_end) return null;
  return Math.max(0, (Date.parse(progress.estimated_end) - Date.now()) / 1000);
}

/** Each leaf of a spec by its dotted path; a list is a leaf. */
export function leaves(value, path = "") {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [[path, value]];
  return Object.entries(value).flatMap(([name, part]) => leaves(part, path ? `${path}.${name}` : name));
}

export const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** The first characters of a text, with "…" where more follow. */
export function cut(text, count) {
  const characters = [...text];
  return characters.length > count ? `${characters.slice(0, count).join("")}…` : text;
}

/** What else was noted of a state, as "attempt 1, worker node1", or "attempt 1: gave way to bob's run". */
export function detailsOf({ status, terminal, reason, message, failure, ...details }) {
  const told = Object.entries(details).filter(([, value]) => value !== null);
  const facts = told.map(([name, value]) => `${name} ${value}`).join(", ");
  return [facts, message ?? failure?.message ?? reason].filter(Boolean).join(": ");
}
