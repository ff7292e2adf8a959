// The approvals inbox: what the scripts of all sessions ask for. A decision is deliberate: nothing
// is selected at first, and a selection is confirmed with a button of its own.

import { approvals } from '/page/approval-store.js';
import { emptyNote, errorNote, field, fill, h, marked } from '/page/dom.js';
import {
  ago,
  clockTime,
  dateTime,
  plural,
  pretty,
  timeLeft,
  toolName,
  visible,
} from '/page/format.js';
import { plain, rich } from '/page/render.js';

/** How often the times of requests are shown again. */
const TICK_MS = 1000;
/** Less time than this until the end is marked. */
const SHORT_TIME_MS = 15_000;
/** Keys that are not text: they change other keys, or scroll. */
const SILENT_KEYS = ['Shift', 'AltGraph', 'CapsLock', 'PageUp', 'PageDown', 'Home', 'End'];

/** Decisions of the API, with the words of the terminal. */
function choicesFor(calls, scope) {
  const these = calls.length === 1 ? 'this call' : `these ${calls.length} calls`;
  return [
    ['once', `Approve ${these}, once`],
    ['similar_calls', `Approve ${these} and similar calls of this ${scope}`],
    ['all_later_calls', `Approve ${these} and every later call of this ${scope}`],
    ['deny', 'Deny'],
  ];
}

function preview({ view }) {
  if (!view) return null;
  if (view.diff !== undefined) return rich('diff', view.diff);
  return plain(view.text ?? view.urls ?? pretty(view), { class: 'text command' });
}

function callPart(call, isLinked) {
  return h(
    'section',
    { class: 'asked-call' },
    h(
      'h4',
      null,
      h('span', { class: 'tool' }, visible(toolName(call.tool))),
      ' ',
      h('span', { class: 'reason' }, marked(visible(call.reason))),
    ),
    preview(call.preview),
    call.folder ? h('p', { class: 'notice' }, `Gives access to ${visible(call.folder)}`) : null,
    call.context
      ? h(
          'blockquote',
          { dir: 'auto' },
          h('p', { class: 'dim' }, 'The author of the script says:'),
          visible(call.context),
        )
      : null,
    call.snippet
      ? h(
          'details',
          { open: isLinked },
          h('summary', null, `Script around line ${call.line}`),
          plain(call.snippet, { class: 'text snippet' }),
        )
      : null,
    h(
      'details',
      null,
      h('summary', null, 'All arguments'),
      rich('code', pretty(call.args), 'json'),
    ),
  );
}

/** A request with its calls and the decision about it; with `isLinked`, it names its session. */
function approvalCard(approval, isLinked) {
  const name = `decision-${approval.id}`;
  const note = h('div', { role: 'status' });
  const reason = h('input', { type: 'text', dir: 'auto' });
  const reasonField = field('Reason for the model', reason, 'Optional.');
  reasonField.hidden = true;
  const confirm = h(
    'button',
    { type: 'submit', class: 'primary', disabled: true },
    'Select a decision',
  );
  const calls = approval.calls;
  const choices = choicesFor(calls, calls.some((call) => call.line) ? 'script' : 'turn');
  const inputs = choices.map(([value, label], at) => {
    const input = h('input', {
      type: 'radio',
      name,
      value,
      id: `${name}-${value}`,
      onchange: selected,
    });
    return {
      input,
      row: h(
        'label',
        { class: 'choice', for: input.id },
        input,
        h('kbd', { 'aria-hidden': 'true' }, String(at + 1)),
        h('span', null, label),
      ),
    };
  });

  function choice() {
    return inputs.find(({ input }) => input.checked)?.input.value;
  }

  function selected() {
    const value = choice();
    confirm.disabled = !value;
    confirm.textContent = value
      ? choices.find(([known]) => known === value)[1]
      : 'Select a decision';
    confirm.className = value === 'deny' ? 'danger' : 'primary';
    reasonField.hidden = value !== 'deny';
    if (value) confirm.scrollIntoView({ block: 'nearest' });
  }

  /** Selects the decision at a position; -1 is the last one. Returns whether there is one. */
  function select(at) {
    const found = inputs.at(at);
    if (!found) return false;
    found.input.checked = true;
    found.input.focus();
    selected();
    return true;
  }

  function clear() {
    for (const { input } of inputs) input.checked = false;
    selected();
  }

  async function submit(event) {
    event.preventDefault();
    const value = choice();
    if (!value) return;
    confirm.disabled = true;
    try {
      await approvals.decide(approval.id, value, value === 'deny' ? reason.value.trim() : '');
    } catch (error) {
      fill(note, errorNote(error));
      confirm.disabled = false;
    }
  }

  const asked = h('time', {
    class: 'dim',
    title: dateTime(approval.asked_ms),
    // A screen reader must not repeat the card each second.
    'aria-live': 'off',
  });
  const deadline = h('p', { class: 'deadline', role: 'timer', 'aria-live': 'off' });

  /** Shows how long ago the request was asked, and until when it waits. */
  function tick() {
    const { asked_ms: from, expires_ms: until } = approval;
    const texts = [ago(from), deadlineText(until, calls.length)];
    [asked, deadline].forEach((element, at) => {
      if (element.textContent !== texts[at]) element.textContent = texts[at];
    });
    deadline.classList.toggle('bad', until !== undefined && until - Date.now() < SHORT_TIME_MS);
  }

  const title = `${plural(calls.length, 'call')} ${calls.length === 1 ? 'needs' : 'need'} approval`;
  const form = h(
    'form',
    {
      class: 'approval',
      tabindex: -1,
      onsubmit: submit,
      'data-approval': approval.id,
      'aria-label': title,
    },
    h(
      'h3',
      null,
      title,
      ' ',
      asked,
    ),
    deadline,
    isLinked
      ? h(
          'p',
          null,
          'Session ',
          h(
            'a',
            { href: `#/sessions/${approval.session}`, dir: 'auto' },
            visible(approval.title || approval.session),
          ),
          ' in ',
          h('code', null, visible(approval.directory)),
        )
      : null,
    calls.map((call) => callPart(call, isLinked)),
    h(
      'fieldset',
      null,
      h('legend', null, 'Decision'),
      inputs.map(({ row }) => row),
    ),
    reasonField,
    h('div', { class: 'actions' }, confirm),
    note,
  );
  form.select = select;
  form.clear = clear;
  form.hasChoice = () => choice() !== undefined;
  form.tick = tick;
  tick();
  return form;
}

