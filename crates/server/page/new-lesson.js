// The form that adds a lesson.

import { post } from '/page/api.js';
import { button, errorNote, field, fill, h, marked } from '/page/dom.js';
import { folderList } from '/page/folders.js';
import { watchEdits } from '/page/unsaved.js';

/** Kinds of lessons that a person writes, with what they are for. */
const KINDS = [
  ['preference', 'Preference: what you want in future sessions'],
  ['convention', 'Convention: how things are done in the project'],
  ['problem', 'Problem: a recurring error and its fix'],
  ['lesson', 'Lesson: what worked, or did not'],
  ['layer', 'Reference text: 500 to 5,000 tokens about a topic'],
];

/** Returns a button that opens the form. `onAdded(id)` is called when a lesson was stored. */
export function newLesson({ signal, onAdded }) {
  const box = h('div');
  const open = button('Add a lesson', () => showForm(), 'primary');

  function showButton() {
    fill(box, h('div', { class: 'actions' }, open));
  }

  function showForm() {
    const kind = h(
      'select',
      null,
      KINDS.map(([value, label]) => h('option', { value }, label)),
    );
    const title = h('input', { type: 'text', dir: 'auto', maxlength: 200 });
    const text = h('textarea', { class: 'editor', dir: 'auto', rows: 5, required: true });
    const topics = h('input', { type: 'text', dir: 'auto' });
    const { select: folder, ready } = folderList({}, signal);
    const note = h('div', { role: 'status' });
    const save = h('button', { type: 'submit', class: 'primary' }, 'Add');
    let isSaved = false;

    async function submit(event) {
      event.preventDefault();
      save.disabled = true;
      const names = topics.value.split(',').map((name) => name.trim());
      const body = {
        kind: kind.value,
        content: text.value,
        topics: names.filter((name) => name),
      };
      if (title.value.trim()) body.title = title.value.trim();
      // Until the folders have arrived, the server takes the first one, as the list will.
      if (folder.value) body.workspace = folder.value;
      try {
        const { id } = await post('/memory/lessons', body);
        isSaved = true;
        showButton();
        await onAdded(id);
      } catch (error) {
        fill(note, errorNote(error));
        save.disabled = false;
      }
    }

    fill(
      box,
      h(
        'form',
        { class: 'card', 'aria-label': 'Add a lesson', onsubmit: submit },
        h('h3', null, 'Add a lesson'),
        field('Kind', kind),
        field('Text', text, 'Markdown. The model reads it as it is.'),
        field('Title', title, 'Optional. Without one, the first line of the text is the title.'),
        field('Topics', topics, 'Optional. Separated by commas.'),
        field(
          'Used in',
          folder,
          marked(
            'The project of this folder. For all projects, accept a lesson with `selvedge memory review --user`.',
          ),
        ),
        note,
        h(
          'div',
          { class: 'actions' },
          save,
          button('Cancel', () => {
            showButton();
            open.focus();
          }),
        ),
      ),
    );
    watchEdits(text, () => !isSaved && text.value !== '');
    kind.focus();
    ready.catch((error) => fill(note, errorNote(error)));
  }

  showButton();
  return box;
}
