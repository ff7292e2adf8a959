// The timeline of a run: a lane for each call that runs at the same time, with the times that calls
// waited.

import { button, h } from '/page/dom.js';
import { duration, summaryOf, toolName, visible } from '/page/format.js';
import { stateByPerson } from '/page/run-state.js';

/** Height of a lane, in pixels. */
const LANE_HEIGHT = 26;
/** What calls wait for. */
const WAITS = { approval: 'for approval', queue: 'for a free slot' };

/** The waits of a call, with their ends. */
function waitsOf(call) {
  return (call.waits ?? []).map(({ kind, from_ms: from, to_ms: to }) => ({
    kind,
    from,
    to: Math.max(from, to ?? Date.now()),
  }));
}

/** How long a call waited, and for what, such as `waited 2.1 s for approval`. */
export function waitTexts(call) {
  return waitsOf(call).map(
    ({ kind, from, to }) => `waited ${duration(Math.max(1, to - from))} ${WAITS[kind] ?? kind}`,
  );
}

/** Whether a call has not ended, and waits for nothing. */
function isRunning(call) {
  return call.state === 'running' && !(call.waits ?? []).some(({ to_ms: to }) => !to);
}

/** Puts each call into the first lane that is free when it starts or begins to wait. */
function lanesOf(calls) {
  const ends = [];
  const timed = calls.map((call) => {
    const start = call.started_ns ? call.started_ns / 1e6 : call.started_ms;
    const waits = waitsOf(call);
    const begin = Math.min(start, ...waits.map(({ from }) => from));
    const last = Math.max(start, ...waits.map(({ to }) => to));
    const stop = isRunning(call) ? Date.now() : start + Math.max(call.duration_ms ?? 0, 0);
    const end = Math.max(last, stop);
    return { call, start, stop: Math.max(start, stop), waits, begin, end };
  });
  timed.sort((a, b) => a.begin - b.begin);
  for (const entry of timed) {
    let lane = ends.findIndex((until) => until <= entry.begin);
    if (lane < 0) lane = ends.length;
    ends[lane] = entry.end;
    entry.lane = lane;
  }
  return timed;
}

/** A picture of the calls. `select` gets the id of a call that a person selects. */
export function timeline(run, calls, select) {
  const placed = lanesOf(calls);
  const from = Math.min(run.started_ms, ...placed.map(({ begin }) => begin));
  const to = Math.max(run.ended_ms ?? Date.now(), from + 1, ...placed.map(({ end }) => end));
  const percent = (time) => (100 * time) / (to - from);
  const lanes = Math.max(1, ...placed.map(({ lane }) => lane + 1));
  const picture = h('div', { class: 'lanes' });
  picture.style.height = `${lanes * LANE_HEIGHT}px`;
  const place = (element, lane, begin, end, least) => {
    element.style.left = `${percent(begin - from)}%`;
    element.style.width = `max(${least}px, ${percent(end - begin)}%)`;
    element.style.top = `${lane * LANE_HEIGHT + 2}px`;
    picture.append(element);
  };
  const kinds = new Set();
  for (const { call, start, stop, waits, lane } of placed) {
    const isOpen = call.state === 'running';
    const isGood = isOpen || (call.state === 'done' && !(call.value?.exitCode > 0));
    const isEnded = stateByPerson(call.error?.code);
    const word = isOpen ? 'running' : isGood ? 'done' : isEnded || 'failed';
    const parts = [duration(stop - start), word, ...waitTexts(call)];
    const name = visible(`${toolName(call.tool)} ${summaryOf(call.args)}`.trim());
    const label = `${name}: ${parts.filter((part) => part).join(', ')}`;
    for (const wait of waits) {
      kinds.add(wait.kind);
      const element = h('span', { class: `wait for-${wait.kind}`, 'aria-hidden': 'true' });
      place(element, lane, wait.from, wait.to, 3);
    }
    const kind = isOpen ? 'bar open' : isGood ? 'bar' : isEnded ? 'bar stopped' : 'bar bad';
    const bar = button(name, () => select(call.id), kind, {
      'aria-label': label,
      title: label,
    });
    place(bar, lane, start, stop, 6);
  }
  return h(
    'figure',
    { class: 'timeline' },
    picture,
    h(
      'figcaption',
      { class: 'dim' },
      h('span', null, '0'),
      h(
        'span',
        null,
        lanes > 1
          ? `${lanes} lanes: up to ${lanes} calls that ran or waited at once`
          : 'one call at a time',
      ),
      h('span', null, duration(to - from)),
    ),
    kinds.size
      ? h(
          'ul',
          { class: 'legend dim' },
          [...kinds].map((kind) =>
            h(
              'li',
              null,
              h('span', { class: `swatch wait for-${kind}`, 'aria-hidden': 'true' }),
              `waits ${WAITS[kind] ?? kind}`,
            ),
          ),
        )
      : null,
  );
}
