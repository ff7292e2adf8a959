// An editor for scripts that completes names of tools and fields of their arguments. Arrow keys
// select a suggestion, Enter inserts it, Escape closes the list, Control and Space open it.

import { fill, h } from '/page/dom.js';
import { plural } from '/page/format.js';

/** Most suggestions that are shown. */
const MAX_SHOWN = 12;
/** Lines of the editor, at least and at most. */
const LINES = [8, 30];
/** Letters of a name after which suggestions appear by themselves. */
const MIN_LETTERS = 2;

/**
 * What can be inserted at the end of a text: `{ text, label, about }`, and the length of the word
 * that it replaces. `tools` are those of `GET /tools`.
 */
export function suggestionsFor(before, tools) {
  return fieldSuggestions(before, tools) ?? toolSuggestions(before, tools);
}

function toolSuggestions(before, tools) {
  const word = before.match(/[A-Za-z_$][\w$]*(?:\.[\w$]*)*$/)?.[0] ?? '';
  const short = word.toLowerCase();
  const matches = tools.filter(({ name }) => {
    const known = name.toLowerCase();
    return word && name !== word && (known.startsWith(short) || known.includes(`.${short}`));
  });
  const list = matches.map(({ name, signature, about }) => ({
    text: `${name}(`,
    label: name,
    about: `${about} ${signature}`,
  }));
  return { length: word.length, list };
}

/** Suggestions inside of `tool({ … `, or null outside. */
function fieldSuggestions(before, tools) {
  const call = before.match(/([A-Za-z_$][\w$.]*)\(\s*\{([^{}()]*)$/);
  const tool = call && tools.find(({ name }) => name === call[1]);
  const key = call?.[2].match(/(?:^|,)\s*([A-Za-z_$][\w$]*)?$/);
  if (!tool || !key) return null;
  const word = key[1] ?? '';
  const used = new Set([...call[2].matchAll(/([\w$]+)\s*:/g)].map(([, name]) => name));
  const fields = tool.fields.filter(({ name }) => name.startsWith(word) && !used.has(name));
  fields.sort((a, b) => Number(b.required) - Number(a.required));
  const list = fields.map(({ name, required, about }) => ({
    text: `${name}: `,
    label: required ? `${name} (required)` : name,
    about: `${about ?? ''} ${tool.signature}`,
  }));
  return { length: word.length, list };
}

/** Creates an editor: its `element`, its `source`, and `focus`. */
export function scriptEditor(source, tools) {
  const id = `completion-${++editors}`;
  const lines = source.split('\n').length + 2;
  const text = h('textarea', {
    class: 'editor',
    'aria-label': 'Script',
    'aria-autocomplete': 'list',
    'aria-haspopup': 'listbox',
    'aria-controls': id,
    'aria-describedby': `${id}-keys`,
    rows: Math.min(Math.max(lines, LINES[0]), LINES[1]),
    spellcheck: 'false',
    autocomplete: 'off',
    dir: 'ltr',
    onkeydown: (event) => onKey(event),
    oninput: () => open({ isAsked: false }),
    onblur: () => close(),
  });
  text.value = source;
  const list = h('ul', { id, role: 'listbox', 'aria-label': 'Suggestions', hidden: true });
  const about = h('p', { class: 'dim about' });
  const status = h('p', { class: 'hidden-text', role: 'status' });
  const keys = h(
    'small',
    { class: 'dim keys', id: `${id}-keys` },
    'Control and Space show suggestions; arrow keys select, Enter inserts, Escape closes.',
  );
  let shown = { length: 0, list: [] };
  let selected = -1;

  function open({ isAsked }) {
    const before = text.value.slice(0, text.selectionStart);
    shown = suggestionsFor(before, tools);
    const isWanted = isAsked || shown.length >= MIN_LETTERS || /[.{,]\s*$/.test(before);
    if (!isWanted || !shown.list.length) return close();
    selected = -1;
    fill(
      list,
      shown.list.slice(0, MAX_SHOWN).map(({ label }, at) =>
        h(
          'li',
          {
            id: `${id}-${at}`,
            role: 'option',
            'aria-selected': 'false',
            // The editor keeps the focus.
            onmousedown: (event) => {
              event.preventDefault();
              insert(at);
            },
          },
          label,
        ),
      ),
    );
    list.hidden = false;
    list.scrollIntoView({ block: 'nearest' });
    fill(about);
    status.textContent = plural(shown.list.length, 'suggestion');
    return undefined;
  }

  function close() {
    list.hidden = true;
    selected = -1;
    fill(about);
    status.textContent = '';
    text.removeAttribute('aria-activedescendant');
  }

  function select(at) {
    const options = [...list.children];
    selected = (at + options.length) % options.length;
    options.forEach((option, index) =>
      option.setAttribute('aria-selected', String(index === selected)),
    );
    options[selected].scrollIntoView({ block: 'nearest' });
    text.setAttribute('aria-activedescendant', options[selected].id);
    fill(about, shown.list[selected].about);
  }

  function insert(at) {
    const end = text.selectionStart;
    text.setRangeText(shown.list[at].text, end - shown.length, end, 'end');
    close();
  }

  function onKey(event) {
    const isOpen = !list.hidden;
    if (event.key === ' ' && event.ctrlKey) open({ isAsked: true });
    else if (isOpen && event.key === 'ArrowDown') select(selected + 1);
    else if (isOpen && event.key === 'ArrowUp') select(selected < 0 ? -1 : selected - 1);
    else if (isOpen && event.key === 'Enter' && selected >= 0) insert(selected);
    else if (isOpen && event.key === 'Escape') close();
    else return;
    event.preventDefault();
  }

  return {
    element: h('div', { class: 'completion' }, text, keys, list, about, status),
    get source() {
      return text.value;
    },
    focus: () => text.focus(),
  };
}
let editors = 0;
