// Tables of scores of texts, and the tokens of a text.

import assert from "node:assert/strict";
import { test } from "node:test";
import { cut } from "../../../../service/ui/static/format.js";
import { labelOf, piecesOf, stepOf } from "../../../../service/ui/static/tokens.js";

globalThis.addEventListener ??= () => {}; // live.js listens to the browser's window
const { columnsOf, directionOf, factsOf, withPerToken } = await import("../../../../service/ui/static/texts.js");

const token = (text, start, end, pll = -1) => ({ text, start, end, pll });
const textsOf = (text, tokens) => piecesOf(text, tokens).map((piece) => (piece.token ? [piece.text] : piece.text));

test("the colour scale has a step for each bound and one below", () => {
  assert.deepEqual([0, -0.5, -0.51, -1, -2, -4, -8, -8.1, -99].map(stepOf), [0, 0, 1, 1, 2, 3, 4, 5, 5]);
  assert.deepEqual([null, undefined].map(stepOf), [null, null]);
});

test("characters between tokens are kept", () => {
  assert.deepEqual(textsOf("(a  b)", [token("a", 1, 2), token("b", 4, 5)]), ["(", ["a"], "  ", ["b"], ")"]);
  assert.deepEqual(textsOf("ab", [token("a", 0, 1), token("b", 1, 2)]), [["a"], ["b"]]);
  assert.deepEqual(textsOf("a", []), ["a"]);
});

test("places of tokens count characters, not units of UTF-16", () => {
  assert.deepEqual(textsOf("😀 ab c", [token("ab", 2, 4), token("c", 5, 6)]), ["😀 ", ["ab"], " ", ["c"]]);
});

test("tokens of one character, of blanks, and cut ones are all shown", () => {
  assert.deepEqual(textsOf("😀b", [token("😀", 0, 1), token("😀", 0, 1), token("b", 1, 2)]), [["😀"], ["😀"], ["b"]]);
  assert.deepEqual(textsOf("a \nb", [token("a", 0, 1), token(" ", 1, 2), token("", 2, 2)]), [["a"], ["␣"], ["␣"], "\nb"]);
  assert.deepEqual(textsOf("😀😀", [token("😀", 0, 2)]), [["😀…"]]);
  assert.deepEqual(textsOf("ab", [token("far", 9, 12)]), ["ab", ["far"]]); // behind the cut of the text
});

test("a token is named with its score", () => {
  assert.equal(labelOf({ text: " cat", token: token(" cat", 0, 4, -1.23456) }, "pll"), "cat: −1.235 nats");
  assert.equal(labelOf({ text: "cat", token: token("cat", 0, 3, 0) }, "pll"), "cat: 0 nats");
  assert.equal(labelOf({ text: "cat", token: token("cat", 0, 3, null) }, "pll"), "cat: no score");
});

test("columns are the scores, and what the spec adds", () => {
  assert.deepEqual(columnsOf({ scores: ["pll"] }), { hasGroups: false, numbers: ["pll", "pll_per_token", "tokens"] });
  const none = { group_size: null, group_column: null, label_column: null };
  assert.deepEqual(columnsOf({ scores: ["pll", "cumulative"], ...none, group_size: 2 }), { hasGroups: true, numbers: ["pll", "cumulative", "pll_per_token", "difference", "tokens"] });
  assert.deepEqual(columnsOf({ scores: ["pll"], ...none, group_column: "pair", label_column: "ok" }).numbers, ["pll", "pll_per_token", "difference", "label", "tokens"]);
});

test("a score per token is of all tokens of a text, so changes of a sequence have none", () => {
  assert.equal(withPerToken({ pll: -6, tokens: 3 }, ["pll", "pll_per_token"]).pll_per_token, -2);
  assert.equal(withPerToken({ pll: null, tokens: null }, ["pll_per_token"]).pll_per_token, null);
  assert.deepEqual(columnsOf({ scores: ["masked_marginal"], wild_type: "MK" }).numbers, ["masked_marginal", "tokens"]);
});

test("unknown tokens have a column where the table counts them", () => {
  assert.deepEqual(columnsOf({ scores: ["pll"] }, ["row", "text", "unknown", "pll"]).numbers, ["pll", "pll_per_token", "tokens", "unknown"]);
});

test("an open row has the other columns", () => {
  const row = { row: 3, text: "a", group: "g", words: 1, pll: -1, pll_std_err: 0.1, pll_masks: 123456.7, decided: false, rank: null };
  assert.deepEqual(factsOf(row, ["pll"]), [["words", "1"], ["pll_masks", "123457"], ["decided", "false"]]);
});

test("the direction of a column is in the order", () => {
  assert.deepEqual(["pll", "-pll", "-row", "lpll"].map((order) => directionOf(order, "pll")), ["asc", "desc", null, null]);
});

test("a long text is cut between characters", () => {
  assert.deepEqual([cut("abc", 3), cut("abcd", 3), cut("😀😀", 1), cut("😀", 1)], ["abc", "abc…", "😀…", "😀"]);
});
