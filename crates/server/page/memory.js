// The memory: search in the remembered turns of all sessions.

import { get, query } from '/page/api.js';
import { emptyNote, errorNote, fill, h } from '/page/dom.js';
import { plural } from '/page/format.js';
import { plain } from '/page/render.js';

customElements.define('sv-memory', class extends HTMLElement {
  connectedCallback() {
    this.stop = new AbortController();
    this.input = h('input', { type: 'search', 'aria-label': 'Search the memory', placeholder: 'Words or a question' });
    this.results = h('div', { 'aria-live': 'polite' });
    fill(this, h('section', { class: 'panel' }, h('h2', null, 'Memory'),
      h('p', { class: 'dim' }, 'What the sessions of your folders did and said, found by words or by a question.'),
      h('form', { class: 'inline', onsubmit: (event) => { event.preventDefault(); this.find(); } },
        this.input, h('button', { type: 'submit', class: 'primary' }, 'Search')),
      this.results));
    this.input.focus();
  }

  disconnectedCallback() {
    this.stop.abort();
  }

  async find() {
    const words = this.input.value.trim();
    if (!words) return;
    try {
      const { turns } = await get(`/memory/search${query({ query: words, limit: 30 })}`, this.stop.signal);
      const best = Math.max(...turns.map((turn) => turn.score), 1e-9);
      fill(this.results, turns.length ? h('p', { class: 'dim' }, plural(turns.length, 'turn')) : emptyNote('Nothing matches.'),
        turns.map((turn) => h('article', { class: 'item', 'aria-label': `Turn ${turn.turn}` },
          h('p', { class: 'item-head' }, h('a', { href: `#/sessions/${turn.session}` }, turn.session),
            h('span', null, `turn ${turn.turn}`),
            h('meter', { min: 0, max: best, value: turn.score, 'aria-label': 'Relevance', title: `relevance ${turn.score.toFixed(2)}` })),
          plain(turn.text, { dir: 'auto' }))));
    } catch (error) {
      fill(this.results, errorNote(error));
    }
  }
});
