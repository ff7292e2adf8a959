// Health of the server: checks of the machine, MCP servers, the queue, recent errors, and counters.

import { get, getText, query } from '/page/api.js';
import { answerOrder, errorNote, every, field, fill, h, marked, table } from '/page/dom.js';
import { folderList } from '/page/folders.js';
import { ago, authorName, count, dateTime, plural, visible } from '/page/format.js';
import { failedRunTable, failedRuns, summary } from '/page/health-summary.js';

/** How often the state of the server is read. */
const POLL_MS = 3000;
/** Runs among which failed ones are looked for. */
const MAX_RUNS = 100;
/** Parts of the view. */
const PARTS = ['summary', 'folders', 'checks', 'servers', 'queue', 'errors', 'runs', 'counters'];
/** Names of checks that mean something else on the page. */
const CHECK_NAMES = {
  memory: 'memory of the machine',
  deadline: 'time limit of scripts',
  realm: 'isolation of scripts',
};

/** Classes and words of the states of checks. */
const CHECK_STATES = {
  passed: ['good', '✓ passed'],
  not_checked: ['', '– not checked'],
  warning: ['waits', '! warning'],
  failed: ['bad', '✗ failed'],
};
/** Classes and words of the states of MCP servers. */
const SERVER_STATES = {
  ready: ['good', '✓ ready'],
  starting: ['active', '… starting'],
  failed: ['bad', '✗ failed'],
  'not started': ['', '– not started'],
  disabled: ['', '– disabled'],
};
/** Classes and words of the states of messages. */
const MESSAGE_STATES = {
  running: ['active', 'its turn runs'],
  waiting_to_run: ['waits', 'its turn waits to start'],
  waiting_for_server: ['waits', 'no running server serves its folder'],
  waiting_for_turn: ['waits', 'waits for the turn before it'],
};

function stateCell([kind, word]) {
  return h('span', { class: `state ${kind}` }, word);
}

customElements.define(
  'sv-health',
  class extends HTMLElement {
    connectedCallback() {
      this.stop = new AbortController();
      this.tabIndex = 0;
      this.setAttribute('role', 'region');
      this.setAttribute('aria-label', 'Health');
      const { signal } = this.stop;
      const { select, ready } = folderList({ onchange: () => this.readAll() }, signal);
      this.folder = select;
      this.parts = {};
      this.beginRead = {};
      for (const name of PARTS) {
        this.beginRead[name] = answerOrder();
        this.parts[name] = h('div', { 'data-part': name });
      }
      this.read = { checks: null, servers: null, errors: null, failed: null };
      const { summary, folders, checks, servers, queue, errors, runs, counters } = this.parts;
      // The parts appear together, and the checks, which take longest, are the last one: nothing
      // moves after it was shown.
      this.content = [
        h('h3', null, 'MCP servers'),
        servers,
        h('h3', null, 'Queue'),
        queue,
        h('h3', null, 'Failed turns'),
        errors,
        h('h3', null, 'Scripts with failures'),
        runs,
        h('h3', null, 'Server'),
        counters,
        h('h3', null, 'Machine'),
        checks,
      ];
      this.content.forEach((element) => {
        element.hidden = true;
      });
      const heading = h('h2', null, 'Health');
      fill(this, h('section', { class: 'panel' }, heading, folders, summary, this.content));
      this.start(ready);
    }

    disconnectedCallback() {
      this.stop.abort();
    }

    async start(ready) {
      const { signal } = this.stop;
      try {
        const workspaces = await ready;
        if (workspaces.length > 1) fill(this.parts.folders, field('Folder', this.folder));
      } catch (error) {
        if (!signal.aborted) fill(this.parts.folders, errorNote(error));
        return;
      }
      this.readAll();
      every(POLL_MS, signal, () => {
        this.readStatus();
        this.readRuns();
        this.readCounters();
      });
    }

    async readAll() {
      this.read.checks = null;
      this.showSummary();
      this.readChecks();
      await Promise.all([this.readStatus(), this.readRuns(), this.readCounters()]);
      this.content.forEach((element) => {
        element.hidden = false;
      });
    }

    get workspaceQuery() {
      return query({ workspace: this.folder.value });
    }

    /**
     * Shows a part, or why it cannot be read. What is shown already stays. An answer for a folder
     * that is not selected any more is ignored.
     */
    async show(part, read) {
      const folder = this.folder.value;
      const isOver = () => this.stop.signal.aborted || folder !== this.folder.value;
      const isNewest = this.beginRead[part]();
      try {
        const { key = '', nodes, read: values } = await read();
        if (isOver() || !isNewest()) return;
        this.fillPart(part, key, nodes);
        Object.assign(this.read, values);
        this.showSummary();
      } catch (error) {
        if (!isOver() && isNewest()) this.fillPart(part, '', errorNote(error));
      }
    }

    /** Fills a part, unless it shows what has this key. Without a key, it is always filled. */
    fillPart(part, key, nodes) {
      const element = this.parts[part];
      if (key && element.dataset.key === key) return;
      element.dataset.key = key;
      fill(element, nodes);
    }

    showSummary() {
      const node = summary(this.read);
      if (node.textContent !== this.parts.summary.textContent) fill(this.parts.summary, node);
    }

    readRuns() {
      return this.show('runs', async () => {
        const { runs } = await get(`/runs?limit=${MAX_RUNS}`, this.stop.signal);
        const failed = failedRuns(runs, MAX_RUNS);
        const minute = Math.floor(Date.now() / 60_000);
        return { key: JSON.stringify([failed, minute]), nodes: failedRunTable(failed), read: { failed } };
      });
    }

    readChecks() {
      fill(this.parts.checks, h('p', { class: 'dim' }, 'Checks run …'));
      return this.show('checks', async () => {
        const { checks } = await get(`/health${this.workspaceQuery}`, this.stop.signal);
        const rows = checks.map((check) => [
          CHECK_NAMES[check.what] ?? check.what,
          stateCell(CHECK_STATES[check.state]),
          marked(visible(check.details)),
        ]);
        return { nodes: table('Checks', ['Check', 'State', 'Details'], rows), read: { checks } };
      });
    }

    readStatus() {
      const status = get(`/status${this.workspaceQuery}`, this.stop.signal);
      const servers = this.show('servers', async () => {
        const { mcp_servers: list } = await status;
        return { key: JSON.stringify(list), nodes: serverTable(list), read: { servers: list } };
      });
      const queued = this.show('queue', async () => {
        const { queue, max_running_turns: most } = await status;
        return { key: JSON.stringify(queue), nodes: queueTable(queue, most) };
      });
      const failed = this.show('errors', async () => {
        const { errors } = await status;
        const minute = Math.floor(Date.now() / 60_000);
        return { key: JSON.stringify([errors, minute]), nodes: errorTable(errors), read: { errors } };
      });
      return Promise.all([servers, queued, failed]);
    }

    readCounters() {
      return this.show('counters', async () => {
        const counters = readMetrics(await getText('/metrics', this.stop.signal));
        const rows = counters.map(({ help, value }) => [
          help,
          h('span', { class: 'number' }, count(value)),
        ]);
        return { key: JSON.stringify(counters), nodes: table('Counters', null, rows) };
      });
    }
  },
);

