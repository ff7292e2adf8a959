// Builds elements. Texts become text nodes, never markup.

import { visible } from '/page/format.js';

/**
 * Creates an element.
 * `props` has attributes; a function under `onname` is a listener for the event `name`, `false`,
 * `null` and `undefined` leave an attribute out, `true` sets it without a value.
 */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value);
    }
  }
  add(element, children);
  return element;
}

/** Appends nodes and texts; lists are flattened, `null` and `false` are left out. */
export function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child);
  }
}

/** Replaces the content of an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
}

/** Calls `action` after a pause without further calls. */
export function debounce(action, pauseMs) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...args), pauseMs);
  };
}

/** Calls `action` every `intervalMs` while the page is visible, until `signal` is aborted. */
export function every(intervalMs, signal, action) {
  const timer = setInterval(() => {
    if (!document.hidden) action();
  }, intervalMs);
  signal.addEventListener('abort', () => clearInterval(timer));
}

/**
 * Orders the answers to requests that repeat: `begin()` is called when one is sent, and returns a
 * function that tells, when its answer is there, whether no later request was answered before. An
 * answer that is older than what is shown must not replace it.
 */
export function answerOrder() {
  let sent = 0;
  let answered = 0;
  return () => {
    const own = ++sent;
    return () => {
      if (own < answered) return false;
      answered = own;
      return true;
    };
  };
}

/** Replaces an element that has a summary. The focus stays at the summary. */
export function replaceSummary(old, element) {
  const hadFocus = old.contains(document.activeElement);
  old.replaceWith(element);
  if (hadFocus) element.querySelector('summary')?.focus({ preventScroll: true });
}

/** A button. `kind` is a class, such as `primary` or `danger`. */
export function button(label, onclick, kind = '', more = {}) {
  return h('button', { type: 'button', class: kind || null, onclick, ...more }, label);
}

/** Calls `action` for Enter in a field. Shift and Enter make a new line. */
export function onEnter(control, action) {
  control.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing || event.defaultPrevented)
      return;
    event.preventDefault();
    action();
  });
}

/** What `onEnter` does, for people. */
export const ENTER_HINT = 'Enter sends, Shift and Enter make a new line.';

/** A text in which parts between backticks become code. */
export function marked(text) {
  return text
    .split(/`([^`]+)`/)
    .map((part, at) => (at % 2 ? h('code', null, part) : part))
    .filter((part) => part !== '');
}

/** Asks a question in a dialog. Resolves to whether the person chose `yes`. */
export function askPerson(title, { content = [], yes, no, isDanger = true }) {
  return new Promise((resolve) => {
    const dialog = h('dialog', { 'aria-labelledby': 'question-title' });
    const close = (answer) => () => {
      dialog.returnValue = answer;
      dialog.close();
    };
    const keep = button(no, close('no'), isDanger ? 'primary' : '');
    fill(
      dialog,
      h('h2', { id: 'question-title' }, title),
      content,
      h(
        'div',
        { class: 'actions' },
        button(yes, close('yes'), isDanger ? 'danger' : 'primary'),
        keep,
      ),
    );
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve(dialog.returnValue === 'yes');
    });
    document.body.append(dialog);
    dialog.showModal();
    keep.focus();
  });
}

/** A field with its label above. */
export function field(label, control, hint) {
  const id = `field-${++fields}`;
  control.id = id;
  const note = hint ? h('small', { id: `${id}-hint` }, hint) : null;
  if (note) control.setAttribute('aria-describedby', note.id);
  return h('div', { class: 'field' }, h('label', { for: id }, label), control, note);
}
let fields = 0;

/**
 * A table that scrolls by itself if it is too wide. The first cell of a row is its heading;
 * `columns` are the headings of the columns, or null.
 */
export function table(label, columns, rows) {
  const head = columns
    ? h(
        'thead',
        null,
        h(
          'tr',
          null,
          columns.map((name) => h('th', { scope: 'col' }, name)),
        ),
      )
    : null;
  // On a small screen a cell is a line of its own, with the heading of its column.
  const body = rows.map(([first, ...rest]) =>
    h(
      'tr',
      null,
      h('th', { scope: 'row' }, first),
      rest.map((cell, at) => h('td', { 'data-column': columns?.[at + 1] }, cell)),
    ),
  );
  return h(
    'div',
    { class: 'table-box', tabindex: 0, role: 'region', 'aria-label': label },
    h('table', { class: columns ? 'stacked' : null }, head, h('tbody', null, body)),
  );
}

/** What a view shows instead of content. */
export function emptyNote(title, ...more) {
  return h(
    'div',
    { class: 'empty' },
    h('p', { class: 'empty-title' }, title),
    ...more.map((text) => (typeof text === 'string' ? h('p', null, marked(text)) : text)),
  );
}

/** An error with its hint. */
export function errorNote(error) {
  return h(
    'div',
    { class: 'notice error', role: 'alert' },
    h('p', null, marked(`error: ${visible(error.message)}`)),
    error.hint ? h('p', { class: 'hint' }, marked(`hint: ${visible(error.hint)}`)) : null,
  );
}
