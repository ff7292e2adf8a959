// Texts that are not sent or saved: drafts of messages are kept, and a person is asked before edits
// are lost.

import { askPerson, h } from '/page/dom.js';

/** Elements with edits, and functions that tell whether they differ from what is saved. */
const edits = new Map();

/** Asks before the page leaves an element while `isChanged()` is true. */
export function watchEdits(element, isChanged) {
  edits.set(element, isChanged);
}

/** Whether something that is shown has edits which are not saved. */
export function hasUnsavedEdits() {
  for (const [element, isChanged] of edits) {
    if (!element.isConnected) edits.delete(element);
    else if (isChanged()) return true;
  }
  return false;
}

/** Asks whether edits may be lost. Resolves to whether they may; then they no longer count. */
export async function mayLeave() {
  const isDiscarded = await askPerson('Leave without saving?', {
    content: [h('p', null, 'Your changes are not saved.')],
    yes: 'Discard the changes',
    no: 'Stay here',
  });
  if (isDiscarded) edits.clear();
  return isDiscarded;
}

/** Removes a text that was sent from its field. What was typed meanwhile stays. */
export function removeSent(control, sent) {
  if (control.value.startsWith(sent)) control.value = control.value.slice(sent.length).trimStart();
}

/** Keeps the text of a field until it is sent, also after a reload. */
export function keepDraft(control, name) {
  const key = `draft/${name}`;
  control.value = sessionStorage.getItem(key) ?? '';
  const keep = () => {
    if (control.value) sessionStorage.setItem(key, control.value);
    else sessionStorage.removeItem(key);
  };
  control.addEventListener('input', keep);
  return keep;
}
