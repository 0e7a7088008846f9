// Reading curves: the whole once, then only what came since.

import { get, oneAtATime, post, withQuery } from "./api.js";
import { distinctTitles, labelText } from "./format.js";
import { isInterim, isSame, meanOf, withoutSeed } from "./means.js";

const MAX_POINTS = 20_000;

const TIME = "epoch"; // or "step", for a training in steps
const ABOUT = {
  score: ["Score by mask size", "mask size m", "score S(m), nats"],
  score_by_rate: ["Score by masking rate", "masking rate", "score, nats per token"],
  score_by_rate_interim: ["Score by masking rate on the way, not final", "masks", "score, nats per token"],
  score_difference: ["Difference of scores", "mask size m", "difference, nats"],
  convergence: ["Cumulative score less LML", "masks of each size P", "cumulative score − LML, nats"],
  loss: ["Loss in training", TIME, "loss, nats"],
  loss_heldout: ["Loss, held out, in training", TIME, "loss, held out, nats"],
  mpt: ["MPT in training", TIME, "MPT, nats"],
  elbo: ["ELBO in training", TIME, "ELBO, nats"],
  lml: ["LML in training", TIME, "LML, nats"],
  lml_heldout: ["LML, held out, in training", TIME, "LML, held out, nats"],
  lml_fitting: ["LML while factor analysis is fitted", "EM iteration", "LML, nats"],
  bias: ["Bias of a fixed mask size", "mask size m0", "D · S(m0) − LML, nats"],
};
const INTERIM = "_interim";
const LML_BELONGS_TO = new Set(["mpt", "elbo", "lml"]);

const DIFFERENCE_BY_RATE = ["Difference of scores", "masking rate", "difference, nats per token"];

/** Title, x label and y label of a chart. The loss of a training in steps, of a language model, is that of a token. */
export function aboutSeries(name, isByRate = false, isBySteps = false) {
  if (name === "score_difference" && isByRate) return DIFFERENCE_BY_RATE;
  const [title, x, y] = ABOUT[name] ?? [name, "", name];
  return isBySteps && x === TIME ? [title, "step", `${y} per token`] : [title, x, y];
}

const isBySteps = (spec) => Boolean(spec?.train?.steps);

/** Whether x is a masking rate, at most 1; mask sizes are whole numbers from 1 on. */
export const isByRate = ({ x }) => x.some((one) => one < 1);

/**
 * A function that gives an experiment's curves as of now: it asks for the whole at its first call,
 * unless the `first` answer is given.
 */
export function curvesOf(id, first = null) {
  let known = first && begun(first);
  return oneAtATime(async () => {
    const isWhole = known === null || known.points > 2 * MAX_POINTS;
    const after = isWhole ? null : known.lastSeq;
    const path = withQuery(`/v1/experiments/${id}/curves`, { max_points: MAX_POINTS, after });
    const answer = await get(path);
    known = isWhole ? begun(answer) : grown(known, answer);
    return known;
  });
}

const keyOf = (one) => `${one.name} ${JSON.stringify(one.labels)}`;

function begun(answer) {
  return state(answer, answer.series);
}

/** Another object for each series that grew, so that charts see it. */
function grown(known, answer) {
  const added = new Map(answer.series.map((one) => [keyOf(one), one]));
  const series = known.series.map((one) => {
    const more = added.get(keyOf(one));
    added.delete(keyOf(one));
    return more?.x.length ? joined(one, more) : one;
  });
  return state(answer, [...series, ...added.values()]);
}

function joined(one, more) {
  const columns = ["x", "value", "std_err"].map((name) => [name, [...one[name], ...more[name]]]);
  return { ...one, sampled: one.sampled || more.sampled, ...Object.fromEntries(columns) };
}

function state(answer, series) {
  const points = series.reduce((total, one) => total + one.x.length, 0);
  return { lastSeq: answer.last_seq, partial: answer.partial, series, points };
}

