// Starts the page: views, their navigation, and the state of the connection.

import { apiEvents } from '/page/api.js';
import { approvals } from '/page/approval-store.js';
import { errorNote, fill, h } from '/page/dom.js';
import { hasUnsavedEdits, mayLeave } from '/page/unsaved.js';
import '/page/approvals.js';
import '/page/login.js';
import '/page/sessions.js';

/**
 * Views with their elements, and the modules of those that are loaded when they are opened.
 * `#/name/rest` opens a view; it gets the rest as `path`.
 */
const VIEWS = [
  ['sessions', 'Sessions', 'sv-sessions'],
  ['approvals', 'Approvals', 'sv-approvals'],
  ['runs', 'Runs', 'sv-runs', '/page/runs.js'],
  ['channels', 'Channels', 'sv-channels', '/page/channels.js'],
  ['documents', 'Documents', 'sv-documents', '/page/documents.js'],
  ['memory', 'Memory', 'sv-memory', '/page/memory.js'],
  ['health', 'Health', 'sv-health', '/page/health.js'],
];

const main = document.getElementById('main');
const nav = document.getElementById('views');
const connection = document.getElementById('connection');
const badge = h('span', { class: 'badge', hidden: true });
let isLoggedIn = true;

/** The name of a view. A small screen shows `Docs` for `Documents`, so that all fit in a line. */
function shortLabel(label) {
  if (label !== 'Documents') return label;
  return ['Doc', h('span', { class: 'wide-only' }, 'ument'), 's'];
}

const links = VIEWS.map(([name, label]) =>
  h('a', { href: `#/${name}` }, shortLabel(label), name === 'approvals' ? badge : null),
);
fill(nav, links);

/** Views that are opened again where they were left. */
const KEPT_VIEWS = ['sessions', 'runs', 'channels'];
let shownIndex = 0;
let shownAddress = '';

/** Lets the link of the view that is left lead back to what it showed. */
function keepAddress(index) {
  if (index !== shownIndex && KEPT_VIEWS.includes(VIEWS[shownIndex][0])) {
    links[shownIndex].setAttribute('href', shownAddress || '#/sessions');
  }
  links[index].setAttribute('href', `#/${VIEWS[index][0]}`);
  [shownIndex, shownAddress] = [index, location.hash];
}

/** How often a view was opened, to find out whether another one was opened meanwhile. */
let routed = 0;

/** A part of the address. One that a person typed may have a `%` that begins no code. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

async function route() {
  if (!isLoggedIn) return;
  const own = ++routed;
  const [name, ...rest] = location.hash.replace(/^#\/?/, '').split('/').map(decoded);
  const index = Math.max(
    0,
    VIEWS.findIndex(([view]) => view === name),
  );
  const [, label, tag, module] = VIEWS[index];
  keepAddress(index);
  links.forEach((link, at) => {
    if (at === index) {
      link.setAttribute('aria-current', 'page');
      link.scrollIntoView({ block: 'nearest', inline: 'nearest' });
    } else link.removeAttribute('aria-current');
  });
  title(label);
  try {
    if (module) await import(module);
  } catch {
    const message = `the view ${label} cannot be loaded`;
    const hint = 'check that `selvedge serve` runs, and load the page again';
    if (own === routed) main.replaceChildren(errorNote({ message, hint }));
    return;
  }
  if (own !== routed || !isLoggedIn) return;
  const shown = main.firstElementChild;
  if (shown?.localName === tag && shown.show) {
    shown.show(rest);
  } else {
    const view = document.createElement(tag);
    view.path = rest;
    main.replaceChildren(view);
  }
}

let viewTitle = '';
function title(label = viewTitle) {
  viewTitle = label;
  const waiting = approvals.waiting.size;
  document.title = `${waiting ? `(${waiting}) ` : ''}${label} · Selvedge`;
}

approvals.addEventListener('change', () => {
  const waiting = approvals.waiting.size;
  badge.hidden = waiting === 0;
  fill(badge, String(waiting), h('span', { class: 'hidden-text' }, ' waiting'));
  title();
});

apiEvents.addEventListener('connection', ({ detail }) => {
  const text = detail === 'offline' ? 'No connection. The page tries again.' : '';
  if (connection.textContent !== text) connection.textContent = text;
});

apiEvents.addEventListener('login', () => {
  if (!isLoggedIn) return;
  isLoggedIn = false;
  stop.abort();
  document.title = 'Log in · Selvedge';
  main.replaceChildren(document.createElement('sv-login'));
});

// The address has the view after `#`, so the link cannot have its target there.
document.getElementById('skip').addEventListener('click', (event) => {
  event.preventDefault();
  main.focus();
});

const stop = new AbortController();

/** Opens the view of the address, after a question if edits would be lost. */
async function changeView({ oldURL }) {
  if (isAsking) return;
  if (hasUnsavedEdits()) {
    const wanted = location.href;
    history.replaceState(null, '', oldURL);
    isAsking = true;
    const isDiscarded = await mayLeave();
    isAsking = false;
    if (!isDiscarded) return;
    history.replaceState(null, '', wanted);
  }
  for (const dialog of document.querySelectorAll('dialog[open]')) dialog.close();
  route();
}
let isAsking = false;

addEventListener('hashchange', changeView);
addEventListener('beforeunload', (event) => {
  if (hasUnsavedEdits()) event.preventDefault();
});
approvals.start(stop.signal);
route();
