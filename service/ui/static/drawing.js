// A chart as an SVG file, as it is seen: the same section, scales and colours, without hidden curves.

const SVG = "http://www.w3.org/2000/svg";
const LINE_PX = 18;
const SWATCH_PX = 16;
export const THUMB = { width: 120, height: 32 };

function element(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  made.append(...children);
  return made;
}

const text = (x, y, words, more = {}) => element("text", { x, y, ...more }, words);
const middle = { "text-anchor": "middle" };

/**
 * The text of the file. `curves` are `{label, colour, dash, faint?, x, value, ends}`, where `ends` are the two
 * of the band or null, and faint ones have no line in the legend; `token` gives a colour of the design by its name.
 */
export function svgOf(plot, { title, xLabel, yLabel, curves, token }) {
  const [left, top, width, height] = ["left", "top", "width", "height"].map((side) => plot.bbox[side] / devicePixelRatio);
  const at = { x: (value) => left + plot.valToPos(value, "x"), y: (value) => top + plot.valToPos(value, "y") };
  const foot = top + height + 52;
  const named = curves.filter(({ faint }) => !faint);
  const size = { width: plot.width, height: foot + named.length * LINE_PX };
  const grid = { stroke: token("--line") };
  return new XMLSerializer().serializeToString(element(
    "svg",
    { ...size, viewBox: `0 0 ${size.width} ${size.height}`, "font-family": "sans-serif", "font-size": 12, fill: token("--muted") },
    element("title", {}, title),
    element("rect", { ...size, fill: token("--surface") }),
    element("clipPath", { id: "inside" }, element("rect", { x: left, y: top, width, height })),
    ...ticksOf(plot.axes[0]).flatMap(([value, words]) => [
      element("path", { ...grid, d: `M${at.x(value)} ${top}v${height}` }),
      text(at.x(value), top + height + 16, words, middle),
    ]),
    ...ticksOf(plot.axes[1]).flatMap(([value, words]) => [
      element("path", { ...grid, d: `M${left} ${at.y(value)}h${width}` }),
      text(left - 6, at.y(value) + 4, words, { "text-anchor": "end" }),
    ]),
    text(left + width / 2, top + height + 34, xLabel, middle),
    text(0, 0, yLabel, { ...middle, transform: `translate(12 ${top + height / 2}) rotate(-90)` }),
    element("g", { "clip-path": "url(#inside)", fill: "none", "stroke-width": 1.5, "stroke-linecap": "round" }, ...curves.flatMap((one) => drawn(one, at))),
    ...named.flatMap(({ label, colour, dash }, place) => [
      element("path", { d: `M${left} ${foot + place * LINE_PX}h${SWATCH_PX}`, stroke: colour, "stroke-width": 2, "stroke-dasharray": dash.join(" ") }),
      text(left + SWATCH_PX + 8, foot + place * LINE_PX + 4, label),
    ]),
  ));
}

/** Where uPlot has put its ticks, and what it has written there. */
const ticksOf = ({ _splits: splits, _values: words }) =>
  splits.map((value, i) => [value, words[i]]).filter(([, word]) => word !== "" && word !== null);

function drawn({ colour, dash, dots, faint, x, value, ends }, at) {
  const faintly = faint ? { "stroke-opacity": 0.28, "stroke-width": 1 } : {};
  const look = dots ? { "stroke-width": 5 } : { "stroke-dasharray": dash.join(" "), ...faintly };
  const line = element("path", { d: pathOf(x, value, at, dots), stroke: colour, ...look });
  if (ends === null) return [line];
  return [...bandsOf(x, ends, at).map((d) => element("path", { d, fill: colour, "fill-opacity": 0.18 })), line];
}

const point = (x, y, at) => `${at.x(x).toFixed(2)} ${at.y(y).toFixed(2)}`;

/** A missing value is a gap; a point between two gaps is a dot, as all are where `dots` are wanted. */
export function pathOf(x, value, at, dots = false) {
  let isGap = true;
  return x.map((one, i) => {
    const wasGap = isGap;
    isGap = value[i] === null;
    if (isGap) return "";
    return wasGap || dots ? `M${point(one, value[i], at)}h0` : `L${point(one, value[i], at)}`;
  }).join("");
}

/** The paths of a small picture: curves that are not faint, and levels. */
export function thumbnailOf(series, lines) {
  const shown = series.filter(({ faint, x }) => !faint && x.length > 0);
  const known = shown.flatMap(({ value }) => value.filter((one) => one !== null));
  const scale = (values, from, to) => {
    const [least, most] = values.reduce(([low, high], one) => [Math.min(low, one), Math.max(high, one)], [Infinity, -Infinity]);
    return (value) => (most > least ? from + ((value - least) / (most - least)) * (to - from) : (from + to) / 2);
  };
  const at = {
    x: scale(shown.flatMap(({ x }) => x), 2, THUMB.width - 2),
    y: scale([...known, ...lines.map(({ y }) => y)], THUMB.height - 2, 2),
  };
  return {
    paths: shown.map(({ x, value, colour }) => ({ d: pathOf(x, value, at), colour })),
    levels: lines.map(({ y }) => `M0 ${at.y(y).toFixed(2)}H${THUMB.width}`),
  };
}

/** An outline for each stretch between gaps. */
export function bandsOf(x, [upper, lower], at) {
  const stretches = [[]];
  x.forEach((_, i) => (upper[i] === null ? stretches.push([]) : stretches[stretches.length - 1].push(i)));
  return stretches.filter((one) => one.length > 1).map((places) => {
    const edge = (values, order) => order.map((i) => point(x[i], values[i], at)).join("L");
    return `M${edge(upper, places)}L${edge(lower, [...places].reverse())}Z`;
  });
}

/** Have the browser save a text as a file. */
export function save(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}
