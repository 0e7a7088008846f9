// The tokens of a text, coloured by their scores.

import { html, useRef, useState } from "./vendor/preact-htm.js";
import { DASH, number } from "./format.js";

const BOUNDS = [-0.5, -1, -2, -4, -8]; // lower bounds in nats; the last step has none
const BLANK = "␣";

/** The step of a score on the colour scale, from 0 for the most likely tokens; null without a score. */
export function stepOf(score) {
  if ((score ?? null) === null) return null;
  const step = BOUNDS.findIndex((bound) => score >= bound);
  return step < 0 ? BOUNDS.length : step;
}

/**
 * The parts of a text in order: `{text, token}`, with `token` null for characters between tokens. `start` and
 * `end` of a token count characters as Python does: an emoji is one, and in a string of JavaScript it is two.
 */
export function piecesOf(text, tokens) {
  const characters = [...text];
  const pieces = [];
  let end = 0;
  const addBetween = (until) => {
    const between = characters.slice(end, until).join("");
    if (between) pieces.push({ text: between, token: null });
  };
  for (const token of tokens) {
    addBetween(token.start);
    const isCut = token.end - token.start > [...token.text].length;
    pieces.push({ text: `${token.text.trim() ? token.text : BLANK}${isCut ? "…" : ""}`, token });
    end = Math.max(end, token.end);
  }
  addBetween(characters.length);
  return pieces;
}

/** The first characters of a text, its tokens coloured. */
export function Coloured({ text, tokens, score, count }) {
  const isInside = ({ end }) => end <= count;
  const pieces = piecesOf([...text].slice(0, count).join(""), tokens.filter(isInside));
  return html`<span>${pieces.map((piece) => (piece.token ? html`<span class=${classOf(piece.token[score])}>${piece.text}</span>` : piece.text))}${[...text].length > count && "…"}</span>`;
}

/** A token and its score in words: "cat: −1.234 nats". */
export function labelOf({ text, token }, score) {
  const value = token[score] ?? null;
  return `${text.trim()}: ${value === null ? "no score" : `${number(value)} nats`}`;
}

const classOf = (score) => (stepOf(score) === null ? "token" : `token step-${stepOf(score)}`);

export function Legend() {
  const texts = [...BOUNDS.map((bound) => `≥ ${number(bound)}`), `< ${number(BOUNDS.at(-1))}`];
  return html`<p class="row small muted">In nats: ${texts.map((text, i) => html`<span key=${i} class=${`token step-${i}`}>${text}</span>`)}</p>`;
}

/** One stop of the Tab key, within which the arrow keys move; a line below shows the active token's number. */
export function Tokens({ text, tokens, score, hasLegend }) {
  const [active, setActive] = useState(0);
  const place = useRef(null);
  const pieces = piecesOf(text, tokens);
  const labels = pieces.filter(({ token }) => token).map((piece) => labelOf(piece, score));
  const targets = { ArrowLeft: active - 1, ArrowRight: active + 1, Home: 0, End: tokens.length - 1 };
  function onKeyDown(event) {
    const target = place.current.children[targets[event.key]];
    if (!target) return;
    event.preventDefault();
    target.focus();
  }
  let count = 0;
  const shown = pieces.map((piece) => {
    if (!piece.token) return piece.text;
    const i = count++;
    return html`<span class=${classOf(piece.token[score])} role="img" title=${labels[i]} aria-label=${labels[i]} tabindex=${i === active ? 0 : -1}
      onFocus=${() => setActive(i)} onMouseEnter=${() => setActive(i)}>${piece.text}</span>`;
  });
  return html`
    <div class="tokens" role="group" aria-label=${`Tokens by ${score}`} ref=${place} onKeyDown=${onKeyDown}>${shown}</div>
    <p class="small" aria-hidden="true">${labels[active] ?? DASH}</p>
    ${hasLegend && html`<${Legend} />`}`;
}
