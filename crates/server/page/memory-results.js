// What a search of the memory found: turns and lessons, with the searched words marked.

import { button, emptyNote, fill, h } from '/page/dom.js';
import { plural, visible } from '/page/format.js';

/** Characters of a turn that are shown at first, and how many of them are before the first match. */
const SHOWN_LENGTH = 600;
const BEFORE_MATCH = 150;
/** Words of questions that say nothing about their topic. */
const COMMON_WORDS = new Set(
  'a an and are as at be by did do does for from had has have how in is it its my of on or our should that the their then this to us was we were what when where which who why will with you your'.split(
    ' ',
  ),
);

/** The words of a question that can be found in a text, in lower case. */
export function searchedWords(text) {
  const words = text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  const rare = words.filter((word) => !COMMON_WORDS.has(word) && word.length > 1);
  return [...new Set(rare.length ? rare : words)];
}

/** Shows turns and lessons in an element. */
export function showFound(results, turns, lessons, terms) {
  const isNothing = !turns.length && !lessons.length;
  fill(
    results,
    isNothing
      ? emptyNote(
          'Nothing matches.',
          `No turn and no lesson contains one of these words: ${terms.join(', ')}.`,
          'Use words that were said, or set `memory.encoder` in config.toml to a model that also compares meanings.',
        )
      : null,
    lessons.length ? h('h3', null, plural(lessons.length, 'lesson')) : null,
    lessons.map((lesson) =>
      h(
        'article',
        { class: 'item', 'aria-label': `Lesson ${visible(lesson.title)}` },
        h('p', { class: 'item-head' }, h('a', { href: '#/memory/lessons' }, visible(lesson.title))),
        foundText(lesson.content, terms),
      ),
    ),
    turns.length ? h('h3', null, `${plural(turns.length, 'turn')}, the best match first`) : null,
    turns.map((turn) =>
      h(
        'article',
        { class: 'item', 'aria-label': `Turn ${turn.turn}` },
        h(
          'p',
          { class: 'item-head' },
          h(
            'a',
            { href: `#/sessions/${turn.session}`, dir: 'auto' },
            visible(turn.title || turn.session),
          ),
          h('a', { href: `#/memory/${turn.session}/${turn.turn}` }, `turn ${turn.turn}`),
          h(
            'span',
            { class: 'dim', title: 'How well the turn matches, compared with the others.' },
            `relevance ${turn.score.toFixed(2)}`,
          ),
          h('span', { class: 'dim' }, reason(turn.text, terms)),
        ),
        foundText(turn.text, terms),
      ),
    ),
  );
}

/** Why a turn was found, as far as its text tells it. */
function reason(text, terms) {
  const lower = visible(text).toLowerCase();
  const found = terms.filter((term) => lower.includes(term));
  if (found.length) return `has ${found.map((term) => `“${term}”`).join(', ')}`;
  return 'has other forms of the words, or a similar meaning';
}

/** The part of a text around the first match, and a button for the whole text. */
function foundText(text, terms) {
  const shown = visible(text);
  const first = Math.max(0, shown.toLowerCase().search(pattern(terms)) - BEFORE_MATCH);
  const part = shown.slice(first, first + SHOWN_LENGTH);
  const pre = h('pre', { class: 'text', dir: 'auto' });
  const isWhole = part.length === shown.length;
  fill(pre, first ? '… ' : null, withMarks(part, terms), isWhole ? null : ' …');
  const more = button('Show the whole text', () => {
    fill(pre, withMarks(shown, terms));
    more.remove();
  });
  return h('div', { class: 'long' }, pre, isWhole ? null : more);
}

function pattern(terms) {
  const escaped = terms.map((term) => term.replace(/[^\p{L}\p{N}]/gu, ''));
  return new RegExp(`(${escaped.join('|')})`, 'giu');
}

/** A text whose searched words are marked. */
function withMarks(text, terms) {
  if (!terms.length) return [text];
  return text.split(pattern(terms)).map((part, at) => (at % 2 ? h('mark', null, part) : part));
}
