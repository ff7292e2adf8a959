// The form of a new document: its fields, where its file is, and its text.

import { get, put, query } from '/page/api.js';
import { button, errorNote, field, fill, h } from '/page/dom.js';
import { quoted } from '/page/front-matter.js';
import { watchEdits } from '/page/unsaved.js';

/** The folder of a pattern: its parts before the first one with a special character. */
function folderOf(pattern = '') {
  const parts = pattern
    .replace(/^(\.?\/)+/, '')
    .split('/')
    .slice(0, -1);
  const end = parts.findIndex((part) => /[*?[\]{}]/.test(part));
  return parts.slice(0, end < 0 ? parts.length : end).join('/');
}

/** A name of a file made from a title: `shop-ideas.md` for `Shop ideas`. */
function fileName(title) {
  const words = title.normalize('NFD').replace(/\p{M}/gu, '').toLowerCase();
  const name = words.replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-+|-+$/g, '');
  return name ? `${name.slice(0, 60)}.md` : '';
}

/** Values that a field suggests. */
export function choices(id, values) {
  return h(
    'datalist',
    { id },
    values.map((value) => h('option', { value })),
  );
}

/**
 * Creates the form. `kinds` and `statuses` are those of other documents. `onSaved(path)` is called
 * when the document is written.
 */
export function newDocumentForm({ workspace, kinds, statuses, onSaved }) {
  const title = h('input', { type: 'text', dir: 'auto', required: true });
  const kind = h('input', { type: 'text', list: 'new-kinds', value: 'issue' });
  const status = h('input', { type: 'text', list: 'new-statuses', value: 'open' });
  const path = h('input', { type: 'text', required: true, spellcheck: 'false', dir: 'ltr' });
  const body = h('textarea', { rows: 12, class: 'editor', spellcheck: 'true', dir: 'auto' });
  const source = h('textarea', { rows: 18, class: 'editor', spellcheck: 'true', dir: 'auto' });
  const note = h('div', { role: 'status' });
  const places = h('span');
  const submit = h('button', { type: 'submit', class: 'primary' }, 'Create document');
  const asText = button('Edit as text', () => showText());
  let folder = '';
  let hasOwnPath = false;
  let isText = false;
  let isSaved = false;

  const suggestPath = () => {
    if (hasOwnPath) return;
    const name = fileName(title.value);
    path.value = name && folder ? `${folder}/${name}` : name;
  };
  title.addEventListener('input', suggestPath);
  path.addEventListener('input', () => {
    hasOwnPath = path.value !== '';
  });

  /** The whole file. Empty fields are left out. */
  function content() {
    if (isText) return source.value;
    const fields = [
      ['kind', kind],
      ['status', status],
      ['title', title],
    ];
    const lines = fields
      .map(([name, input]) => [name, input.value.trim()])
      .filter(([, value]) => value)
      .map(([name, value]) => `${name}: ${quoted(value)}\n`);
    const text = body.value.endsWith('\n') || !body.value ? body.value : `${body.value}\n`;
    return `---\n${lines.join('')}---\n\n${text}`;
  }

  const fields = h(
    'div',
    { class: 'document' },
    field('Title', title),
    h('div', { class: 'field-row' }, field('Kind', kind), field('Status', status)),
    field('Text', body, 'Markdown.'),
    choices('new-kinds', kinds),
    choices('new-statuses', statuses),
  );
  const text = field(
    'Whole file',
    source,
    'Front matter between the lines with ---, then Markdown.',
  );
  text.hidden = true;

  function showText() {
    source.value = content();
    isText = true;
    title.required = false;
    fields.hidden = true;
    text.hidden = false;
    asText.hidden = true;
    source.focus();
  }

  async function save(event) {
    event.preventDefault();
    submit.disabled = true;
    const name = path.value.trim();
    try {
      if (await exists(name)) {
        const message = `there is a document \`${name}\` already`;
        fill(note, errorNote({ message, hint: 'choose another file, or edit that document' }));
        return;
      }
      await put('/documents', { workspace, path: name, content: content(), replaces: '' });
      isSaved = true;
      onSaved(name);
    } catch (error) {
      fill(note, errorNote(error));
    } finally {
      submit.disabled = false;
    }
  }

  /** Whether there is a document: to write it would replace it. */
  async function exists(name) {
    try {
      await get(`/documents${query({ workspace, path: name, source: true })}`);
      return true;
    } catch {
      return false;
    }
  }

  get(`/documents/patterns${query({ workspace })}`)
    .then(({ patterns }) => {
      folder = folderOf(patterns[0]);
      suggestPath();
      fill(places, 'Documents of this folder are ', listOf(patterns), '.');
    })
    .catch((error) => fill(note, errorNote(error)));

  const form = h(
    'form',
    { class: 'document', onsubmit: save },
    fields,
    text,
    field('File', path, places),
    note,
    h('div', { class: 'actions' }, submit, asText),
  );
  watchEdits(form, () => !isSaved && Boolean(title.value || body.value || source.value));
  return { form, focus: () => title.focus() };
}

/** Patterns as code, separated by commas. */
function listOf(patterns) {
  return patterns.flatMap((pattern, at) => [at ? ', ' : '', h('code', null, pattern)]);
}
