// Scripts in a transcript: their code, their calls as they happen, and their results.

import { get } from '/page/api.js';
import { button, fill, h, marked, replaceSummary } from '/page/dom.js';
import { duration, plural, pretty, summaryOf, toolName, visible } from '/page/format.js';
import { plain, rich } from '/page/render.js';
import { decisionText, isStopped, runState, stateByPerson, stateLabel } from '/page/run-state.js';

/** Lines of a script that are shown at first. */
const FOLDED_LINES = 16;
/** How long a change waits while a person presses something that it would replace. */
const PRESS_MS = 150;
/** Runs that were read for details of calls. */
const runs = new Map();

/** Reads a run. One that has ended is kept. */
async function readRun(id) {
  const known = runs.get(id);
  if (known) return known;
  const run = await get(`/runs/${id}`);
  if (run.run.ended_ms) runs.set(id, run);
  return run;
}

/** Code, of which a long one is folded. */
function codeBlock(source, language = 'ts') {
  const code = rich('code', source, language);
  if (source.split('\n').length <= FOLDED_LINES) return code;
  code.classList.add('folded');
  const unfold = button(`Show all ${source.split('\n').length} lines`, () => {
    code.classList.remove('folded');
    unfold.remove();
  });
  return h('div', null, code, unfold);
}

/** The state of a call, and a word if it says more. */
function callState(call) {
  const { status, error, exit_code: exit } = call;
  const failure = call.failure ?? (exit ? `exit ${exit}` : null);
  const byPerson = stateByPerson(error?.code);
  if (byPerson) return { state: byPerson };
  const isFailed = (failure || error) && status === 'done';
  return { state: isFailed ? 'failed' : status, word: failure ?? error?.code };
}

/** One call of a script. `details` returns a promise of the call with `args` and `value`. */
function callRow(call, details) {
  const { state, word } = callState(call);
  const body = h('div', { class: 'call-body' });
  const isRunning = call.status === 'running';
  const isKept = state === 'stopped' && Boolean(call.output);
  const element = h(
    'details',
    { class: 'call', open: isKept || (isRunning && Boolean(call.output)) },
    h(
      'summary',
      null,
      h('span', { class: 'tool' }, toolName(call.tool)),
      h('span', { class: 'call-args', dir: 'ltr' }, visible(call.summary ?? '')),
      h(
        'span',
        { class: 'call-end' },
        call.reused ? h('span', { class: 'tag' }, 'reused') : null,
        call.decision ? h('span', { class: 'tag decision' }, call.decision) : null,
        call.duration_ms === undefined
          ? null
          : h('span', { class: 'dim' }, duration(call.duration_ms)),
        stateLabel(state, word),
      ),
    ),
    body,
  );
  if (call.error) {
    const kind = stateByPerson(call.error.code) ? 'dim' : 'bad';
    body.append(h('p', { class: kind }, marked(visible(call.error.message))));
  }
  if (isRunning) {
    if (call.output) body.append(h('pre', { class: 'text' }, visible(call.output)));
    return element;
  }
  // What a stopped call had written stays visible until the journal has it.
  const kept = isKept ? h('div', null, stoppedOutput(visible(call.output))) : null;
  if (kept) body.append(kept);
  let isRead = false;
  element.addEventListener('toggle', async () => {
    if (!element.open || isRead) return;
    isRead = true;
    try {
      const read = await details();
      body.append(...callDetails(read));
      if (read?.shown) kept?.remove();
    } catch (error) {
      isRead = false;
      body.append(h('p', { class: 'dim' }, `The call cannot be read: ${error.message}`));
    }
  });
  return element;
}

/** What a call had written when it was stopped. */
function stoppedOutput(text) {
  return [h('h4', null, 'Output until it was stopped'), h('pre', { class: 'text' }, text)];
}

