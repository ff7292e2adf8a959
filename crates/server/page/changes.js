// What a session changed: the diff, and what a person can do with it.

import { get, post } from '/page/api.js';
import { askPerson, button, errorNote, fill, h } from '/page/dom.js';
import { visible } from '/page/format.js';
import { rich } from '/page/render.js';

/** What is said about a turn that was undone. */
const UNDONE = 'The files are as they were before the turn. These were its changes:';

/** Opens a dialog with the changes of a session. Results of actions appear in `notes`. */
export async function showChanges(session, { notes, hasWorktree }) {
  const { diff, turn, undone } = await get(`/sessions/${session}/diff`);
  const dialog = h('dialog', { class: 'wide', 'aria-labelledby': 'changes-title' });
  const title = !turn
    ? 'Changes in the worktree'
    : undone
      ? `Turn ${turn} was undone`
      : `Turn ${turn} changed these files`;
  const act = (label, action, kind = '') =>
    button(
      label,
      async () => {
        dialog.close();
        try {
          const text = await action();
          if (text) fill(notes, h('p', { class: 'notice good', role: 'status' }, text));
        } catch (error) {
          fill(notes, errorNote(error));
        }
      },
      kind,
    );
  const revert = async () => {
    const isWanted = await askPerson(`Undo the changes of turn ${turn}?`, {
      content: [
        h('p', null, 'These files become as they were before the turn:'),
        h('pre', { class: 'text' }, visible(filesOf(diff).join('\n'))),
      ],
      yes: `Undo turn ${turn}`,
      no: 'Keep the changes',
    });
    if (!isWanted) return null;
    const { reverted } = await post(`/sessions/${session}/revert`, { turn });
    if (!reverted.length) return `Turn ${turn} was undone before. No file was changed now.`;
    return `The changes of turn ${turn} were undone: ${visible(reverted.join(', '))}.`;
  };
  const apply = async () => {
    const { changed } = await post(`/sessions/${session}/apply`);
    if (!changed.length) return 'There was nothing to apply.';
    return `Applied to the folder: ${visible(changed.join(', '))}.`;
  };
  fill(
    dialog,
    h('h2', { id: 'changes-title' }, diff ? title : 'No changes'),
    undone ? h('p', null, UNDONE) : null,
    diff ? rich('diff', diff) : h('p', null, 'No turn of this session has changed a file.'),
    h(
      'div',
      { class: 'actions' },
      diff && turn && !undone ? act(`Undo turn ${turn} …`, revert, 'danger') : null,
      diff && hasWorktree ? act('Apply to the folder', apply) : null,
      button('Close', () => dialog.close(), 'primary'),
    ),
  );
  dialog.addEventListener('close', () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/** Names of the files of a diff. */
function filesOf(diff) {
  const names = [...diff.matchAll(/^(?:\+\+\+|---) (?:[ab]\/)?(.+)$/gm)].map(([, name]) => name);
  return [...new Set(names)].filter((name) => name !== '/dev/null');
}

/** A line about what a turn changed, which opens its diff. */
export function changedTurn(session, { turn, files }) {
  const count = files === 1 ? '1 file' : `${files} files`;
  const box = h(
    'details',
    { class: 'diff-box', 'data-changed': turn },
    h('summary', null, `Turn ${turn} changed ${count}`),
  );
  box.addEventListener('toggle', async () => {
    if (!box.open || box.children.length > 1) return;
    try {
      const { diff, undone } = await get(`/sessions/${session}/diff?turn=${turn}`);
      if (box.children.length > 1) return;
      if (undone) box.append(h('p', { class: 'notice' }, UNDONE));
      box.append(rich('diff', diff));
    } catch (error) {
      box.append(errorNote(error));
    }
  });
  return box;
}
