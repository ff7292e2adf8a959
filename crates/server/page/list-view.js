// A view with a list on one side and the selected entry on the other.

import { answerOrder, button, errorNote, every, fill, h } from '/page/dom.js';

/** Entries of a page of the list. */
const PAGE_SIZE = 50;
/** Most entries that are shown. */
const MAX_ENTRIES = 500;
/** How often the rows are shown again, because they tell how long ago something was. */
const AGE_MS = 5000;

/**
 * A subclass has a `heading`, and says how often the list is read in `pollMs`. It implements:
 * - `read(limit)`: resolves to `{ entries, hasMore, note }`; the note is shown above the list,
 * - `row(entry)`: the content of the link to an entry,
 * - `address(entry)`: where the link leads,
 * - `open(id)` and `openNothing()`: show an entry, or none, in `this.detail`,
 * - `markOf(entry)`, if a row shows more than its entry: what else it shows.
 */
export class ListView extends HTMLElement {
  /** An older answer never replaces a newer one. */
  beginRead = answerOrder();

  connectedCallback() {
    this.stop = new AbortController();
    this.limit = PAGE_SIZE;
    this.list = h('ul', { class: 'rows', 'aria-label': this.heading });
    this.note = h('div');
    this.more = button('Show more', () => this.showMore(), '', { hidden: true });
    this.detail = h('div', { class: 'detail' });
    fill(
      this,
      h(
        'section',
        { class: 'side', 'aria-label': `List of ${this.heading.toLowerCase()}` },
        h('div', { class: 'side-head' }, h('h2', null, this.heading), this.headButton?.()),
        this.search,
        this.note,
        this.list,
        this.more,
      ),
      this.detail,
    );
    this.show(this.path ?? []);
    every(this.pollMs, this.stop.signal, () => this.refresh());
  }

  disconnectedCallback() {
    this.stop.abort();
  }

  show([id]) {
    this.selected = id || null;
    this.classList.toggle('has-detail', Boolean(id));
    if (id) this.open(id);
    else this.openNothing();
    this.mark();
    this.refresh();
  }

  showMore() {
    this.limit = Math.min(MAX_ENTRIES, this.limit + PAGE_SIZE);
    this.refresh();
  }

  async refresh() {
    const isNewest = this.beginRead();
    try {
      const { entries, hasMore, note } = await this.read(this.limit);
      if (!isNewest()) return;
      fill(this.note, note ? h('p', { class: 'dim' }, note) : null);
      this.more.hidden = !hasMore || this.limit >= MAX_ENTRIES;
      this.showRows(entries);
    } catch (error) {
      if (!this.stop.signal.aborted && !this.list.children.length)
        fill(this.note, errorNote(error));
    }
  }

  showRows(entries) {
    this.entries = entries;
    const marks = entries.map((entry) => this.markOf?.(entry));
    const key = JSON.stringify([entries, marks, Math.floor(Date.now() / AGE_MS)]);
    if (key === this.shown) return;
    // A press on a row takes a moment. The next read shows the rows.
    if (this.list.matches(':active')) return;
    this.shown = key;
    const focused = document.activeElement?.dataset?.entry;
    fill(
      this.list,
      entries.map((entry) => {
        const link = { href: this.address(entry), 'data-entry': entry.id };
        const parts = this.row(entry).filter((part) => part);
        return h('li', null, h('a', link, ...parts));
      }),
    );
    if (focused) this.list.querySelector(`[data-entry="${CSS.escape(focused)}"]`)?.focus();
    this.mark();
  }

  mark() {
    for (const link of this.list.querySelectorAll('a')) {
      if (link.dataset.entry === this.selected) link.setAttribute('aria-current', 'true');
      else link.removeAttribute('aria-current');
    }
  }
}
