// The dialog that creates a session.

import { get, post, query } from '/page/api.js';
import { ENTER_HINT, button, errorNote, field, fill, h, onEnter } from '/page/dom.js';
import { folderList } from '/page/folders.js';
import { visible } from '/page/format.js';
import { keepDraft } from '/page/unsaved.js';

/** The choice of no environment. */
const DEFAULT_ENVIRONMENT = 'standard settings';

function option(value, label = value) {
  return h('option', { value }, label);
}

/** The session that was created last, until it is shown. */
let created = null;

/** Returns the session that was just created, once. */
export function takeCreated() {
  const id = created;
  created = null;
  return id;
}

/** Opens the dialog. The new session is opened after it. */
export function openNewSession() {
  const { select: workspace, ready } = folderList({ onchange: () => readEnvironments() });
  const environment = h('select', null, option('', DEFAULT_ENVIRONMENT));
  const title = h('input', { type: 'text', dir: 'auto', maxlength: 200 });
  const prompt = h('textarea', { rows: 5, dir: 'auto' });
  const keep = keepDraft(prompt, 'new-session');
  const worktree = h('input', { type: 'checkbox' });
  const note = h('div');
  const create = h('button', { type: 'submit', class: 'primary' }, 'Create session');

  async function readEnvironments() {
    const { environments } = await get(`/environments${query({ workspace: workspace.value })}`);
    const chosen = environment.value;
    fill(
      environment,
      option('', DEFAULT_ENVIRONMENT),
      environments.map((name) => option(name, visible(name))),
    );
    if (environments.includes(chosen)) environment.value = chosen;
  }

  async function submit(event) {
    event.preventDefault();
    create.disabled = true;
    const body = {};
    // Until the folders have arrived, the server takes the first one, as the list will.
    if (workspace.value) body.workspace = workspace.value;
    if (environment.value) body.environment = environment.value;
    if (title.value.trim()) body.title = title.value.trim();
    if (prompt.value.trim()) body.prompt = prompt.value.trim();
    if (worktree.checked) body.worktree = true;
    try {
      const session = await post('/sessions', body);
      prompt.value = '';
      keep();
      dialog.close();
      created = session.id;
      location.hash = `#/sessions/${session.id}`;
    } catch (error) {
      create.disabled = false;
      fill(note, errorNote(error));
    }
  }

  const dialog = h(
    'dialog',
    { 'aria-labelledby': 'new-session-title' },
    h(
      'form',
      { onsubmit: submit },
      h('h2', { id: 'new-session-title' }, 'New session'),
      field('First message', prompt, `What the agent should do. It starts at once. ${ENTER_HINT}`),
      field('Title', title, 'Optional. Without one, the first line of the message is the title.'),
      field('Folder', workspace),
      field(
        'Settings',
        environment,
        'Model, sandbox and approval rules. Other sets are the environments of the configuration.',
      ),
      h('label', { class: 'check' }, worktree, ' Work in a separate copy of the folder'),
      h(
        'small',
        { class: 'dim' },
        'A git worktree: your files stay as they are until you apply the changes.',
      ),
      note,
      h(
        'div',
        { class: 'actions' },
        create,
        button('Cancel', () => dialog.close()),
      ),
    ),
  );
  onEnter(prompt, () => !create.disabled && dialog.querySelector('form').requestSubmit(create));
  dialog.addEventListener('close', () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  prompt.focus();
  ready.then(readEnvironments).catch((error) => fill(note, errorNote(error)));
}
