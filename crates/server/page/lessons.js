// Lessons and reference layers of the memory: review them and change their text.

import { get, patch, post, remove } from '/page/api.js';
import {
  answerOrder,
  askPerson,
  button,
  emptyNote,
  errorNote,
  field,
  fill,
  h,
} from '/page/dom.js';
import { dateTime, plural, visible } from '/page/format.js';
import { newLesson } from '/page/new-lesson.js';
import { rich } from '/page/render.js';
import { watchEdits } from '/page/unsaved.js';

/** Which lessons are shown: a label, and whether a lesson belongs to it. */
const FILTERS = [
  ['All', () => true],
  ['To review', ({ status }) => status === 'proposed'],
  ['Reference texts', ({ kind }) => kind === 'layer'],
  ['Lessons', ({ kind }) => kind !== 'layer'],
];
/** What the statuses of lessons mean. */
const STATUSES = {
  used: 'It is part of later prompts.',
  proposed: 'It waits for your decision.',
  declined: 'It is not used.',
};
/** Kinds whose names say little. */
const KIND_NAMES = { layer: 'reference text', stack: 'technology', gap: 'missing knowledge' };
/** Lines of the editor of a text, at least and at most. */
const EDITOR_LINES = [5, 24];

/** Lists the lessons in an element. */
export async function showLessons(content, signal) {
  const list = h('div', { class: 'approvals' });
  const adding = newLesson({ signal, onAdded: (id) => reload(id, 0) });
  const filters = h('div', { class: 'filters', role: 'group', 'aria-label': 'Which lessons' });
  fill(
    content,
    h(
      'p',
      { class: 'dim' },
      'What was learned from your sessions, and what you add. Lessons in use are part of later prompts. A reference text is a longer text about a topic; one that was proposed is used after you accept it.',
    ),
    adding,
    filters,
    list,
  );
  let { lessons } = await get('/memory/lessons', signal);
  const beginRead = answerOrder();
  const proposed = lessons.filter(FILTERS[1][1]).length;
  let selected = proposed ? 1 : 0;

  /** Reads the lessons again. The focus stays at the lesson that was changed, if it is shown. */
  async function reload(changed, filter = selected) {
    const isNewest = beginRead();
    const read = await get('/memory/lessons', signal);
    if (!isNewest()) return;
    ({ lessons } = read);
    selected = filter;
    show();
    const card = list.querySelector(`[data-lesson="${CSS.escape(changed)}"]`);
    (card?.querySelector('.actions button') ?? filters.children[selected]).focus();
  }

  function show() {
    fill(
      filters,
      FILTERS.map(([label, belongs], at) =>
        button(
          `${label} (${lessons.filter(belongs).length})`,
          () => {
            selected = at;
            show();
            filters.children[at].focus();
          },
          '',
          { 'aria-pressed': String(at === selected) },
        ),
      ),
    );
    const shown = lessons.filter(FILTERS[selected][1]);
    fill(
      list,
      shown.map((lesson) => lessonCard(lesson, reload)),
      shown.length ? null : noLessons(lessons.length),
    );
  }
  show();
}

function noLessons(all) {
  if (all) return emptyNote('No lesson belongs to this list.');
  return emptyNote(
    'There are no lessons yet.',
    'Add one here. Others are learned from turns every 12 hours, or now with `selvedge memory distill`.',
  );
}