/**
 * The charts of one experiment: `[{key, about, name, series}]`, in the order of names and labels. Curves on the
 * way to a final one are left out when there will be no more points.
 */
export function chartsOf(series, isPartial = true, spec = null) {
  const shown = lasting(series, isPartial, spec);
  const lookOf = looksOf(shown);
  return charts(shown.map((one) => ({ from: one, spec, shown: { ...drawn(one), ...lookOf(one) } }))).map(withArea);
}

/** A colour for each choice of labels but the seed, and a dash for each seed; where seeds alone differ, a colour for each. */
function looksOf(series) {
  const keysOf = (keyOf) => [...new Set(sortBy(series, (one) => (isInterim(one) ? 1 : 0)).map(keyOf))];
  const choiceOf = ({ labels }) => labelText(withoutSeed(labels));
  const seedOf = ({ labels }) => labels.seed;
  const [choices, seeds] = [keysOf(choiceOf), keysOf(seedOf).filter((seed) => seed !== undefined)];
  const seedAt = (one) => Math.max(0, seeds.indexOf(seedOf(one)));
  return (one) => (choices.length > 1 ? { colour: choices.indexOf(choiceOf(one)), dash: seedAt(one) } : { colour: seedAt(one) });
}

/**
 * The series that are drawn. If there will be no more points, those that a later estimate has replaced are left
 * out: those on the way to a final one, and those of `train.curve_at` at the end of the training.
 */
function lasting(series, isPartial, spec) {
  const names = new Set(series.filter((one) => !isInterim(one)).map(({ name }) => name));
  const { epochs, steps } = spec?.train ?? {};
  const isReplaced = ({ name, labels }) =>
    names.has(name.endsWith(INTERIM) ? name.slice(0, -INTERIM.length) : null) ||
    (names.has(name) && isInterim({ labels }) && (labels.epoch ?? labels.step) === (epochs ?? steps));
  return series.filter((one) => isPartial || !isReplaced(one));
}

/** Series of numbers that are read by a table and make no curve. */
const NOT_DRAWN = new Set(["lml_heldout_parts"]);

const HAS_AREA = new Set(["score", "score_by_rate"]);

/** The area under a curve of scores estimates the LML. It is shaded below the first curve alone. */
function withArea(chart) {
  if (!HAS_AREA.has(chart.name)) return chart;
  return { ...chart, series: chart.series.map((one, i) => (i === 0 ? { ...one, area: true } : one)) };
}

/**
 * The charts of several experiments: a chart for each name of a series. `colours` has a number for each
 * experiment. Where seeds have the same x, their mean is drawn, and the seeds are faint.
 */
export function chartsOfMany(experiments, curves, colours = experiments.map((_, index) => index)) {
  const titles = distinctTitles(experiments);
  const found = curves.flatMap((item, index) => {
    const title = titles[index];
    const groups = groupsOf(lasting(item.series, item.partial, experiments[index].spec));
    const finalFirst = sortBy(groups, ([one]) => (isInterim(one) ? 1 : 0));
    return groups.flatMap((group) => {
      const dash = finalFirst.filter(([one]) => one.name === group[0].name).indexOf(group);
      const shown = (one, labels, more = {}) => ({
        from: one,
        spec: experiments[index].spec,
        shown: { ...drawn(one), colour: colours[index], dash, label: [title, labelText(labels)].filter(Boolean).join(", "), ...more },
      });
      if (group.length === 1) return [shown(group[0], group[0].labels)];
      const mean = meanCurve(group);
      return [...group.map((one) => shown(one, one.labels, { faint: true })), shown(mean, mean.labels)];
    });
  });
  return charts(found).map((chart) => ({ ...chart, series: sortBy(chart.series, (one) => (one.faint ? 0 : 1)) }));
}

const sortBy = (values, key) => [...values].sort((a, b) => key(a) - key(b));

