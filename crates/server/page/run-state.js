// How runs and calls are named, and how their states are shown.

import { h } from '/page/dom.js';
import { authorName, plural, shorten, toolName, visible } from '/page/format.js';

/** Most characters of the name of a run. */
const MAX_TITLE = 80;

/** How a state is shown: a sign, a word and a class. */
const STATES = {
  running: ['…', 'running', 'active'],
  waiting: ['?', 'waits for approval', 'waits'],
  pending: ['…', 'pending', 'active'],
  suspended: ['?', 'waits for approval', 'waits'],
  done: ['✓', 'done', 'good'],
  completed: ['✓', 'completed', 'good'],
  partly: ['!', 'completed', 'waits'],
  failed: ['✗', 'failed', 'bad'],
  error: ['✗', 'failed', 'bad'],
  cancelled: ['■', 'stopped', ''],
  aborted: ['■', 'stopped', ''],
  stopped: ['■', 'stopped', ''],
  timeout: ['✗', 'timed out', 'bad'],
  interrupted: ['■', 'stopped', ''],
  died: ['✗', 'its process ended', 'bad'],
  not_started: ['–', 'not started', ''],
  denied: ['–', 'denied', 'waits'],
  undecided: ['–', 'not decided in time', 'waits'],
  unknown: ['?', 'outcome unknown', 'waits'],
};

/** A state as a coloured word. */
export function stateLabel(state, word) {
  const known = STATES[state] ?? STATES[String(state).replaceAll(' ', '_')];
  const [sign, name, kind] = known ?? ['•', String(state).replaceAll('_', ' '), ''];
  return h(
    'span',
    { class: `state ${kind}` },
    h('span', { 'aria-hidden': 'true' }, `${sign} `),
    word ?? name,
  );
}

/** Errors of scripts and calls that a person caused, and the states that they are shown as. */
const PERSON_ERRORS = {
  ScriptCancelledError: 'stopped',
  ToolAbortedError: 'stopped',
  ApprovalDeniedError: 'denied',
  ApprovalTimeoutError: 'undecided',
};

/** The state that a person caused with an error of this code, or null. */
export function stateByPerson(code) {
  return PERSON_ERRORS[code] ?? null;
}

/** Whether an error says that a person stopped the script. */
export function isStopped(code) {
  return stateByPerson(code) === 'stopped';
}

/** The state of a run, with the number of its commands that failed. */
export function runState(run) {
  const { state, error, failed_commands: failed } = run;
  const byPerson = stateByPerson(error);
  if (byPerson) return stateLabel(byPerson);
  if (state === 'completed' && failed > 0)
    return stateLabel('partly', `completed · ${plural(failed, 'command')} failed`);
  return stateLabel(state);
}

/** Whether a run failed. One that a person stopped, or whose call a person denied, did not. */
export function hasFailed({ state, error }) {
  return ['failed', 'died'].includes(state) && !['stopped', 'denied'].includes(stateByPerson(error));
}

/** Whether a run failed, or completed although a command in it failed. */
export function isWithFailure(run) {
  return hasFailed(run) || (run.state === 'completed' && run.failed_commands > 0);
}

/**
 * The name of a run: the comment that its script begins with, or else its first call, or the first
 * line of the script.
 */
export function runTitle({ id, script, firstCall }) {
  const lines = (script ?? '').split('\n').map((text) => text.trim());
  const line = lines.find((text) => text) ?? '';
  // A request for a document is recorded as a run without a script.
  if (id.startsWith('trn_') && line.replace(/^\/\/\s*/, '').startsWith('request of'))
    return 'Change of a document';
  const comment = line.match(/^(?:\/\/|\/\*+)\s*(.*?)\s*(?:\*\/)?$/)?.[1];
  return shorten(comment || (firstCall && callName(firstCall)) || line, MAX_TITLE) || id;
}

/** A call in one line, with the name of its tool in scripts. */
function callName(text) {
  const [tool, ...rest] = text.split(' ');
  return [toolName(tool), ...rest].join(' ');
}

/** What was decided about a call, and by whom, such as `allowed by ann`; or null. */
export function decisionText(call) {
  const decided = (call?.waits ?? []).filter(({ kind, answer }) => kind === 'approval' && answer);
  const { answer, decided_by: name } = decided.at(-1) ?? {};
  if (!answer) return null;
  return decisionOf(answer, name);
}

/** A decision as the journal has it, in words for people; or null if nothing was decided. */
export function decisionOf(answer, name) {
  const by = !name ? '' : name.startsWith('page_') ? ' on the web page' : ` by ${authorName(name)}`;
  const [, word, rest = ''] = answer.match(/^(yes|no)(?:[,:] (.*))?$/s) ?? [];
  if (word === 'yes') return `allowed${by}${rest ? `, ${visible(rest)}` : ''}`;
  if (word === 'no') return `denied${by}${rest ? `: ${visible(rest)}` : ''}`;
  return answer === 'no answer' ? 'not decided in time' : null;
}
