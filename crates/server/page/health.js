// Health of the server: whether it takes requests, and its counters.

import { get, getText } from '/page/api.js';
import { errorNote, every, fill, h } from '/page/dom.js';
import { count } from '/page/format.js';

/** How often the counters are read. */
const POLL_MS = 3000;

customElements.define('sv-health', class extends HTMLElement {
  connectedCallback() {
    this.stop = new AbortController();
    this.checks = h('div');
    this.counters = h('div');
    fill(this, h('section', { class: 'panel' }, h('h2', null, 'Health'), this.checks,
      h('h3', null, 'Server'), this.counters));
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
      fill(this.checks, h('div', { class: 'table-box' }, h('table', null,
        h('thead', null, h('tr', null, ['Check', 'State', 'Details'].map((name) => h('th', { scope: 'col' }, name)))),
        h('tbody', null, checks.map((check) => h('tr', null,
          h('th', { scope: 'row' }, check.what),
          h('td', null, h('span', { class: check.ok ? 'state good' : 'state bad' }, check.ok ? '✓ good' : '✗ problem')),
          h('td', null, check.details)))))));
    } catch (error) {
      if (!this.stop.signal.aborted) fill(this.checks, errorNote(error));
    }
  }

  async readCounters() {
    try {
      const rows = readMetrics(await getText('/metrics', this.stop.signal));
      fill(this.counters, h('div', { class: 'table-box' }, h('table', null,
        h('tbody', null, rows.map(({ help, value }) => h('tr', null,
          h('th', { scope: 'row' }, help), h('td', { class: 'number' }, count(value))))))));
    } catch (error) {
      if (!this.stop.signal.aborted) fill(this.counters, errorNote(error));
    }
  }
});

/** Reads the text format of Prometheus: one row per counter, with its description. */
function readMetrics(text) {
  const help = new Map();
  const rows = [];
  for (const line of text.split('\n')) {
    const described = line.match(/^# HELP (\S+) (.*)$/);
    if (described) help.set(described[1], described[2]);
    const value = line.match(/^([a-z_]+)(\{(.*)\})? ([\d.e+]+)$/);
    if (value) {
      const label = value[3]?.replace(/\w+="([^"]*)"/g, '$1');
      const text = (help.get(value[1]) ?? value[1]).replace(/\.$/, '');
      rows.push({ help: label ? `${text} (${label})` : text, value: Number(value[4]) });
    }
  }
  return rows;
}