/** Arguments and result of a call. */
export function callDetails(call) {
  if (!call) return [h('p', { class: 'dim' }, 'The journal does not have this call.')];
  const parts = [];
  const decision = decisionText(call);
  if (decision) parts.push(h('p', null, `This call was ${decision}.`));
  parts.push(...argumentParts(call.args));
  if (call.error)
    parts.push(h('h4', null, 'Error'), plain(pretty(call.error.message ?? call.error)));
  const value = call.value;
  if (value && typeof value === 'object' && 'exitCode' in value) {
    parts.push(h('h4', null, `Exit code ${value.exitCode}`));
    if (value.aggregatedOutput) parts.push(plain(value.aggregatedOutput));
    else parts.push(h('p', { class: 'dim' }, 'No output.'));
  } else if (value !== null && value !== undefined) {
    parts.push(h('h4', null, 'Result'), rich('code', pretty(value), 'json'));
  } else if (call.shown && isStopped(call.error?.code)) {
    parts.push(...stoppedOutput(visible(call.shown)));
  }
  return parts;
}

/** Arguments of a call. Texts of several lines, such as patches, are shown as they are. */
export function argumentParts(args) {
  if (args === null || args === undefined) return [];
  const isText = ([, value]) => typeof value === 'string' && value.includes('\n');
  const entries = Object.entries(typeof args === 'object' ? args : { argument: args });
  const [texts, rest] = [entries.filter(isText), entries.filter((entry) => !isText(entry))];
  if (!texts.length) return [h('h4', null, 'Arguments'), rich('code', pretty(args), 'json')];
  const short = rest.length ? [rich('code', pretty(Object.fromEntries(rest)), 'json')] : [];
  return [
    h('h4', null, 'Arguments'),
    ...short,
    ...texts.flatMap(([name, text]) => [
      h('h4', null, name),
      isPatch(text) ? rich('diff', text) : plain(text),
    ]),
  ];
}

/** Whether a text is a diff, or a patch of the tool that applies them. */
function isPatch(text) {
  return /^(\*\*\* Begin Patch|diff --git |--- )/m.test(text);
}

function readCall(scriptId, id) {
  return async () => (await readRun(scriptId)).calls.find((call) => call.id === id);
}

function callList(scriptId, calls) {
  return h(
    'div',
    { class: 'calls' },
    calls.map((call) => callRow(call, readCall(scriptId, call.id))),
  );
}

/** The calls of a running script. A row is created again only if its state changes. */
class LiveCalls {
  constructor(scriptId) {
    this.scriptId = scriptId;
    this.element = h('div', { class: 'calls' });
    this.rows = new Map();
  }

  update(calls) {
    for (const call of calls) {
      const known = this.rows.get(call.id);
      const state = `${call.status}/${call.output ? 'output' : ''}/${call.decision ?? ''}`;
      if (known?.state !== state) {
        const element = callRow(call, readCall(this.scriptId, call.id));
        if (known) replaceSummary(known.element, element);
        else this.element.append(element);
        this.rows.set(call.id, { state, element });
      } else if (call.status === 'running' && call.output) {
        const pre = known.element.querySelector('pre');
        if (pre) pre.textContent = visible(call.output);
      }
    }
  }
}

/** A script: its code, and its calls while it runs. */
export function scriptElement(item, model) {
  // The head stays while events arrive: a press on its link takes a moment.
  const state = h('span', { hidden: true });
  const link = h('a', { class: 'dim', href: `#/runs/${item.id}` }, 'timeline');
  const kind = h('span', { class: 'kind' }, 'Script');
  const head = h('p', { class: 'item-head' }, kind, state, link);
  const calls = new LiveCalls(item.id);
  const logs = h('div');
  const live = h('div', null, calls.element, logs);
  const element = h('div', null, head, codeBlock(item.source_code ?? ''), live);
  let shownState = null;
  let shownLogs = '';
  let pressTimer;
  const showLogs = (script) => {
    const key = `${script.logs.length} ${script.progress ?? ''}`;
    if (key === shownLogs) return;
    shownLogs = key;
    const old = logs.querySelector('details');
    const lines = logLines(script.logs);
    if (lines && old) lines.open = old.open;
    const hadFocus = old?.contains(document.activeElement);
    fill(
      logs,
      lines,
      script.progress ? h('p', { class: 'progress' }, visible(script.progress)) : null,
    );
    if (hadFocus) lines?.querySelector('summary').focus({ preventScroll: true });
  };
  const update = () => {
    const script = model.scripts.get(item.id);
    const isRunning = Boolean(script) && ['running', 'suspended'].includes(script.status);
    const waits = isRunning && [...script.calls.values()].some((call) => call.status === 'waiting');
    const now = isRunning ? (waits ? 'waiting' : 'running') : null;
    if (now !== shownState) {
      shownState = now;
      fill(state, now ? stateLabel(now) : null);
      state.hidden = !now;
    }
    if (!isRunning && live.contains(document.activeElement)) link.focus({ preventScroll: true });
    // When the result arrives, it has the calls.
    live.hidden = !isRunning;
    if (!isRunning) return;
    clearTimeout(pressTimer);
    if (live.matches(':active')) {
      pressTimer = setTimeout(update, PRESS_MS);
      return;
    }
    calls.update([...script.calls.values()]);
    showLogs(script);
  };
  update();
  return { element, update };
}

