// The standings of presets.

import assert from "node:assert/strict";
import { test } from "node:test";
import { byFigure, countsOf, isHere, quickOnes } from "../../../../service/ui/static/presets.js";

const of = (status, verdict = null) => ({ status, verdict: verdict && { verdict } });

test("the counts name agreement, difference and what is not run first; other states if there are any", () => {
  assert.equal(countsOf([]), "0 agree · 0 differ · 0 not run");
  const some = [of("succeeded", "agrees"), of("not run"), of("succeeded", "differs"), of("succeeded", "agrees"), of("running")];
  assert.equal(countsOf(some), "2 agree · 1 differ · 1 not run · 1 running");
  assert.equal(countsOf([of("succeeded", "cannot tell"), of("incomplete")]), "0 agree · 0 differ · 0 not run · 1 cannot tell · 1 incomplete");
});

const preset = (name, title, seconds = null, missing = {}) => ({ name, title, seconds, missing });

test("presets are together by figure, and what is not of the paper comes last", () => {
  const all = [preset("a", "A question"), preset("b", "Fig. 1, left: x"), preset("c", "Table 2: y"), preset("d", "Fig. 1, right: z")];
  assert.deepEqual(byFigure(all).map(([title, some]) => [title, some.map(({ name }) => name).join()]), [["Fig. 1", "b,d"], ["Table 2", "c"], ["Beyond the paper", "a"]]);
});

test("quick are those that take a minute at most, lack nothing and have not run", () => {
  const all = [preset("a", "", 2), preset("b", "", 2, { bert: "not here" }), preset("c", "", 600), preset("d", "", 2), preset("e", "")];
  const standings = Object.fromEntries(all.map(({ name }) => [name, { status: name === "d" ? "succeeded" : "not run" }]));
  assert.deepEqual(quickOnes(all, standings).map(({ name }) => name), ["a"]);
  assert.deepEqual(all.filter((one) => isHere(one, standings[one.name])).map(({ name }) => name), ["a", "c", "d", "e"]);
});
