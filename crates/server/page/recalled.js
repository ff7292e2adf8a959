// What the memory added to the prompt of a turn: a line at the turn, and the texts in it.

import { get } from '/page/api.js';
import { fill, h } from '/page/dom.js';
import { plural, visible } from '/page/format.js';
import { plain, rich } from '/page/render.js';

/** The level of a turn that a prompt quotes. */
const QUOTED_LEVEL = 'smoothed';

/** An event `memory.recalled` for people: what was added in one line, and what it was. */
export function recalledNote(event) {
  const found = [
    [event.turns, 'earlier turn'],
    [event.lessons, 'matching lesson'],
    [event.layers, 'reference text'],
  ];
  const parts = found.filter(([number]) => number).map(([number, noun]) => plural(number, noun));
  const details = event.details ?? [];
  // What failed follows what was recalled.
  const failed = details.slice(event.turns + event.lessons + event.layers);
  const text = parts.length
    ? `Memory added to the prompt: ${parts.join(', ')}`
    : 'Memory added nothing to the prompt';
  return { text: [text, ...failed.slice(0, 1)].join(' · '), details };
}

/**
 * Shows after the first item of a turn what the memory added to its prompt. A line that says the same
 * stays as it is; another one takes its place, open if a person had opened the first.
 */
export function showRecalled(item, turn, note) {
  const shown = item.nextElementSibling?.dataset.recalled ? item.nextElementSibling : null;
  const key = JSON.stringify(note);
  if (shown?.noteKey === key) return;
  const line = recalledLine(turn, note);
  line.noteKey = key;
  line.open = shown?.open ?? false;
  shown?.remove();
  item.after(line);
}

/** A line about what the memory added to the prompt of a turn, which opens it. */
function recalledLine(turn, { text, details }) {
  const items = details.map((detail) => h('li', { dir: 'auto' }, visible(detail)));
  const element = h(
    'details',
    { class: 'recalled dim', 'data-recalled': turn },
    h('summary', null, visible(text)),
    h('ul', { class: 'plain' }, items),
  );
  element.addEventListener('toggle', () => showTexts(items, details), { once: true });
  return element;
}

/** Adds their texts to the items. One that cannot be read, or not by this client, stays a name. */
async function showTexts(items, details) {
  let lessons = null;
  const tasks = details.map(async (detail, at) => {
    const [, session, turn] = detail.match(/^turn (ses_\w+)\/T-(\d+) /) ?? [];
    const [, id] = detail.match(/^\w+ (les_\w+) /) ?? [];
    if (session) {
      const { levels } = await get(`/sessions/${session}/memory/${turn}`);
      const link = h('a', { href: `#/memory/${session}/${turn}` }, visible(detail));
      const quoted = levels.find(({ level }) => level === QUOTED_LEVEL);
      fill(items[at], link, quoted ? plain(quoted.text, { dir: 'auto' }) : null);
    } else if (id) {
      lessons ??= get('/memory/lessons');
      const lesson = (await lessons).lessons.find((known) => known.id === id);
      if (!lesson) return;
      const title = h('strong', { dir: 'auto' }, visible(lesson.title));
      fill(items[at], visible(detail), ': ', title, rich('markdown', lesson.content));
    }
  });
  await Promise.allSettled(tasks);
}
