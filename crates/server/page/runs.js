// The runs of scripts: a list, and the selected run.

import { get, query } from '/page/api.js';
import { emptyNote, fill, h } from '/page/dom.js';
import { ago, dateTime, duration, folderName, plural, visible } from '/page/format.js';
import { ListView } from '/page/list-view.js';
import { isWithFailure, runState, runTitle } from '/page/run-state.js';
import '/page/run.js';

/** Runs among which those with failures are looked for. */
const MAX_SEARCHED = 500;

customElements.define(
  'sv-runs',
  class extends ListView {
    heading = 'Runs';
    pollMs = 5000;
    search = h(
      'select',
      { 'aria-label': 'Which runs', onchange: () => this.refresh() },
      h('option', { value: '' }, 'All runs'),
      h('option', { value: 'failed' }, 'With failures'),
    );

    open(id) {
      const run = document.createElement('sv-run');
      run.run = id;
      run.takesFocus = true;
      fill(this.detail, run);
    }

    openNothing() {
      fill(
        this.detail,
        emptyNote(
          'No run is selected.',
          'A run is one script with its calls. Select one to see what it did, and why it failed.',
        ),
      );
    }

    async read(limit) {
      const isSearch = this.search.value === 'failed';
      const path = `/runs${query({ limit: isSearch ? MAX_SEARCHED : limit })}`;
      const { runs } = await get(path, this.stop.signal);
      if (!runs.length) return { entries: runs, hasMore: false, note: 'There are no runs yet.' };
      if (!isSearch) return { entries: runs, hasMore: runs.length >= limit, note: null };
      const failed = runs.filter(isWithFailure);
      const note = `${plural(failed.length, 'run')} with failures among the last ${plural(runs.length, 'run')}.`;
      return { entries: failed.slice(0, limit), hasMore: failed.length > limit, note };
    }

    address(run) {
      return `#/runs/${run.id}`;
    }

    row(run) {
      const time = run.ended_ms ? duration(run.ended_ms - run.started_ms) : null;
      return [
        h('span', { class: 'row-title' }, visible(runTitle({ ...run, firstCall: run.first_call }))),
        run.title ? h('span', { class: 'row-about', dir: 'auto' }, visible(run.title)) : null,
        h(
          'span',
          { class: 'row-facts' },
          runState(run),
          h('span', { class: 'dim' }, plural(run.calls, 'call')),
          h('span', { class: 'dim' }, folderName(run.directory)),
          time ? h('span', { class: 'dim' }, time) : null,
          h('time', { class: 'dim', title: dateTime(run.started_ms) }, ago(run.started_ms)),
        ),
      ];
    }
  },
);