function logLines(logs) {
  if (!logs.length) return null;
  return h(
    'details',
    { class: 'logs' },
    h('summary', null, plural(logs.length, 'log line')),
    plain(
      logs
        .map((line) => (line.level === 'log' ? line.message : `${line.level}: ${line.message}`))
        .join('\n'),
    ),
  );
}

/** Shows what the journal knows about the calls: their arguments, and who decided about them. */
async function addSummaries(scriptId, calls, list) {
  try {
    const run = await readRun(scriptId);
    calls.forEach(({ id }, at) => {
      const call = run.calls.find((known) => known.id === id);
      if (!call) return;
      const row = callRow(
        { ...calls[at], summary: summaryOf(call.args), decision: decisionText(call) },
        async () => call,
      );
      replaceSummary(list.children[at], row);
    });
  } catch {
    /* the rows stay without arguments */
  }
}

/** The result of a script: its calls, its value or error, and its log. */
export function outputElement(item, model) {
  const known = model.scripts.get(item.id);
  const calls = (item.calls ?? []).map((call) => ({ ...known?.calls.get(call.id), ...call }));
  const failed = calls.filter((call) => call.exit_code).length;
  const parts = [];
  if (calls.length) {
    const list = callList(item.id, calls);
    parts.push(list);
    const isUnknown = ({ summary, isAsked }) => summary === undefined || isAsked;
    if (calls.some(isUnknown)) addSummaries(item.id, calls, list);
  }
  const head = h(
    'p',
    { class: 'item-head' },
    h('span', { class: 'kind' }, 'Result'),
    runState({ state: item.status, error: item.error?.code, failed_commands: failed }),
    h('span', { class: 'dim' }, duration(item.metadata?.duration_ms)),
  );
  parts.push(head, ...resultParts(item));
  return h('div', null, parts);
}

/** The value or the error of a script, its warnings and its log. */
export function resultParts(item) {
  const parts = [];
  if (item.error) parts.push(...errorParts(item.error));
  const text = (item.output ?? []).map((part) => part.text ?? '').join('\n');
  if (text) parts.push(plain(text));
  if (item.output_json && !item.error)
    parts.push(rich('code', prettyJson(item.output_json), 'json'));
  else if (!item.error && !text)
    parts.push(h('p', { class: 'dim' }, 'The script returned no value.'));
  for (const warning of item.warnings ?? []) {
    parts.push(h('p', { class: 'notice' }, visible(pretty(warning.message ?? warning))));
  }
  parts.push(logLines(item.logs ?? []));
  return parts;
}

/** Why a script failed, where, and what to do. */
export function errorParts(error) {
  if (isStopped(error.code)) {
    return [h('p', { class: 'dim' }, 'The script was stopped before its end.')];
  }
  const byPerson = stateByPerson(error.code);
  if (byPerson) {
    const end = byPerson === 'denied' ? 'was denied' : 'was not decided in time';
    const note = `The script ended because a call ${end}: ${visible(error.message ?? '')}`;
    return [h('p', { class: 'notice' }, marked(note))];
  }
  const place = error.line ? ` (line ${error.line})` : '';
  return [
    h(
      'div',
      { class: 'notice error' },
      h(
        'p',
        null,
        h('strong', null, error.code ?? 'Error'),
        place,
        ': ',
        marked(visible(error.message ?? pretty(error))),
      ),
      // To resume, a run has a button.
      (error.suggestions ?? [])
        .filter((text) => !text.includes('`resume: '))
        .map((text) => h('p', { class: 'hint' }, marked(visible(text)))),
    ),
  ];
}

function prettyJson(text) {
  try {
    return pretty(JSON.parse(text));
  } catch {
    return text;
  }
}