function serverTable(servers) {
  if (!servers.length) return h('p', { class: 'dim' }, 'No MCP server is configured.');
  const rows = servers.map(({ name, state, tools, error, hint }) => [
    name,
    stateCell(SERVER_STATES[state] ?? ['', state]),
    tools ? String(tools) : '',
    [
      error ? h('p', { class: state === 'failed' ? 'bad' : null }, marked(visible(error))) : null,
      hint ? h('p', { class: 'hint' }, marked(`hint: ${visible(hint)}`)) : null,
    ],
  ]);
  return table('MCP servers', ['Server', 'State', 'Tools', 'Last error'], rows);
}

function queueTable(queue, most) {
  const running = queue.filter(({ state }) => state === 'running').length;
  const waiting = queue.length - running;
  const sum = `${plural(running, 'turn')} ${running === 1 ? 'runs' : 'run'}, ${plural(waiting, 'message')} ${waiting === 1 ? 'waits' : 'wait'}. At most ${plural(most, 'turn')} can run at once; others wait.`;
  const rows = queue.map(({ session, title, text, author, state }) => [
    h('a', { href: `#/sessions/${session}`, dir: 'auto' }, visible(title || session)),
    stateCell(MESSAGE_STATES[state]),
    authorName(author),
    h('span', { dir: 'auto' }, visible(text)),
  ]);
  return [
    h('p', { class: 'dim' }, sum),
    queue.length ? table('Queue', ['Session', 'State', 'Sent by', 'Message'], rows) : null,
  ];
}

function errorTable(errors) {
  if (!errors.length) return h('p', { class: 'dim' }, 'No turn has failed.');
  const rows = errors.map(({ session, title, turn, message, at_ms: at }) => [
    h('a', { href: `#/sessions/${session}`, dir: 'auto' }, visible(title || session)),
    turn ? String(turn) : '',
    h('time', { title: dateTime(at) }, ago(at)),
    h('span', { dir: 'auto' }, visible(message)),
  ]);
  return table('Recent errors', ['Session', 'Turn', 'When', 'Error'], rows);
}

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
