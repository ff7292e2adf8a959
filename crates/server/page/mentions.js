// Completes mentions: after `@`, a list of sessions whose titles contain what follows.

import { get } from '/page/api.js';
import { ago, mentionOf } from '/page/format.js';
import { suggestions } from '/page/suggestions.js';

/** Sessions that are read for the list. */
const MAX_READ = 100;

/** The part of a word after `@` at the end of a text, or null. */
function openMention(text) {
  return text.match(/(?:^|[^\p{L}\p{N}@])@([\p{L}\p{N}_.-]*)$/u)?.[1] ?? null;
}

/**
 * Adds completion of mentions to a field. Returns the list, and `mentioned()`: the sessions that
 * the text of the field mentions. `ready` resolves when the sessions are known.
 */
export function mentionList(control, signal) {
  let sessions = [];
  const find = (before) => {
    const word = openMention(before);
    if (word === null) return { length: 0, list: [] };
    const part = word.toLowerCase();
    const matches = ({ title, word: known }) =>
      known.includes(part) || mentionOf(title ?? '').includes(part);
    const list = sessions.filter(matches).map((session) => ({
      text: `${session.word} `,
      label: session.title || session.id,
      note: ago(session.used),
    }));
    return { length: word.length, list };
  };
  const { list, open } = suggestions(control, { label: 'Sessions', find, selectsFirst: true });
  const ready = get(`/sessions?limit=${MAX_READ}`, signal)
    .then((found) => {
      sessions = named(found.sessions);
      // A mention may be typed before the sessions are known.
      if (document.activeElement === control) open();
    })
    .catch(() => {
      /* mentions work without completion */
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
  const titleOf = (session) => sessions.find(({ id }) => id === session)?.title ?? session;
  return { list, ready, mentioned, outgoing, readable, titleOf };
}

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
