// Completes mentions: after `@`, a list of sessions whose titles contain what follows. Arrow keys
// select one, Enter inserts it, Escape closes the list.

import { get } from '/page/api.js';
import { fill, h } from '/page/dom.js';
import { ago, mentionOf, visible } from '/page/format.js';

/** Sessions that are read for the list, and most that it shows. */
const MAX_READ = 100;
const MAX_SHOWN = 8;

/** The part of a word after `@` at the end of a text, or null. */
function openMention(text) {
  return text.match(/(?:^|[^\p{L}\p{N}@])@([\p{L}\p{N}_.-]*)$/u)?.[1] ?? null;
}

/**
 * Adds completion of mentions to a field. Returns the list, and `mentioned()`: the sessions that
 * the text of the field mentions. `ready` resolves when the sessions are known.
 */
export function mentionList(control, signal) {
  const id = `mentions-${++lists}`;
  const list = h('ul', { id, role: 'listbox', 'aria-label': 'Sessions', hidden: true });
  let sessions = [];
  let shown = [];
  let selected = -1;
  const ready = get(`/sessions?limit=${MAX_READ}`, signal)
    .then((found) => {
      sessions = named(found.sessions);
    })
    .catch(() => {
      /* mentions work without completion */
    });

  function open() {
    const word = openMention(control.value.slice(0, control.selectionStart));
    if (word === null) return close();
    const part = word.toLowerCase();
    const matches = ({ title, word: known }) =>
      known.includes(part) || mentionOf(title ?? '').includes(part);
    shown = sessions.filter(matches).slice(0, MAX_SHOWN);
    if (!shown.length) return close();
    fill(
      list,
      shown.map((session, at) =>
        h(
          'li',
          {
            id: `${id}-${at}`,
            role: 'option',
            'aria-selected': 'false',
            // The field keeps the focus.
            onmousedown: (event) => {
              event.preventDefault();
              insert(at);
            },
          },
          visible(session.title || session.id),
          h('span', { class: 'dim' }, ` · ${ago(session.used)}`),
        ),
      ),
    );
    list.hidden = false;
    return select(0);
  }

  function close() {
    list.hidden = true;
    selected = -1;
    control.removeAttribute('aria-activedescendant');
  }

  function select(at) {
    const options = [...list.children];
    selected = (at + options.length) % options.length;
    options.forEach((option, index) =>
      option.setAttribute('aria-selected', String(index === selected)),
    );
    options[selected].scrollIntoView({ block: 'nearest' });
    control.setAttribute('aria-activedescendant', options[selected].id);
  }

  function insert(at) {
    const end = control.selectionStart;
    const word = openMention(control.value.slice(0, end)) ?? '';
    control.setRangeText(`${shown[at].word} `, end - word.length, end, 'end');
    control.dispatchEvent(new Event('input'));
    close();
  }

  control.setAttribute('aria-autocomplete', 'list');
  control.setAttribute('aria-controls', id);
  control.addEventListener('input', open);
  control.addEventListener('blur', close);
  control.addEventListener('keydown', (event) => {
    if (list.hidden) return;
    if (event.key === 'ArrowDown') select(selected + 1);
    else if (event.key === 'ArrowUp') select(selected - 1);
    else if (event.key === 'Enter' || event.key === 'Tab') insert(selected);
    else if (event.key === 'Escape') close();
    else return;
    event.preventDefault();
  });
  const words = () => new Set(control.value.toLowerCase().match(/@[\p{L}\p{N}_.-]+/gu));
  const mentioned = () => {
    const used = [...words()].map((word) => word.slice(1).replace(/[.-]+$/, ''));
    return sessions.filter(
      ({ word, id: session }) => used.includes(word) || used.includes(session),
    );
  };
  /** The text as it is sent: a word that a title alone does not explain becomes the id. */
  const outgoing = (text) =>
    text.replace(/@([\p{L}\p{N}_.-]+)/gu, (all, word) => {
      const session = sessions.find((known) => known.word === word.toLowerCase());
      return session && !session.isUnique ? `@${session.id}` : all;
    });
  /** A text of a channel for people: titles instead of ids. */
  const readable = (text) =>
    text.replace(/@(ses_[a-z0-9]+)/g, (all, id) => {
      const session = sessions.find((known) => known.id === id);
      return session?.title ? `@${mentionOf(session.title)}` : all;
    });
  const find = (session) => titleOf(sessions, session);
  return { list, ready, mentioned, outgoing, readable, titleOf: find };
}
let lists = 0;

/**
 * Sessions with the word that mentions each: its title, with the end of its id if the title is not
 * unique, or its id if it has no title.
 */
function named(sessions) {
  const titles = sessions.map(({ title }) => mentionOf(title ?? ''));
  return sessions.map(({ id, title, used_ms: used }, at) => {
    const isUnique = titles[at] && titles.filter((other) => other === titles[at]).length === 1;
    const word = titles[at] ? `${titles[at]}${isUnique ? '' : `-${id.slice(-4)}`}` : id;
    return { id, title, used, word, isUnique };
  });
}

function titleOf(sessions, session) {
  return sessions.find(({ id }) => id === session)?.title ?? session;
}
