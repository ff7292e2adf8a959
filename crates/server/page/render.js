// Rendered texts: the server turns Markdown, code and diffs into HTML without scripts, and this is
// the only module that inserts HTML.

import { post } from '/page/api.js';
import { h } from '/page/dom.js';
import { size, visible } from '/page/format.js';

/** Longer texts are shown as plain text, in parts. */
const MAX_RENDERED_LENGTH = 100_000;
/** How much of a long text is shown at once. */
const PART_LENGTH = 20_000;
/** How long texts are collected for one request. */
const COLLECT_MS = 15;
/** Most texts of a request, and their most characters together. */
const MAX_BATCH = 100;
const MAX_BATCH_LENGTH = 400_000;
/** Rendered texts that are kept. */
const MAX_CACHED = 400;

const policy = globalThis.trustedTypes?.createPolicy('selvedge-render', {
  createHTML: (html) => html,
}) ?? { createHTML: (html) => html };

const cache = new Map();
let waiting = [];
let timer = 0;

/** Replaces the content of an element by HTML of the server. */
function insert(element, html) {
  element.innerHTML = policy.createHTML(html);
}

function cacheKey(kind, text, language) {
  return `${kind}/${language ?? ''}/${text}`;
}

/** Keeps the HTML of a text, or a promise of it. */
function keep(id, html) {
  cache.set(id, html);
  if (cache.size > MAX_CACHED) cache.delete(cache.keys().next().value);
}

/** Returns the HTML of a text if it is known, else a promise of it. */
function render(kind, text, language) {
  const id = cacheKey(kind, text, language);
  const known = cache.get(id);
  if (known) {
    cache.delete(id);
    cache.set(id, known);
    return known;
  }
  const html = new Promise((resolve, reject) => {
    waiting.push({ text: { kind, text, language }, resolve, reject });
    if (!timer) timer = setTimeout(send, COLLECT_MS);
  });
  keep(id, html);
  html.then(
    (text) => cache.has(id) && cache.set(id, text),
    () => cache.delete(id),
  );
  return html;
}

async function send() {
  timer = 0;
  const batch = [];
  let length = 0;
  while (waiting.length && batch.length < MAX_BATCH) {
    length += waiting[0].text.text.length;
    if (batch.length && length > MAX_BATCH_LENGTH) break;
    batch.push(waiting.shift());
  }
  if (waiting.length) timer = setTimeout(send, COLLECT_MS);
  try {
    const { html } = await post(
      '/render',
      { texts: batch.map((entry) => entry.text) },
      { once: false },
    );
    batch.forEach((entry, index) => entry.resolve(html[index]));
  } catch (error) {
    batch.forEach((entry) => entry.reject(error));
  }
}

/** An element with plain text, of which a long one is shown in parts. */
export function plain(text, props = {}) {
  const shown = visible(text);
  if (shown.length <= PART_LENGTH) return h('pre', { class: 'text', ...props }, shown);
  const pre = h('pre', { class: 'text', ...props }, shown.slice(0, PART_LENGTH));
  let end = PART_LENGTH;
  const more = h('button', {
    type: 'button',
    onclick() {
      pre.append(shown.slice(end, end + PART_LENGTH));
      end += PART_LENGTH;
      update();
    },
  });
  const update = () => {
    const left = shown.length - end;
    more.hidden = left <= 0;
    more.textContent = `Show more (${size(Math.max(0, left))} left)`;
  };
  update();
  return h('div', { class: 'long' }, pre, more);
}

/**
 * An element with a rendered text: `markdown`, `code` (with a language) or `diff`. Until the server
 * answers, and if it does not, it has the plain text.
 */
export function rich(kind, text, language) {
  const element = h('div', { class: `rich ${kind}`, dir: kind === 'markdown' ? 'auto' : 'ltr' });
  update(element, kind, text, language);
  return element;
}

async function update(element, kind, text, language) {
  if (text.length > MAX_RENDERED_LENGTH) {
    element.replaceChildren(plain(text));
    return;
  }
  const html = render(kind, text, language);
  if (typeof html === 'string') return insert(element, html);
  element.replaceChildren(plain(text));
  try {
    insert(element, await html);
  } catch {
    /* the plain text stays */
  }
}

/** An element whose Markdown grows. It is rendered at most every 100 ms, less often if it is long. */
export class GrowingText {
  constructor() {
    this.element = h('div', { class: 'rich markdown open', dir: 'auto' });
    this.shown = '';
    this.text = '';
    this.isRendering = false;
  }

  set(text) {
    this.text = text;
    if (!this.isRendering) this.renderUntilShown();
  }

  async renderUntilShown() {
    this.isRendering = true;
    while (this.shown !== this.text) {
      const text = this.text;
      const started = performance.now();
      if (text.length > MAX_RENDERED_LENGTH) {
        this.element.replaceChildren(plain(text.slice(-PART_LENGTH)));
      } else {
        try {
          const request = { texts: [{ kind: 'markdown', text }] };
          const { html } = await post('/render', request, { once: false });
          insert(this.element, html[0]);
          keep(cacheKey('markdown', text), html[0]);
        } catch {
          this.element.replaceChildren(plain(text));
        }
      }
      this.shown = text;
      const took = performance.now() - started;
      await new Promise((resolve) => setTimeout(resolve, Math.max(100, took * 2)));
    }
    this.isRendering = false;
  }
}