/** The series that differ in their seed alone and have the same x, together. */
function groupsOf(series) {
  const groups = new Map();
  for (const one of series) {
    const key = keyOf({ name: one.name, labels: withoutSeed(one.labels) });
    groups.set(key, [...(groups.get(key) ?? []), one]);
  }
  return [...groups.values()].flatMap((group) => (group.every(({ x }) => isSame(x, group[0].x)) ? [group] : group.map((one) => [one])));
}

/** The mean over seeds at each x, with the error of a metric's mean. */
function meanCurve(group) {
  const [{ name, labels, x }] = group;
  const points = x.map((_, i) => meanOf(group.map((one) => ({ value: one.value[i], std_err: one.std_err[i] }))));
  return { name, labels: withoutSeed(labels), x, value: points.map((one) => one.value), std_err: points.map((one) => one.std_err) };
}

/** Series of one name share a chart, final ones first, but what is by mask size and what is by rate do not. */
function charts(found) {
  const groups = new Map();
  for (const { from, spec, shown } of found) {
    if (NOT_DRAWN.has(from.name)) continue;
    const about = aboutSeries(from.name, isByRate(from), isBySteps(spec));
    const key = `${from.name} ${about[1]}`;
    const chart = groups.get(key) ?? { key, about, name: from.name, series: [] };
    chart.series.push(shown);
    groups.set(key, chart);
  }
  return [...groups.values()].map((chart) => ({ ...chart, series: sortBy(chart.series, (one) => (one.isInterim ? 1 : 0)) }));
}

function drawn(one) {
  const { x, value, std_err } = ascending(one);
  return { label: labelText(one.labels) || one.name, x, value, std_err, ...(isInterim(one) ? { isInterim: true } : {}) };
}

/** The points of a series by x. Of several points at one x the last is drawn: it replaced the others. */
function ascending(one) {
  if (one.x.every((x, i) => i === 0 || one.x[i - 1] < x)) return one;
  const last = new Map(one.x.map((x, i) => [x, i]));
  const order = [...last.values()].sort((a, b) => one.x[a] - one.x[b]);
  const pick = (values) => order.map((i) => values[i]);
  return { x: pick(one.x), value: pick(one.value), std_err: pick(one.std_err) };
}

/** The levels that a curve is to reach, where known: each model's final LML, or 0 for what is told less it. */
export function levelsOf(name, summary, label = "LML") {
  if (name === "convergence" || name === "score_difference") return [{ label: "0", y: 0 }];
  if (!LML_BELONGS_TO.has(name)) return [];
  const means = summary.filter((one) => one.name === "lml" && one.value !== null && !isInterim(one));
  const shown = means.flatMap((mean) => (mean.all?.some(({ value }) => value !== mean.all[0].value) ? mean.all : [mean]));
  return shown.map(({ labels, value }) => ({ label: [label, labelText(labels)].filter(Boolean).join(", "), y: value }));
}

/** Several levels, each in the colour of the curves whose label it has: the LML of an objective in that of its curves. */
export function colouredAlike(levels, series) {
  if (levels.length < 2) return levels;
  return levels.map((level) => {
    const isOf = (label) => level.label.endsWith(`, ${label}`);
    const own = series.find(({ label }) => isOf(label)) ?? series.find(({ label }) => isOf(label.replace(/(^|, )seed .*$/, "")));
    return own ? { ...level, colour: own.colour } : level;
  });
}

/** The same of many experiments, in the order of their ids: the first call is one request. */
export function curvesOfMany(ids) {
  let readers = null;
  let shown = [];
  return async () => {
    if (readers === null) {
      const { items } = await post("/v1/curves:batchGet", { ids, max_points: 10 * MAX_POINTS });
      shown = items.map(begun);
      readers = items.map((item) => curvesOf(item.experiment_id, item));
    } else {
      shown = await Promise.all(shown.map((one, i) => (one.partial ? readers[i]() : one)));
    }
    return shown;
  };
}
