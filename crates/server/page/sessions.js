// The sessions: a list with search, and the selected session next to it.

import { get, query } from '/page/api.js';
import { button, debounce, emptyNote, errorNote, every, fill, h } from '/page/dom.js';
import { ago, dateTime, folderName, visible } from '/page/format.js';
import { openNewSession } from '/page/new-session.js';
import '/page/session.js';

/** How often the list is read. */
const POLL_MS = 4000;
/** Sessions of a page of the list. */
const PAGE_SIZE = 50;

customElements.define(
  'sv-sessions',
  class extends HTMLElement {
    connectedCallback() {
      this.stop = new AbortController();
      this.limit = PAGE_SIZE;
      this.search = h('input', {
        type: 'search',
        'aria-label': 'Search sessions by title',
        placeholder: 'Search titles',
        oninput: debounce(() => this.refresh(), 200),
      });
      this.list = h('ul', { class: 'rows', 'aria-label': 'Sessions' });
      this.more = button(
        'Show more',
        () => {
          this.limit = Math.min(500, this.limit + PAGE_SIZE);
          this.refresh();
        },
        '',
        { hidden: true },
      );
      this.note = h('div');
      this.detail = h('div', { class: 'detail' });
      fill(
        this,
        h(
          'section',
          { class: 'side', 'aria-label': 'List of sessions' },
          h(
            'div',
            { class: 'side-head' },
            h('h2', null, 'Sessions'),
            button('New session', () => openNewSession(), 'primary'),
          ),
          this.search,
          this.note,
          this.list,
          this.more,
        ),
        this.detail,
      );
      this.show(this.path ?? []);
      this.refresh();
      every(POLL_MS, this.stop.signal, () => this.refresh());
    }

    disconnectedCallback() {
      this.stop.abort();
    }

    show([id]) {
      this.selected = id || null;
      this.classList.toggle('has-detail', Boolean(id));
      if (id) {
        if (this.detail.firstElementChild?.session !== id) {
          const session = document.createElement('sv-session');
          session.session = id;
          fill(this.detail, session);
        }
      } else {
        fill(
          this.detail,
          emptyNote(
            'No session is selected.',
            'Select a session to see what it does now, or create one.',
            button('New session', () => openNewSession(), 'primary'),
          ),
        );
      }
      this.mark();
      this.refresh();
    }

    async refresh() {
      const path = `/sessions${query({ title: this.search.value.trim(), limit: this.limit })}`;
      try {
        const { sessions, next } = await get(path, this.stop.signal);
        fill(
          this.note,
          sessions.length || this.stop.signal.aborted
            ? null
            : h(
                'p',
                { class: 'dim' },
                this.search.value ? 'No title contains this text.' : 'There are no sessions yet.',
              ),
        );
        this.more.hidden = !next || this.limit >= 500;
        this.showRows(sessions);
      } catch (error) {
        if (!this.stop.signal.aborted && !this.list.children.length)
          fill(this.note, errorNote(error));
      }
    }

    showRows(sessions) {
      const key = JSON.stringify([sessions, Math.floor(Date.now() / 30000)]);
      if (key === this.shown) return;
      this.shown = key;
      const focused = document.activeElement?.dataset?.session;
      fill(
        this.list,
        sessions.map((session) => {
          const isBusy = session.state === 'busy';
          // The message whose turn runs is not answered either.
          const queued = session.queued - (isBusy ? 1 : 0);
          return h(
            'li',
            null,
            h(
              'a',
              { href: `#/sessions/${session.id}`, 'data-session': session.id },
              h('span', { class: 'row-title', dir: 'auto' }, visible(session.title || session.id)),
              h(
                'span',
                { class: 'row-facts' },
                h('span', { class: isBusy ? 'state active' : 'state' }, isBusy ? 'busy' : 'idle'),
                queued > 0 ? h('span', { class: 'tag' }, `${queued} queued`) : null,
                h('span', { class: 'dim' }, folderName(session.directory)),
                session.environment ? h('span', { class: 'dim' }, session.environment) : null,
                h('time', { class: 'dim', title: dateTime(session.used_ms) }, ago(session.used_ms)),
              ),
            ),
          );
        }),
      );
      if (focused) this.list.querySelector(`[data-session="${CSS.escape(focused)}"]`)?.focus();
      this.mark();
    }

    mark() {
      for (const link of this.list.querySelectorAll('a')) {
        if (link.dataset.session === this.selected) link.setAttribute('aria-current', 'true');
        else link.removeAttribute('aria-current');
      }
    }
  },
);
