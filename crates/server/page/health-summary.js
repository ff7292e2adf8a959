// The first lines of the health view: whether all is well, and what is not; and failed runs.

import { h, table } from '/page/dom.js';
import { ago, dateTime, plural, visible } from '/page/format.js';
import { runState, runTitle, stateByPerson } from '/page/run-state.js';

/** How long failures count as recent, in milliseconds. */
const RECENT_MS = 24 * 3600 * 1000;

/** The end of a turn that a person stopped, which is no failure. */
const STOPPED_TURN = /ended early: interrupted$/;

/** Whether a run failed. One that a person stopped, or whose call a person denied, did not. */
function hasFailed({ state, error }) {
  return ['failed', 'died'].includes(state) && !['stopped', 'denied'].includes(stateByPerson(error));
}

/** Runs of the list that failed in the last day, or in which a command failed. */
export function failedRuns(runs) {
  const from = Date.now() - RECENT_MS;
  const isShown = (run) => hasFailed(run) || (run.state === 'completed' && run.failed_commands > 0);
  return runs.filter((run) => run.started_ms > from && isShown(run));
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
  const failed = runs.filter(hasFailed).length;
  const partly = runs.length - failed;
  if (failed) notes.push(`${plural(failed, 'script')} failed in the last 24 hours`);
  if (partly) notes.push(`a command failed in ${plural(partly, 'completed script')}`);
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
    h(
      'a',
      { href: `#/runs/${run.id}` },
      visible(runTitle({ id: run.id, script: run.script, firstCall: run.first_call })),
    ),
    h('span', { dir: 'auto' }, visible(run.title || run.session || '')),
    h('time', { title: dateTime(run.started_ms) }, ago(run.started_ms)),
    hasFailed(run) ? visible(run.error || run.state) : runState(run),
  ]);
  return table('Failed scripts', ['Script', 'Session', 'When', 'Error'], rows);
}
