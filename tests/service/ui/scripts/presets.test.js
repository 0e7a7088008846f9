// The standings of presets.

import assert from "node:assert/strict";
import { test } from "node:test";
import { countsOf } from "../../../../service/ui/static/presets.js";

const of = (status, verdict = null) => ({ status, verdict: verdict && { verdict } });

test("the counts name agreement, difference and what is not run first; other states if there are any", () => {
  assert.equal(countsOf([]), "0 agree · 0 differ · 0 not run");
  const some = [of("succeeded", "agrees"), of("not run"), of("succeeded", "differs"), of("succeeded", "agrees"), of("running")];
  assert.equal(countsOf(some), "2 agree · 1 differ · 1 not run · 1 running");
  assert.equal(countsOf([of("succeeded", "cannot tell"), of("incomplete")]), "0 agree · 0 differ · 0 not run · 1 cannot tell · 1 incomplete");
});
