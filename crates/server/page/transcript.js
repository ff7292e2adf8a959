// The transcript of a session, windowed: only items near the visible part have elements.

import { changedTurn } from '/page/changes.js';
import { add, button, fill, h } from '/page/dom.js';
import { visible } from '/page/format.js';
import { itemElement, openElement } from '/page/item.js';
import { showRecalled } from '/page/recalled.js';

/** Items of a chunk, which appears and disappears as a whole. */
const CHUNK_ITEMS = 40;
/** Assumed height of an item that was never shown, in pixels. */
const ITEM_HEIGHT = 110;
/** Chunks within this distance of the visible part have elements. */
const MARGIN = '1200px 0px';
/** Nearer than this to the end, the transcript follows new items, in pixels. */
const END_DISTANCE = 60;

customElements.define(
  'sv-transcript',
  class extends HTMLElement {
    /** Shows a model until the element is removed. */
    connectedCallback() {
      this.chunks = [];
      this.open = new Map();
      this.updates = new Map();
      this.isAtEnd = true;
      this.list = h('div', { class: 'chunks' });
      this.tail = h('div', { class: 'tail' });
      this.extra = h('div', { class: 'tail-extra' });
      /** Approval requests, which the session puts here. */
      this.asked = h('div', { class: 'asked', 'aria-live': 'polite' });
      this.inner = h(
        'div',
        { class: 'transcript-inner' },
        this.list,
        this.tail,
        this.extra,
        this.asked,
      );
      this.jump = button('Newest ↓', () => this.toEnd(), 'jump', { hidden: true });
      this.tabIndex = 0;
      this.setAttribute('role', 'region');
      this.setAttribute('aria-label', 'Transcript');
      fill(this, this.inner, this.jump);
      this.observer = new IntersectionObserver((changes) => this.window(changes), {
        root: this,
        rootMargin: MARGIN,
      });
      this.resizes = new ResizeObserver(() => {
        if (this.isAtEnd) this.follow();
        else if (this.distanceToEnd >= END_DISTANCE) this.showJump();
      });
      this.resizes.observe(this.inner);
      this.resizes.observe(this);
      this.addEventListener('scroll', () => this.scrolled(), { passive: true });
      // What a person presses stays below the pointer.
      this.released = new AbortController();
      const { signal } = this.released;
      this.inner.addEventListener('pointerdown', () => (this.isPressed = true));
      for (const end of ['pointerup', 'pointercancel'])
        window.addEventListener(end, () => requestAnimationFrame(() => this.release()), { signal });
      // What a person opens stays where it is.
      this.inner.addEventListener('click', ({ target }) => {
        if (target.closest('summary') && !target.closest('.asked')) this.isAtEnd = false;
      });
      const { model } = this;
      model.addEventListener('items', () => this.showItems());
      model.addEventListener('live', () => this.showLive());
      model.addEventListener('turn', () => this.showLive());
      model.addEventListener('notes', () => this.showNotes());
      model.addEventListener('script', ({ detail }) => this.showScript(detail));
      this.showItems();
      this.showLive();
    }

    disconnectedCallback() {
      this.observer.disconnect();
      this.resizes.disconnect();
      this.released.abort();
    }

    /** How much is below the visible part, in pixels. */
    get distanceToEnd() {
      return this.scrollHeight - this.scrollTop - this.clientHeight;
    }

    scrolled() {
      // A change of the height also scrolls; only a person moves up.
      if (this.distanceToEnd < END_DISTANCE) this.isAtEnd = true;
      else if (this.scrollTop < (this.lastTop ?? 0)) this.isAtEnd = false;
      this.lastTop = this.scrollTop;
      this.showJump();
    }

    showJump() {
      this.jump.hidden = this.isAtEnd;
      const text = this.asked.childElementCount ? 'Needs your decision ↓' : 'Newest ↓';
      if (this.jump.textContent !== text) this.jump.textContent = text;
    }

    follow() {
      if (!this.isPressed) this.toEnd();
    }

    release() {
      this.isPressed = false;
      if (this.isAtEnd) this.toEnd();
    }

    toEnd() {
      this.isAtEnd = true;
      this.jump.hidden = true;
      this.scrollTop = this.scrollHeight;
      this.lastTop = this.scrollTop;
    }

    /** Creates chunks for new items, and extends the last shown one. */
    showItems() {
      const { model } = this;
      const needed = Math.ceil(model.total / CHUNK_ITEMS);
      while (this.chunks.length < needed) {
        const element = h('div', { class: 'chunk' });
        const chunk = { at: this.chunks.length, element, shown: 0, isNear: false };
        element.chunk = chunk;
        this.chunks.push(chunk);
        this.list.append(element);
        this.setHeight(chunk);
        this.observer.observe(element);
      }
      for (const chunk of this.chunks.slice(-2)) {
        if (chunk.isNear) this.showChunk(chunk);
        else this.setHeight(chunk);
      }
    }

    /** Reserves the height of a chunk without elements. */
    setHeight(chunk) {
      if (chunk.shown) return;
      const items = Math.min(CHUNK_ITEMS, this.model.total - chunk.at * CHUNK_ITEMS);
      chunk.element.style.height = `${chunk.height ?? items * ITEM_HEIGHT}px`;
    }

    window(changes) {
      for (const { target, isIntersecting } of changes) {
        const { chunk } = target;
        chunk.isNear = isIntersecting;
        if (isIntersecting) this.showChunk(chunk);
        else this.hideChunk(chunk);
      }
    }

    async showChunk(chunk) {
      const { model } = this;
      const from = chunk.at * CHUNK_ITEMS;
      const to = Math.min(model.total, from + CHUNK_ITEMS);
      try {
        // The item before tells whether a turn ends there.
        await model.load(Math.max(0, from - 1), to);
      } catch {
        return;
      }
      if (!chunk.isNear || !this.isConnected) return;
      for (let at = from + chunk.shown; at < to && model.items[at]; at += 1) {
        const element = this.itemElement(model.items[at]);
        chunk.element.append(element);
        this.addNotes(element);
        chunk.shown += 1;
      }
      if (chunk.shown) chunk.element.style.height = '';
    }

    hideChunk(chunk) {
      if (!chunk.shown) return;
      chunk.height = chunk.element.offsetHeight;
      chunk.shown = 0;
      for (const element of chunk.element.children) this.updates.delete(element.dataset.script);
      chunk.element.replaceChildren();
      this.setHeight(chunk);
    }

    itemElement({ item, number, turn }) {
      const { element, update } = itemElement(item, this.model);
      if (number) {
        element.dataset.number = number;
        element.dataset.turn = turn;
      }
      if (item.type === 'script_tool_call') {
        element.dataset.script = item.id;
        this.updates.set(item.id, update);
      }
      return element;
    }

    /**
     * Before the first item of a turn, says how the turn before it ended and what it changed; after
     * it, what the memory added to the prompt.
     */
    addNotes(element) {
      const { model } = this;
      const at = Number(element.dataset.number) - 1;
      const [before, own] = [model.items[at - 1]?.turn, model.items[at].turn];
      if (before === own) return;
      let first = element;
      const files = model.changed.get(before);
      if (first.previousElementSibling?.dataset.changed) first = first.previousElementSibling;
      else if (files) {
        const changed = changedTurn(model.session, { turn: before, files });
        first.before(changed);
        first = changed;
      }
      const end = turnEnd(model.ends.get(before));
      if (end && !first.previousElementSibling?.dataset.ended) {
        end.dataset.ended = before;
        first.before(end);
      }
      const recalled = model.recalled.get(own);
      if (recalled) showRecalled(element, own, recalled);
    }

    /** Adds the notes about turns that were read after their items. */
    showNotes() {
      for (const element of this.list.querySelectorAll('[data-number]')) this.addNotes(element);
      this.showTurn();
    }

    showScript(id) {
      this.updates.get(id)?.();
      this.showTurn();
    }

    /** Shows the items of events that are not stored items yet, and how the turn stands. */
    showLive() {
      const { model } = this;
      const open = new Map();
      const elements = model.live.map((entry) => {
        let shown = this.open.get(entry);
        if (!shown)
          shown = entry.isOpen ? openElement(entry.item) : { element: this.itemElement(entry) };
        open.set(entry, shown);
        if (entry.isOpen && shown.text !== entry.text) {
          shown.text = entry.text;
          shown.set(entry.text);
        }
        return shown.element;
      });
      this.open = open;
      const now = [...this.tail.children];
      if (elements.length !== now.length || elements.some((element, at) => element !== now[at])) {
        fill(this.tail, elements);
      }
      this.showTurn();
    }

    showTurn() {
      const { model } = this;
      const { state, end } = model.turn;
      const parts = model.notices.map((text) => h('p', { class: 'notice' }, visible(text)));
      const last = model.items[model.total - 1]?.turn;
      // If there is a later turn, the transcript has the end at its place.
      const ended = last > model.turn.number ? null : turnEnd(end);
      if (end?.error) ended?.setAttribute('role', 'alert');
      parts.push(ended);
      const files = state !== 'running' && model.changed.get(last);
      if (files) parts.push(changedTurn(model.session, { turn: last, files }));
      const isScriptRunning = [...model.scripts.values()].some(
        (script) => script.status === 'running',
      );
      const isAsking = state === 'running' && !model.live.length && !isScriptRunning;
      if (isAsking) parts.push(h('p', { class: 'dim' }, 'The model works …'));
      const text = JSON.stringify([
        model.notices,
        model.turn,
        last,
        files,
        isAsking,
      ]);
      if (text === this.shownTurn) return;
      this.shownTurn = text;
      this.extra.replaceChildren();
      add(this.extra, parts);
    }
  },
);

/** How a turn ended, if the model did not finish its answer. */
function turnEnd(end) {
  const { error, hint, finish_reason: reason } = end ?? {};
  if (error) {
    return h(
      'div',
      { class: 'notice error' },
      h('p', null, visible(`The turn failed: ${error.message}`)),
      hint ? h('p', { class: 'hint' }, visible(`hint: ${hint}`)) : null,
    );
  }
  if (!reason || reason === 'stop') return null;
  if (reason === 'interrupted') return h('p', { class: 'dim' }, 'The turn was stopped.');
  return h('p', { class: 'notice' }, `The turn ended: ${reason.replaceAll('_', ' ')}.`);
}
