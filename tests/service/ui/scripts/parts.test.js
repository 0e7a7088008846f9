// The pieces that pages are made of.

import assert from "node:assert/strict";
import { test } from "node:test";
import { withCode } from "../../../../service/ui/static/parts.js";

test("what a refusal has between backticks is code, without the backticks", () => {
  const [before, code, after] = withCode("run `mpt list` first");
  assert.deepEqual([before, code.type, code.props.children, after], ["run ", "code", "mpt list", " first"]);
  assert.deepEqual(withCode("plain"), ["plain"]);
});
