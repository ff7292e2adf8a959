// The first lines of the health view: whether all is well, and what is not; and failed runs.

import { h, table } from '/page/dom.js';
import { ago, count, dateTime, plural, visible } from '/page/format.js';
import { hasFailed, isWithFailure, runState, runTitle } from '/page/run-state.js';

/** How long failures count as recent, in milliseconds. */
const RECENT_MS = 24 * 3600 * 1000;

/** The end of a turn that a person stopped, which is no failure. */
const STOPPED_TURN = /ended early: interrupted$/;

/**
 * Runs of the list that failed in the last day, or in which a command failed; and the `period` that
 * was looked at, which is shorter if the list has only recent runs and ends at the limit.
 */
export function failedRuns(runs, limit) {
  const from = Date.now() - RECENT_MS;
  const recent = runs.filter((run) => run.started_ms > from);
  const period = recent.length < limit ? 'in the last 24 hours' : `among the last ${count(limit)}`;
  return { runs: recent.filter(isWithFailure), period };
}

/** Says whether all is well. The parts are null until they are read. */
export function summary({ checks, servers, errors, failed }) {
  if (!checks || !servers || !errors || !failed) return h('p', { class: 'dim' }, 'Checks run …');
  const { runs, period } = failed;
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
  const ended = runs.filter(hasFailed).length;
  const partly = runs.length - ended;
  if (ended) notes.push(`${plural(ended, 'script')} failed ${period}`);
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
export function failedRunTable({ runs, period }) {
  if (!runs.length) return h('p', { class: 'dim' }, `No script has failed ${period}.`);
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