/** Until when a request waits, and what happens then. */
function deadlineText(until, calls) {
  if (until === undefined) return 'It waits until you decide.';
  const them = calls === 1 ? 'the call is' : 'the calls are';
  return `${timeLeft(until)} left to decide: at ${clockTime(until)} ${them} denied.`;
}

setInterval(() => {
  if (!document.hidden) document.querySelectorAll('form.approval').forEach((card) => card.tick());
}, TICK_MS);

/**
 * Whether digits select a decision. After a letter or a paste they are text, until an arrow key or a
 * click on a request.
 */
let areDigitsKeys = true;

function isField(element) {
  return Boolean(element.closest?.('textarea, select, input:not([type=radio], [type=checkbox])'));
}

/** What is typed or pasted outside of fields is no decision, not even if it ends with a digit. */
function takeText() {
  areDigitsKeys = false;
  document.querySelectorAll('form.approval').forEach((card) => card.clear());
}

/**
 * Digits and arrow keys select, Escape clears; Enter and the button decide. A digit is for the
 * request that has the focus, or for the only one that is shown.
 */
function onKey(event) {
  const { key, target, ctrlKey, metaKey, altKey } = event;
  if (ctrlKey || metaKey || altKey || SILENT_KEYS.includes(key)) return;
  if (isField(target) || document.querySelector('dialog[open]')) return;
  const cards = document.querySelectorAll('form.approval');
  const card = target.closest?.('form.approval') ?? (cards.length === 1 ? cards[0] : null);
  const isRadio = target.matches?.('form.approval input[type=radio]');
  const isPressed = isRadio ? areDigitsKeys : target.closest?.('button, summary');
  if (key === 'Enter' || (key === ' ' && isPressed)) return;
  if (key === 'Tab' || key.startsWith('Arrow')) {
    areDigitsKeys = true;
    if (key === 'Tab' || !isRadio || card.hasChoice()) return;
    // From no selection, the browser would select the second option.
    card.select(['ArrowUp', 'ArrowLeft'].includes(key) ? -1 : 0);
    event.preventDefault();
  } else if (key === 'Escape') {
    card?.clear();
  } else if (areDigitsKeys && /^[1-9]$/.test(key) && card?.select(Number(key) - 1)) {
    event.preventDefault();
  } else if (card || !/^[1-9]$/.test(key)) {
    takeText();
    // A space would select the option that has the focus.
    if (isRadio && key === ' ') event.preventDefault();
  }
}

document.addEventListener('keydown', onKey);
document.addEventListener('pointerdown', ({ target }) => {
  if (target.closest?.('form.approval')) areDigitsKeys = true;
});
document.addEventListener('paste', ({ target }) => {
  if (!isField(target)) takeText();
});

/** Removes a card. If it had the focus, the next one gets it, or else the heading. */
function removeCard(card, heading) {
  const hadFocus = card.contains(document.activeElement);
  const next = card.nextElementSibling ?? card.parentElement.firstElementChild;
  card.remove();
  if (hadFocus) (next && next !== card ? next : heading).focus();
}

/**
 * Shows requests in a box: new ones at the end, and no more those that are decided, here or by
 * another client. `cards` are the shown ones by id. `heading` gets the focus of the last one.
 */
export function showCards(waiting, cards, { box, heading, isLinked = false }) {
  const ids = new Set(waiting.map(({ id }) => id));
  for (const [id, card] of cards) {
    if (ids.has(id)) continue;
    cards.delete(id);
    removeCard(card, heading);
  }
  for (const approval of waiting) {
    if (cards.has(approval.id)) continue;
    const card = approvalCard(approval, isLinked);
    cards.set(approval.id, card);
    box.append(card);
  }
}

customElements.define(
  'sv-approvals',
  class extends HTMLElement {
    connectedCallback() {
      this.stop = new AbortController();
      this.cards = new Map();
      this.list = h('div', { class: 'approvals', 'aria-live': 'polite' });
      this.empty = emptyNote(
        'No call needs approval.',
        'A request of any session appears here at once.',
      );
      this.heading = h('h2', { tabindex: -1 }, 'Approvals');
      fill(this, h('section', { class: 'panel' }, this.heading, this.empty, this.list));
      approvals.addEventListener('change', () => this.update(), { signal: this.stop.signal });
      this.update();
    }

    disconnectedCallback() {
      this.stop.abort();
    }

    update() {
      const waiting = [...approvals.waiting.values()];
      showCards(waiting, this.cards, { box: this.list, heading: this.heading, isLinked: true });
      this.empty.hidden = this.cards.size > 0;
    }
  },
);
