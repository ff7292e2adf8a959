// Health of the server: whether it takes requests, and its counters.

import { get, getText } from '/page/api.js';
import { errorNote, every, fill, h } from '/page/dom.js';
import { count } from '/page/format.js';

/** How often the counters are read. */
const POLL_MS = 3000;

/** Classes and words of the states of checks. */
const STATES = {
  passed: ['good', '✓ passed'],
  not_checked: ['', '– not checked'],
  warning: ['waits', '! warning'],
  failed: ['bad', '✗ failed'],
};

customElements.define(
  'sv-health',
  class extends HTMLElement {
    connectedCallback() {
      this.stop = new AbortController();
      this.tabIndex = 0;
      this.setAttribute('role', 'region');
      this.setAttribute('aria-label', 'Health');
      this.checks = h('div');
      this.counters = h('div');
      fill(
        this,
        h(
          'section',
          { class: 'panel' },
          h('h2', null, 'Health'),
          this.checks,
          h('h3', null, 'Server'),
          this.counters,
        ),
      );
      this.readChecks();
      this.readCounters();
      every(POLL_MS, this.stop.signal, () => this.readCounters());
    }

    disconnectedCallback() {
      this.stop.abort();
    }

    async readChecks() {
      fill(this.checks, h('p', { class: 'dim' }, 'Checks run …'));
      try {
        const { checks } = await get('/health', this.stop.signal);
        fill(
          this.checks,
          h(
            'div',
            { class: 'table-box', tabindex: 0, role: 'region', 'aria-label': 'Checks' },
            h(
              'table',
              null,
              h(
                'thead',
                null,
                h(
                  'tr',
                  null,
                  ['Check', 'State', 'Details'].map((name) => h('th', { scope: 'col' }, name)),
                ),
              ),
              h(
                'tbody',
                null,
                checks.map((check) =>
                  h(
                    'tr',
                    null,
                    h('th', { scope: 'row' }, check.what),
                    h(
                      'td',
                      null,
                      h(
                        'span',
                        { class: `state ${STATES[check.state][0]}` },
                        STATES[check.state][1],
                      ),
                    ),
                    h('td', null, check.details),
                  ),
                ),
              ),
            ),
          ),
        );
      } catch (error) {
        if (!this.stop.signal.aborted) fill(this.checks, errorNote(error));
      }
    }

    async readCounters() {
      try {
        const rows = readMetrics(await getText('/metrics', this.stop.signal));
        fill(
          this.counters,
          h(
            'div',
            { class: 'table-box', tabindex: 0, role: 'region', 'aria-label': 'Counters' },
            h(
              'table',
              null,
              h(
                'tbody',
                null,
                rows.map(({ help, value }) =>
                  h(
                    'tr',
                    null,
                    h('th', { scope: 'row' }, help),
                    h('td', { class: 'number' }, count(value)),
                  ),
                ),
              ),
            ),
          ),
        );
      } catch (error) {
        if (!this.stop.signal.aborted) fill(this.counters, errorNote(error));
      }
    }
  },
);

/** Reads the text format of Prometheus: one row per counter, with its description. */
function readMetrics(text) {
  const help = new Map();
  const rows = [];
  for (const line of text.split('\n')) {
    const described = line.match(/^# HELP (\S+) (.*)$/);
    if (described) help.set(described[1], described[2]);
    const value = line.match(/^([a-z_]+)(\{(.*)\})? ([\d.e+]+)$/);
    // A sum of times says nothing to a person.
    if (value && !value[1].includes('microseconds')) {
      const label = value[3]?.replace(/\w+="([^"]*)"/g, '$1');
      const text = (help.get(value[1]) ?? value[1]).replace(/\.$/, '');
      rows.push({ help: label ? `${text} (${label})` : text, value: Number(value[4]) });
    }
  }
  return rows;
}
