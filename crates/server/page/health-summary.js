// The first lines of the health view: whether all is well, and what is not; and failed runs.

import { h, table } from '/page/dom.js';
import { ago, dateTime, plural, visible } from '/page/format.js';
import { isStopped, runTitle } from '/page/script-item.js';

/** How long failures count as recent, in milliseconds. */
const RECENT_MS = 24 * 3600 * 1000;

/** The end of a turn that a person stopped, which is no failure. */
const STOPPED_TURN = /ended early: interrupted$/;

/** Runs of the list that failed in the last day. Those that a person stopped did not fail. */
export function failedRuns(runs) {
  const from = Date.now() - RECENT_MS;
  return runs.filter(
    (run) =>
      ['failed', 'died'].includes(run.state) && !isStopped(run.error) && run.started_ms > from,
  );
}

/** Says whether all is well. The parts are null until they are read. */
export function summary({ checks, servers, errors, runs }) {
  if (!checks || !servers || !runs) return h('p', { class: 'dim' }, 'Checks run …');
  const of = (list, state) => list.filter((entry) => entry.state === state);
  const recent = errors.filter(
    ({ message, at_ms: at }) => !STOPPED_TURN.test(message) && at > Date.now() - RECENT_MS,
  );
  const broken = [
    ...of(checks, 'failed').map(({ what }) => `the check “${what}” failed`),
    ...of(servers, 'failed').map(({ name }) => `the MCP server ${name} failed`),
  ];
  const notes = of(checks, 'warning').map(({ what }) => `“${what}” has a warning`);
  if (recent.length) notes.push(`${plural(recent.length, 'turn')} ended with an error`);
  if (runs.length) notes.push(`${plural(runs.length, 'script')} failed in the last 24 hours`);
  const [kind, text] = broken.length
    ? ['error', `Something does not work: ${broken.join(', ')}.`]
    : ['good', 'All parts work.'];
  return h(
    'div',
    { class: `notice ${kind}` },
    h('p', null, h('strong', null, text)),
    notes.length ? h('p', null, `Worth a look: ${notes.join(', ')}.`) : null,
  );
}

/** Failed runs as a table. */
export function failedRunTable(runs) {
  if (!runs.length) return h('p', { class: 'dim' }, 'No script has failed in the last 24 hours.');
  const rows = runs.map((run) => [
    h('a', { href: `#/runs/${run.id}` }, visible(runTitle(run.id, run.script ?? ''))),
    h('span', { dir: 'auto' }, visible(run.title || run.session || '')),
    h('time', { title: dateTime(run.started_ms) }, ago(run.started_ms)),
    visible(run.error || run.state),
  ]);
  return table('Failed scripts', ['Script', 'Session', 'When', 'Error'], rows);
}
