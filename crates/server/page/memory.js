// The memory: search in the remembered turns of all sessions, lessons, topics, and how a prompt
// contains the turns of one session.

import { get, query } from '/page/api.js';
import { answerOrder, button, emptyNote, errorNote, fill, h } from '/page/dom.js';
import { count, visible } from '/page/format.js';
import { showLessons } from '/page/lessons.js';
import { searchedWords, showFound } from '/page/memory-results.js';
import { rawTurn } from '/page/raw-turn.js';
import { plain } from '/page/render.js';
import { showTopics } from '/page/topics.js';

/** Levels of turns, the most detailed first, with what they contain. */
const LEVELS = [
  ['raw', 'in full', 'every word'],
  ['smoothed', 'shortened', 'without filler and repetition'],
  ['compressed', 'summary', 'what was said and done'],
  ['tiny', 'one line', 'the topic'],
];

/** The name of a level for people, and what it contains. */
function levelNames(level) {
  const [, name = level, meaning = ''] = LEVELS.find(([known]) => known === level) ?? [];
  return { name, meaning };
}

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
      this.beginFind = answerOrder();
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
            tab('#/memory', 'Search', !name || name === 'search'),
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
      else this.showSearch(content, name === 'search' ? turn : '');
    }

    async attempt(element, action) {
      try {
        return await action();
      } catch (error) {
        if (!this.stop.signal.aborted) fill(element, errorNote(error));
        return null;
      }
    }

    showSearch(content, words = '') {
      const input = h('input', {
        type: 'search',
        'aria-label': 'Search the memory',
        placeholder: 'Words or a question',
        value: words,
      });
      const results = h('div', { class: 'memory-content', 'aria-live': 'polite' });
      // The address has the words, so that the results are there after "back".
      const open = (event) => {
        event.preventDefault();
        const wanted = input.value.trim();
        const address = wanted ? `#/memory/search/${encodeURIComponent(wanted)}` : '#/memory';
        if (location.hash === address) this.find(results, wanted);
        else location.hash = address;
      };
      fill(
        content,
        h(
          'p',
          { class: 'dim' },
          'What the sessions of your folders did and said, and the lessons, found by words or by a question.',
        ),
        h(
          'form',
          { class: 'inline', onsubmit: open },
          input,
          h('button', { type: 'submit', class: 'primary' }, 'Search'),
        ),
        results,
      );
      input.focus();
      if (words) this.find(results, words);
    }

    async find(results, words) {
      const { signal } = this.stop;
      const search = `/memory/search${query({ query: words, limit: 30 })}`;
      const isNewest = this.beginFind();
      const found = await this.attempt(results, () =>
        Promise.all([get(search, signal), get('/memory/lessons', signal)]),
      );
      if (!found || !isNewest()) return;
      const [{ turns }, { lessons }] = found;
      const terms = searchedWords(words);
      const matching = lessons.filter(({ title, content }) =>
        terms.some((term) => `${title} ${content}`.toLowerCase().includes(term)),
      );
      showFound(results, turns, matching, terms);
    }

    async showSession(content, session, turn) {
      const read = await this.attempt(content, () =>
        Promise.all(
          [`/sessions/${session}/memory`, `/sessions/${session}`].map((path) =>
            get(path, this.stop.signal),
          ),
        ),
      );
      if (!read) return;
      const [gradient, info] = read;
      const levels = h('div', { class: 'levels' });
      const beginOpen = answerOrder();
      const open = async (number) => {
        const isNewest = beginOpen();
        const found = await this.attempt(levels, () =>
          get(`/sessions/${session}/memory/${number}`, this.stop.signal),
        );
        if (found && isNewest()) {
          fill(
            levels,
            h('h3', null, `Turn ${number} in each length`),
            h(
              'div',
              { class: 'level-columns' },
              found.levels.map(({ level, text }) => {
                const { name, meaning } = levelNames(level);
                return h(
                  'section',
                  { 'aria-label': name },
                  h('h4', null, name, h('span', { class: 'dim' }, ` · ${meaning}`)),
                  level === 'raw' ? rawTurn(text) : plain(text, { dir: 'auto' }),
                );
              }),
            ),
          );
        }
      };
      fill(
        content,
        h(
          'p',
          null,
          'Session ',
          h('a', { href: `#/sessions/${session}`, dir: 'auto' }, visible(info.title || session)),
        ),
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
          const label = `${turns}: ${band.era ? 'one text for all, ' : ''}${levelNames(band.level).name}, ${count(band.tokens)} tokens`;
          const part = button('', () => open(band.last), `band ${band.level}`, {
            title: label,
            'aria-label': label,
          });
          part.style.flexGrow = band.tokens;
          return part;
        }),
      );
      const sums = LEVELS.map(([level, name, meaning]) => {
        const used = bands
          .filter((band) => band.level === level)
          .reduce((sum, band) => sum + band.tokens, 0);
        return h(
          'li',
          null,
          h('span', { class: `swatch ${level}`, 'aria-hidden': 'true' }),
          `${name}: ${count(used)} tokens `,
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
