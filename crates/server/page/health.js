// Health of the server: checks of the machine, MCP servers, the queue, recent errors, and counters.

import { get, getText, query } from '/page/api.js';
import { errorNote, every, field, fill, h, table } from '/page/dom.js';
import { ago, count, dateTime, plural, visible } from '/page/format.js';

/** How often the state of the server is read. */
const POLL_MS = 3000;

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
      this.folder = h('select', { onchange: () => this.readAll() });
      this.parts = {};
      for (const name of ['folders', 'checks', 'servers', 'queue', 'errors', 'counters']) {
        this.parts[name] = h('div', { 'data-part': name });
      }
      const { folders, checks, servers, queue, errors, counters } = this.parts;
      fill(
        this,
        h(
          'section',
          { class: 'panel' },
          h('h2', null, 'Health'),
          folders,
          checks,
          h('h3', null, 'MCP servers'),
          servers,
          h('h3', null, 'Queue'),
          queue,
          h('h3', null, 'Recent errors'),
          errors,
          h('h3', null, 'Server'),
          counters,
        ),
      );
      this.start();
    }

    disconnectedCallback() {
      this.stop.abort();
    }

    async start() {
      const { signal } = this.stop;
      try {
        const { workspaces } = await get('/workspaces', signal);
        fill(
          this.folder,
          workspaces.map((path) => h('option', { value: path }, path)),
        );
        if (workspaces.length > 1) fill(this.parts.folders, field('Folder', this.folder));
      } catch (error) {
        if (!signal.aborted) fill(this.parts.folders, errorNote(error));
        return;
      }
      this.readAll();
      every(POLL_MS, signal, () => {
        this.readStatus();
        this.readCounters();
      });
    }

    readAll() {
      this.readChecks();
      this.readStatus();
      this.readCounters();
    }

    get workspaceQuery() {
      return query({ workspace: this.folder.value });
    }

    /** Shows a part, or why it cannot be read. What is shown already stays. */
    async show(part, read) {
      const element = this.parts[part];
      try {
        const content = await read();
        const key = content.key ?? '';
        if (key && element.dataset.key === key) return;
        element.dataset.key = key;
        fill(element, content.nodes);
      } catch (error) {
        if (!this.stop.signal.aborted) fill(element, errorNote(error));
      }
    }

    readChecks() {
      fill(this.parts.checks, h('p', { class: 'dim' }, 'Checks run …'));
      const folder = this.folder.value;
      return this.show('checks', async () => {
        const { checks } = await get(`/health${this.workspaceQuery}`, this.stop.signal);
        if (folder !== this.folder.value) throw new Error('another folder was selected');
        const rows = checks.map((check) => [
          check.what,
          stateCell(CHECK_STATES[check.state]),
          check.details,
        ]);
        return { nodes: table('Checks', ['Check', 'State', 'Details'], rows) };
      });
    }

    async readStatus() {
      let status;
      try {
        status = await get(`/status${this.workspaceQuery}`, this.stop.signal);
      } catch (error) {
        if (!this.stop.signal.aborted) fill(this.parts.servers, errorNote(error));
        return;
      }
      const { mcp_servers: servers, queue, errors, max_running_turns: most } = status;
      this.show('servers', () => ({ key: JSON.stringify(servers), nodes: serverTable(servers) }));
      this.show('queue', () => ({ key: JSON.stringify(queue), nodes: queueTable(queue, most) }));
      const minute = Math.floor(Date.now() / 60_000);
      const key = JSON.stringify([errors, minute]);
      this.show('errors', () => ({ key, nodes: errorTable(errors) }));
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
      error ? h('p', { class: state === 'failed' ? 'bad' : null }, visible(error)) : null,
      hint ? h('p', { class: 'hint' }, `hint: ${visible(hint)}`) : null,
    ],
  ]);
  return table('MCP servers', ['Server', 'State', 'Tools', 'Last error'], rows);
}

function queueTable(queue, most) {
  const running = queue.filter(({ state }) => state === 'running').length;
  const waiting = queue.length - running;
  const sum = `${plural(running, 'turn')} ${running === 1 ? 'runs' : 'run'}, ${plural(waiting, 'message')} ${waiting === 1 ? 'waits' : 'wait'}. Of a token, ${plural(most, 'turn')} can run at once.`;
  const rows = queue.map(({ session, title, text, author, state }) => [
    h('a', { href: `#/sessions/${session}`, dir: 'auto' }, visible(title || session)),
    stateCell(MESSAGE_STATES[state]),
    visible(author),
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
