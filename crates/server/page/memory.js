// The memory: search in the remembered turns of all sessions, lessons, topics, and how a prompt
// contains the turns of one session.

import { get, query } from '/page/api.js';
import { button, emptyNote, errorNote, fill, h } from '/page/dom.js';
import { count, plural } from '/page/format.js';
import { showLessons } from '/page/lessons.js';
import { plain } from '/page/render.js';
import { showTopics } from '/page/topics.js';

/** Levels of turns, the most detailed first, with what they contain. */
const LEVELS = [
  ['raw', 'everything'],
  ['smoothed', 'without filler and repetition'],
  ['compressed', 'what was said and done'],
  ['tiny', 'the topic'],
];

/** Parts of the picture of a gradient, of which each can be clicked. */
const MAX_SHOWN_BANDS = 60;

/** Joins neighbours of the same level until a band has at least this many tokens. */
function joined(bands, minTokens) {
  const parts = [];
  for (const band of bands) {
    const last = parts.at(-1);
    const isSame = last && last.level === band.level && last.era === band.era;
    if (isSame && last.tokens < minTokens) {
      last.last = band.last;
      last.tokens += band.tokens;
    } else {
      parts.push({ ...band });
    }
  }
  return parts;
}

customElements.define(
  'sv-memory',
  class extends HTMLElement {
    connectedCallback() {
      this.stop = new AbortController();
      this.show(this.path ?? []);
    }

    disconnectedCallback() {
      this.stop.abort();
    }

    show([name, turn]) {
      const content = h('div', { class: 'memory-content' });
      const tab = (href, label, isShown) =>
        h('a', { href, 'aria-current': isShown ? 'page' : null }, label);
      const isSession = name?.startsWith('ses_');
      fill(
        this,
        h(
          'section',
          { class: 'panel' },
          h('h2', null, 'Memory'),
          h(
            'nav',
            { class: 'tabs', 'aria-label': 'Parts of the memory' },
            tab('#/memory', 'Search', !name),
            tab('#/memory/lessons', 'Lessons', name === 'lessons'),
            tab('#/memory/topics', 'Topics', name === 'topics'),
            isSession ? tab(`#/memory/${name}`, 'Session', true) : null,
          ),
          content,
        ),
      );
      const { signal } = this.stop;
      if (name === 'lessons') this.attempt(content, () => showLessons(content, signal));
      else if (name === 'topics') this.attempt(content, () => showTopics(content, signal));
      else if (isSession) this.showSession(content, name, Number(turn) || null);
      else this.showSearch(content);
    }

    async attempt(element, action) {
      try {
        return await action();
      } catch (error) {
        if (!this.stop.signal.aborted) fill(element, errorNote(error));
        return null;
      }
    }

    showSearch(content) {
      const input = h('input', {
        type: 'search',
        'aria-label': 'Search the memory',
        placeholder: 'Words or a question',
      });
      const results = h('div', { 'aria-live': 'polite' });
      const find = async (event) => {
        event.preventDefault();
        const words = input.value.trim();
        if (!words) return;
        const path = `/memory/search${query({ query: words, limit: 30 })}`;
        const found = await this.attempt(results, () => get(path, this.stop.signal));
        if (found) this.showFound(results, found.turns);
      };
      fill(
        content,
        h(
          'p',
          { class: 'dim' },
          'What the sessions of your folders did and said, found by words or by a question.',
        ),
        h(
          'form',
          { class: 'inline', onsubmit: find },
          input,
          h('button', { type: 'submit', class: 'primary' }, 'Search'),
        ),
        results,
      );
      input.focus();
    }

    showFound(results, turns) {
      const best = Math.max(...turns.map((turn) => turn.score), 1e-9);
      fill(
        results,
        turns.length
          ? h('p', { class: 'dim' }, `${plural(turns.length, 'turn')}, the best match first`)
          : emptyNote('Nothing matches.'),
        turns.map((turn) =>
          h(
            'article',
            { class: 'item', 'aria-label': `Turn ${turn.turn}` },
            h(
              'p',
              { class: 'item-head' },
              h('a', { href: `#/sessions/${turn.session}` }, turn.session),
              h('a', { href: `#/memory/${turn.session}/${turn.turn}` }, `turn ${turn.turn}`),
              h('meter', {
                min: 0,
                max: best,
                value: turn.score,
                'aria-label': 'Relevance',
                title: `relevance ${turn.score.toFixed(2)}`,
              }),
              h('span', { class: 'dim' }, `relevance ${turn.score.toFixed(2)}`),
            ),
            plain(turn.text, { dir: 'auto' }),
          ),
        ),
      );
    }

    async showSession(content, session, turn) {
      const gradient = await this.attempt(content, () =>
        get(`/sessions/${session}/memory`, this.stop.signal),
      );
      if (!gradient) return;
      const levels = h('div', { class: 'levels' });
      const open = async (number) => {
        const found = await this.attempt(levels, () =>
          get(`/sessions/${session}/memory/${number}`, this.stop.signal),
        );
        if (found) {
          fill(
            levels,
            h('h3', null, `Turn ${number} at each level`),
            h(
              'div',
              { class: 'level-columns' },
              found.levels.map(({ level, text }) =>
                h(
                  'section',
                  { 'aria-label': level },
                  h(
                    'h4',
                    null,
                    level,
                    h(
                      'span',
                      { class: 'dim' },
                      ` · ${LEVELS.find(([name]) => name === level)?.[1] ?? ''}`,
                    ),
                  ),
                  plain(text, { dir: 'auto' }),
                ),
              ),
            ),
          );
        }
      };
      fill(
        content,
        h('p', null, 'Session ', h('a', { href: `#/sessions/${session}` }, session)),
        h(
          'p',
          { class: 'dim' },
          `A prompt contains all turns within ${count(gradient.budget)} tokens, older turns in shorter form. Now they use ${count(gradient.tokens)}.`,
        ),
        gradient.bands.length
          ? this.picture(gradient, open)
          : emptyNote('The memory has no turns of this session yet.'),
        levels,
      );
      const last = gradient.bands.at(-1)?.last;
      if (turn || last) open(turn ?? last);
    }

    /** Bands of tokens, the oldest turns first. A click shows the last turn of a band. */
    picture({ bands, tokens }, open) {
      const parts = joined(bands, tokens / MAX_SHOWN_BANDS);
      const bar = h(
        'div',
        { class: 'bands' },
        parts.map((band) => {
          const turns =
            band.first === band.last ? `turn ${band.first}` : `turns ${band.first} to ${band.last}`;
          const label = `${turns}: ${band.era ? 'an era, ' : ''}${band.level}, ${count(band.tokens)} tokens`;
          const part = button('', () => open(band.last), `band ${band.level}`, {
            title: label,
            'aria-label': label,
          });
          part.style.flexGrow = band.tokens;
          return part;
        }),
      );
      const sums = LEVELS.map(([level, meaning]) => {
        const used = bands
          .filter((band) => band.level === level)
          .reduce((sum, band) => sum + band.tokens, 0);
        return h(
          'li',
          null,
          h('span', { class: `swatch ${level}`, 'aria-hidden': 'true' }),
          `${level}: ${count(used)} tokens `,
          h('span', { class: 'dim' }, meaning),
        );
      });
      return h(
        'figure',
        { class: 'gradient' },
        bar,
        h(
          'figcaption',
          { class: 'dim' },
          h('span', null, 'oldest turn'),
          h('span', null, 'newest turn'),
        ),
        h('ul', { class: 'plain' }, sums),
      );
    }
  },
);
