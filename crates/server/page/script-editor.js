// An editor for scripts that completes names of tools and fields of their arguments. Control and
// Space open the list.

import { h } from '/page/dom.js';
import { suggestions } from '/page/suggestions.js';

/** Lines of the editor, at least and at most. */
const LINES = [8, 30];
/** Letters of a name after which suggestions appear by themselves. */
const MIN_LETTERS = 2;

/**
 * What can be inserted at the end of a text: `{ text, label, about }`, and the length of the word
 * that it replaces. `tools` are those of `GET /tools`.
 */
function suggestionsFor(before, tools) {
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
  const id = `editor-${++editors}-keys`;
  const lines = source.split('\n').length + 2;
  const text = h('textarea', {
    class: 'editor',
    'aria-label': 'Script',
    'aria-describedby': id,
    rows: Math.min(Math.max(lines, LINES[0]), LINES[1]),
    spellcheck: 'false',
    autocomplete: 'off',
    dir: 'ltr',
  });
  text.value = source;
  const find = (before, isAsked) => {
    const found = suggestionsFor(before, tools);
    const isWanted = isAsked || found.length >= MIN_LETTERS || /[.{,]\s*$/.test(before);
    return isWanted ? found : { length: 0, list: [] };
  };
  const { list, about, status, open } = suggestions(text, { label: 'Suggestions', find });
  text.addEventListener('keydown', (event) => {
    if (event.key !== ' ' || !event.ctrlKey) return;
    open();
    event.preventDefault();
  });
  const keys = h(
    'small',
    { class: 'dim keys', id },
    'Control and Space show suggestions; arrow keys select, Enter inserts, Escape closes.',
  );
  return {
    element: h('div', { class: 'completion' }, text, keys, list, about, status),
    get source() {
      return text.value;
    },
    focus: () => text.focus(),
  };
}
let editors = 0;
