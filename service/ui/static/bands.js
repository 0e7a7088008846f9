// Error bands in a chart of uPlot: of each curve two columns more, the ends of its band.

/** The two ends of the band of a series. */
export function endsOf({ value, std_err: errors }) {
  const end = (sign) => value.map((v, i) => (v === null || errors[i] === null ? null : v + sign * 2 * errors[i]));
  return [end(1), end(-1)];
}

const UNDRAWN = { width: 0, points: { show: false }, class: "u-hidden" };

/** The series of both ends, to stand before their curve's: the first draws the band, if it is drawn. */
export const bandSeries = (colour, isDrawn) => [
  { ...UNDRAWN, fill: `${colour}2e`, paths: isDrawn ? bandOf : () => null },
  { ...UNDRAWN, paths: () => null },
];

/**
 * What is filled, a piece for each stretch between gaps; of points that share a pixel the outermost
 * ends. (uPlot's own bands clip one curve's area by the other, which takes a browser without a GPU
 * many times as long.)
 */
function bandOf(plot, upperAt, first, last) {
  const [xs, upper, lower] = [plot.data[0], plot.data[upperAt], plot.data[upperAt + 1]];
  const fill = new Path2D();
  let edge = [];
  function close() {
    edge.forEach(([x, high], i) => (i ? fill.lineTo(x, high) : fill.moveTo(x, high)));
    edge.reverse().forEach(([x, , low]) => fill.lineTo(x, low));
    edge = [];
  }
  for (let i = first; i <= last; i++) {
    if (upper[i] === null) close();
    if ((upper[i] ?? null) === null) continue;
    const x = Math.round(plot.valToPos(xs[i], "x", true));
    const [high, low] = [plot.valToPos(upper[i], "y", true), plot.valToPos(lower[i], "y", true)];
    const same = edge[edge.length - 1];
    if (same?.[0] === x) [same[1], same[2]] = [Math.min(same[1], high), Math.max(same[2], low)];
    else edge.push([x, high, low]);
  }
  close();
  return { fill, stroke: null, clip: null, flags: 0 };
}
