// Suggestions for what is written in a field. Arrow keys select one, Enter or Tab inserts it, Escape
// closes the list.

import { fill, h } from '/page/dom.js';
import { plural, visible } from '/page/format.js';

/** Most suggestions that are shown. */
const MAX_SHOWN = 8;

/**
 * Adds suggestions to a field. `find(before, isAsked)` returns those for the text before the cursor
 * as `list`, and the `length` of the word that one replaces; a suggestion has a `text`, a `label`,
 * and perhaps a `note` and what is said `about` it. With `selectsFirst`, the first one is selected.
 * Returns the `list`, elements with texts about it, and `open`, which a person asks for.
 */
export function suggestions(control, { label, find, selectsFirst = false }) {
  const id = `suggestions-${++lists}`;
  const list = h('ul', { id, role: 'listbox', 'aria-label': label, hidden: true });
  const about = h('p', { class: 'dim about' });
  const status = h('p', { class: 'hidden-text', role: 'status' });
  let shown = { length: 0, list: [] };
  let selected = -1;

  function open(isAsked) {
    shown = find(control.value.slice(0, control.selectionStart), isAsked);
    close();
    if (!shown.list.length) return;
    fill(list, shown.list.slice(0, MAX_SHOWN).map(row));
    list.hidden = false;
    list.scrollIntoView({ block: 'nearest' });
    status.textContent = plural(shown.list.length, 'suggestion');
    if (selectsFirst) select(0);
  }

  function row({ label: text, note }, at) {
    // The field keeps the focus.
    const onmousedown = (event) => {
      event.preventDefault();
      insert(at);
    };
    return h(
      'li',
      { id: `${id}-${at}`, role: 'option', 'aria-selected': 'false', onmousedown },
      visible(text),
      note ? h('span', { class: 'dim' }, ` · ${visible(note)}`) : null,
    );
  }

  function close() {
    list.hidden = true;
    selected = -1;
    fill(about);
    status.textContent = '';
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
    fill(about, visible(shown.list[selected].about ?? ''));
  }

  function insert(at) {
    const end = control.selectionStart;
    control.setRangeText(shown.list[at].text, end - shown.length, end, 'end');
    control.dispatchEvent(new Event('input'));
    close();
  }

  control.setAttribute('aria-autocomplete', 'list');
  control.setAttribute('aria-haspopup', 'listbox');
  control.setAttribute('aria-controls', id);
  control.addEventListener('input', () => open(false));
  control.addEventListener('blur', close);
  control.addEventListener('keydown', (event) => {
    const { key } = event;
    if (list.hidden) return;
    if (key === 'ArrowDown') select(selected + 1);
    else if (key === 'ArrowUp') select(Math.max(selected, 0) - 1);
    else if (['Enter', 'Tab'].includes(key) && selected >= 0) insert(selected);
    else if (key === 'Escape') close();
    else return;
    event.preventDefault();
  });
  return { list, about, status, open: () => open(true) };
}
let lists = 0;
