// The runs of scripts: a list, and the selected run.

import { get, query } from '/page/api.js';
import { button, emptyNote, errorNote, every, fill, h } from '/page/dom.js';
import { ago, dateTime, duration, folderName, plural } from '/page/format.js';
import { stateLabel } from '/page/script-item.js';
import '/page/run.js';

/** How often the newest runs are read. */
const POLL_MS = 5000;
/** Runs of a page of the list. */
const PAGE_SIZE = 50;

customElements.define(
  'sv-runs',
  class extends HTMLElement {
    connectedCallback() {
      this.stop = new AbortController();
      this.limit = PAGE_SIZE;
      this.list = h('ul', { class: 'rows', 'aria-label': 'Runs' });
      this.note = h('div');
      this.more = button(
        'Show more',
        () => {
          this.limit = Math.min(500, this.limit + PAGE_SIZE);
          this.refresh();
        },
        '',
        { hidden: true },
      );
      this.detail = h('div', { class: 'detail' });
      fill(
        this,
        h(
          'section',
          { class: 'side', 'aria-label': 'List of runs' },
          h('div', { class: 'side-head' }, h('h2', null, 'Runs')),
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
        const run = document.createElement('sv-run');
        run.run = id;
        fill(this.detail, run);
      } else {
        fill(
          this.detail,
          emptyNote(
            'No run is selected.',
            'A run is one script with its calls. Select one to see what it did, and why it failed.',
          ),
        );
      }
      this.mark();
    }

    async refresh() {
      try {
        const { runs } = await get(`/runs${query({ limit: this.limit })}`, this.stop.signal);
        fill(this.note, runs.length ? null : h('p', { class: 'dim' }, 'There are no runs yet.'));
        this.more.hidden = runs.length < this.limit || this.limit >= 500;
        this.showRows(runs);
      } catch (error) {
        if (!this.stop.signal.aborted && !this.list.children.length)
          fill(this.note, errorNote(error));
      }
    }

    showRows(runs) {
      const key = JSON.stringify([runs, Math.floor(Date.now() / 30000)]);
      if (key === this.shown) return;
      this.shown = key;
      const focused = document.activeElement?.dataset?.run;
      fill(
        this.list,
        runs.map((run) =>
          h(
            'li',
            null,
            h(
              'a',
              { href: `#/runs/${run.id}`, 'data-run': run.id },
              h(
                'span',
                { class: 'row-title' },
                stateLabel(run.state),
                ' ',
                plural(run.calls, 'call'),
              ),
              h(
                'span',
                { class: 'row-facts' },
                h('span', { class: 'dim' }, folderName(run.directory)),
                run.ended_ms
                  ? h('span', { class: 'dim' }, duration(run.ended_ms - run.started_ms))
                  : null,
                h('time', { class: 'dim', title: dateTime(run.started_ms) }, ago(run.started_ms)),
                h('span', { class: 'dim id' }, run.id),
              ),
            ),
          ),
        ),
      );
      if (focused) this.list.querySelector(`[data-run="${CSS.escape(focused)}"]`)?.focus();
      this.mark();
    }

    mark() {
      for (const link of this.list.querySelectorAll('a')) {
        if (link.dataset.run === this.selected) link.setAttribute('aria-current', 'true');
        else link.removeAttribute('aria-current');
      }
    }
  },
);
