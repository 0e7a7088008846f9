// The standings of presets.

import assert from "node:assert/strict";
import { test } from "node:test";
import { countsOf, stateOf } from "../../../../service/ui/static/presets.js";

const ended = { terminal: true };
const open = { terminal: false };
const of = (runs, verdict = null) => ({ runs, verdict: verdict && { verdict } });

test("a preset is not run, running, incomplete, or has a verdict", () => {
  const states = [[of([null, null]), "not run"], [of([null, open]), "running"], [of([ended, null]), "incomplete"], [of([ended], "differs"), "differs"]];
  states.forEach(([standing, state]) => assert.equal(stateOf(standing), state));
});

test("the counts name agreement, difference and what is not run first; other states if there are any", () => {
  assert.equal(countsOf([]), "0 agree · 0 differ · 0 not run");
  const some = [of([ended], "agrees"), of([null]), of([ended], "differs"), of([ended], "agrees"), of([open])];
  assert.equal(countsOf(some), "2 agree · 1 differ · 1 not run · 1 running");
  assert.equal(countsOf([of([ended], "cannot tell"), of([ended, null])]), "0 agree · 0 differ · 0 not run · 1 cannot tell · 1 incomplete");
});
