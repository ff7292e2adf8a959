// The sessions: a list with search, and the selected session next to it.

import { get, query } from '/page/api.js';
import { approvals } from '/page/approval-store.js';
import { button, debounce, emptyNote, fill, h } from '/page/dom.js';
import { ago, dateTime, folderName, visible } from '/page/format.js';
import { ListView } from '/page/list-view.js';
import { openNewSession } from '/page/new-session.js';
import '/page/session.js';

customElements.define(
  'sv-sessions',
  class extends ListView {
    heading = 'Sessions';
    pollMs = 4000;
    search = h('input', {
      type: 'search',
      'aria-label': 'Search sessions by title',
      placeholder: 'Search titles',
      oninput: debounce(() => this.refresh(), 200),
    });

    headButton() {
      return button('New session', () => openNewSession(), 'primary');
    }

    connectedCallback() {
      super.connectedCallback();
      const { signal } = this.stop;
      // A request appears at once, not with the next read of the list.
      const update = () => {
        if (this.entries) this.showRows(this.entries);
        this.refresh();
      };
      approvals.addEventListener('change', update, { signal });
      this.addEventListener('session-changed', () => this.refresh(), { signal });
    }

    markOf(session) {
      return approvals.ofSession(session.id).length;
    }

    open(id) {
      if (this.detail.firstElementChild?.session === id) return;
      const session = document.createElement('sv-session');
      session.session = id;
      fill(this.detail, session);
    }

    openNothing() {
      fill(
        this.detail,
        emptyNote(
          'No session is selected.',
          'Select a session to see what it does now, or create one.',
          this.headButton(),
        ),
      );
    }

    async read(limit) {
      const title = this.search.value.trim();
      const path = `/sessions${query({ title, limit })}`;
      const { sessions, next } = await get(path, this.stop.signal);
      const none = title ? 'No title contains this text.' : 'There are no sessions yet.';
      return { entries: sessions, hasMore: Boolean(next), note: sessions.length ? null : none };
    }

    address(session) {
      return `#/sessions/${session.id}`;
    }

    row(session) {
      const isBusy = session.state === 'busy';
      // The message whose turn runs is not answered either.
      const queued = session.queued - (isBusy ? 1 : 0);
      const [kind, word] = stateOf(session);
      return [
        h('span', { class: 'row-title', dir: 'auto' }, visible(session.title || session.id)),
        h(
          'span',
          { class: 'row-facts' },
          h('span', { class: `state ${kind}` }, word),
          queued > 0 ? h('span', { class: 'tag' }, `${queued} queued`) : null,
          h('span', { class: 'dim' }, folderName(session.directory)),
          session.environment ? h('span', { class: 'dim' }, visible(session.environment)) : null,
          h('time', { class: 'dim', title: dateTime(session.used_ms) }, ago(session.used_ms)),
        ),
      ];
    }
  },
);

/** The class and the words of what a session does now. */
function stateOf({ id, state, queued }) {
  if (approvals.ofSession(id).length) return ['waits', 'waits for approval'];
  if (state === 'unserved' && queued) return ['waits', 'waits: no server serves its folder'];
  return state === 'busy' || queued ? ['active', 'works'] : ['', 'idle'];
}
