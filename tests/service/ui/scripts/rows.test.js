// The table of rows, from rows.csv.

import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.addEventListener ??= () => {}; // live.js listens to the browser's window
const { byUnusualness, hasRows, recordsOf } = await import("../../../../service/ui/static/rows.js");

test("a CSV file has quoted cells with commas, quotes and line ends", () => {
  assert.deepEqual(recordsOf('a,b\n"x, ""y""",\n"1\n2",3'), [["a", "b"], ['x, "y"', ""], ["1\n2", "3"]]);
  assert.deepEqual(recordsOf("a,b\r\n,2\r\n"), [["a", "b"], ["", "2"]]);
});

const FILE = [
  "row,id,batch,seed,values,log_likelihood,p_value,unusual_columns",
  "0,s0,x,4,3,-4.5,0.3,",
  '1,"s,1",x,4,3,-30.25,0,b +4.2; c -3.1; a +0.1',
  "2,s2,y,4,2,-40.5,0.0,a +9; b -1",
  "3,s3,y,4,3,-9,1e-05,c +5",
  "",
].join("\n");

test("the least usual rows come first, with their ids", () => {
  const { ids, records } = byUnusualness(FILE);
  assert.deepEqual(ids, ["id", "batch"]);
  assert.deepEqual(records.map(([row]) => row), ["2", "1", "3", "0"]);
  assert.equal(records[1][1], "s,1");
  assert.equal(records[1].at(-1), "b +4.2; c -3.1; a +0.1");
});

test("a file of an earlier version has neither ids nor columns", () => {
  const { ids, names, records } = byUnusualness("row,seed,values,log_likelihood,p_value\n0,4,3,-4.5,0.3\n");
  assert.deepEqual(ids, []);
  assert.equal(records[0].length, names.length);
});

test("only runs that scored an upload with the model of another have rows", () => {
  const spec = { model: { family: "ppca", init: "experiment" }, data: { source: "upload" }, train: null };
  assert.equal(hasRows({ status: "succeeded", spec }), true);
  assert.equal(hasRows({ status: "running", spec }), false);
  assert.equal(hasRows({ status: "succeeded", spec: { ...spec, train: {} } }), false);
  assert.equal(hasRows({ status: "succeeded", spec: { ...spec, data: { source: "digits" } } }), false);
  assert.equal(hasRows({ status: "succeeded", spec: { ...spec, model: { family: "vae", init: "experiment" } } }), false);
});