/** A lesson with what can be done about it. `reload` shows all lessons as they are then. */
function lessonCard(lesson, reload) {
  const note = h('div');
  const name = visible(lesson.title);
  const card = h('article', {
    class: 'card',
    'aria-label': name,
    'data-lesson': lesson.id,
  });
  const path = `/memory/lessons/${lesson.id}`;

  /** Runs an action, and shows the result or the failure. */
  async function attempt(action) {
    try {
      await action();
      await reload(lesson.id);
    } catch (error) {
      fill(note, errorNote(error));
    }
  }
  const act = (label, action, kind = '') =>
    button(label, () => attempt(action), kind, { 'aria-label': `${label}: ${name}` });
  const decide = (decision) => () => post(path, { decision }, { once: false });

  /** Deletes the lesson after a question. */
  async function confirmDelete() {
    const isWanted = await askPerson('Delete this lesson?', {
      content: [h('p', { dir: 'auto' }, name), h('p', null, 'It cannot be restored.')],
      yes: 'Delete the lesson',
      no: 'Keep it',
    });
    if (isWanted) await attempt(() => remove(path));
  }

  function show() {
    const edit = button('Edit', () => openEditor(), '', { 'aria-label': `Edit: ${name}` });
    fill(
      card,
      h('h3', { dir: 'auto' }, name),
      facts(lesson),
      rich('markdown', lesson.content),
      sources(lesson.sources),
      h(
        'div',
        { class: 'actions' },
        lesson.status === 'used' || lesson.kind === 'gap'
          ? null
          : act('Accept', decide('accept'), 'primary'),
        lesson.status === 'declined' ? null : act('Decline', decide('decline')),
        edit,
        button('Delete', confirmDelete, 'danger', { 'aria-label': `Delete: ${name}` }),
      ),
      note,
    );
    return edit;
  }

  function openEditor() {
    const title = h('input', { type: 'text', dir: 'auto', value: lesson.title, required: true });
    const topics = h('input', { type: 'text', dir: 'auto', value: lesson.topics.join(', ') });
    const lines = lesson.content.split('\n').length + 2;
    const text = h('textarea', {
      class: 'editor',
      dir: 'auto',
      rows: Math.min(Math.max(lines, EDITOR_LINES[0]), EDITOR_LINES[1]),
      required: true,
    });
    text.value = lesson.content;
    const save = (event) => {
      event.preventDefault();
      const names = topics.value.split(',').map((name) => name.trim());
      const change = {
        title: title.value,
        content: text.value,
        topics: names.filter((name) => name),
      };
      attempt(() => patch(path, change));
    };
    const cancel = () => show().focus();
    fill(note);
    fill(
      card,
      h(
        'form',
        {
          'aria-label': `Edit ${name}`,
          onsubmit: save,
          onkeydown: (event) => {
            if (event.key === 'Escape') cancel();
          },
        },
        field('Title', title),
        field('Text', text, 'Markdown. The model reads it as it is.'),
        field('Topics', topics, 'Separated by commas.'),
        h(
          'div',
          { class: 'actions' },
          h('button', { type: 'submit', class: 'primary' }, 'Save'),
          button('Cancel', cancel),
        ),
      ),
      note,
    );
    const before = [title.value, text.value, topics.value];
    watchEdits(text, () =>
      [title, text, topics].some((control, at) => control.value !== before[at]),
    );
    title.focus();
  }

  show();
  return card;
}

function facts(lesson) {
  return h(
    'p',
    { class: 'facts' },
    h('span', { class: 'tag' }, KIND_NAMES[lesson.kind] ?? lesson.kind),
    h('span', { class: 'tag', title: STATUSES[lesson.status] ?? null }, lesson.status),
    h('span', { class: 'tag' }, lesson.scope === 'user' ? 'all projects' : 'its project'),
    h(
      'span',
      { title: 'Lessons with a higher weight are chosen first for a prompt.' },
      `weight ${lesson.weight.toFixed(2)}`,
    ),
    h('span', null, dateTime(lesson.updated_ms)),
    lesson.topics.map((topic) => h('span', { class: 'tag' }, visible(topic))),
  );
}

function sources(turns) {
  if (!turns.length) return h('p', { class: 'dim' }, 'Written by a person.');
  return h(
    'details',
    null,
    h('summary', null, `Learned from ${plural(turns.length, 'turn')}`),
    h(
      'ul',
      { class: 'plain' },
      turns.map((source) => {
        const [session, turn] = source.split('/T-');
        return h('li', null, h('a', { href: `#/memory/${session}/${turn}` }, source));
      }),
    ),
  );
}
