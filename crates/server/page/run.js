// One run: why it failed, its timeline with a lane per concurrent call, its calls and its script.

import { get, post } from '/page/api.js';
import { button, errorNote, fill, h } from '/page/dom.js';
import { dateTime, duration, plural } from '/page/format.js';
import { rich } from '/page/render.js';
import {
  callDetails,
  errorParts,
  outputElement,
  stateLabel,
  summaryOf,
} from '/page/script-item.js';

/** Height of a lane, in pixels. */
const LANE_HEIGHT = 26;
/** How often a run that has not ended is read. */
const POLL_MS = 1500;

/** Puts each call into the first lane that is free when it starts. */
function lanesOf(calls) {
  const ends = [];
  return calls.map((call) => {
    const start = call.started_ns ? call.started_ns / 1e6 : call.started_ms;
    const end = start + Math.max(call.duration_ms ?? 0, 0);
    let lane = ends.findIndex((until) => until <= start);
    if (lane < 0) lane = ends.length;
    ends[lane] = end;
    return { call, start, end, lane };
  });
}

function timeline(run, calls, select) {
  const placed = lanesOf([...calls].sort((a, b) => a.started_ms - b.started_ms));
  const from = Math.min(run.started_ms, ...placed.map(({ start }) => start));
  const to = Math.max(run.ended_ms ?? Date.now(), from + 1, ...placed.map(({ end }) => end));
  const percent = (time) => (100 * time) / (to - from);
  const lanes = Math.max(1, ...placed.map(({ lane }) => lane + 1));
  const picture = h('div', { class: 'lanes' });
  picture.style.height = `${lanes * LANE_HEIGHT}px`;
  for (const { call, start, end, lane } of placed) {
    const isGood = call.state === 'done' && !(call.value?.exitCode > 0);
    const label = `${call.tool}: ${duration(call.duration_ms)}, ${isGood ? 'done' : 'failed'}`;
    const bar = button('', () => select(call.id), isGood ? 'bar' : 'bar bad', {
      'aria-label': label,
      title: label,
    });
    bar.style.left = `${percent(start - from)}%`;
    bar.style.width = `max(6px, ${percent(end - start)}%)`;
    bar.style.top = `${lane * LANE_HEIGHT + 2}px`;
    picture.append(bar);
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
        lanes > 1 ? `${lanes} lanes: up to ${lanes} calls at once` : 'one call at a time',
      ),
      h('span', null, duration(to - from)),
    ),
  );
}

customElements.define(
  'sv-run',
  class extends HTMLElement {
    connectedCallback() {
      this.stop = new AbortController();
      this.read();
    }

    disconnectedCallback() {
      this.stop.abort();
    }

    async read() {
      const { signal } = this.stop;
      try {
        const run = await get(`/runs/${this.run}`, signal);
        if (signal.aborted) return;
        const key = JSON.stringify(run);
        if (key !== this.shown) this.show(run);
        this.shown = key;
        if (!run.run.ended_ms) setTimeout(() => !signal.aborted && this.read(), POLL_MS);
      } catch (error) {
        if (!signal.aborted) fill(this, errorNote(error));
      }
    }

    show({ run, source, error, calls, questions, advice }) {
      const rows = h(
        'div',
        { class: 'calls' },
        calls.map((call) => this.callRow(call, run)),
      );
      const select = (id) => {
        const row = rows.querySelector(`[data-call="${CSS.escape(id)}"]`);
        row.open = true;
        row.querySelector('summary').focus();
        row.scrollIntoView({ block: 'nearest' });
      };
      fill(
        this,
        h(
          'div',
          { class: 'panel' },
          h('a', { class: 'back', href: '#/runs' }, '← Runs'),
          h('h2', null, 'Run ', h('span', { class: 'id' }, run.id)),
          h(
            'p',
            { class: 'facts' },
            stateLabel(run.state),
            h('span', null, dateTime(run.started_ms)),
            run.ended_ms ? h('span', null, duration(run.ended_ms - run.started_ms)) : null,
            h('span', null, run.directory),
            run.session ? h('a', { href: `#/sessions/${run.session}` }, 'Session') : null,
            run.resumes
              ? h('a', { href: `#/runs/${run.resumes}` }, `Resumes ${run.resumes}`)
              : null,
          ),
          error ? errorParts(error) : null,
          (questions ?? []).map((question) =>
            h(
              'p',
              { class: 'notice' },
              `Waits for approval: ${question.reason ?? question.id ?? ''}`,
            ),
          ),
          (advice ?? []).map((text) => h('p', { class: 'hint' }, text)),
          h('h3', null, `Timeline: ${plural(calls.length, 'call')}`),
          calls.length ? timeline(run, calls, select) : null,
          rows,
          run.ended_ms
            ? h(
                'div',
                { class: 'actions' },
                button('Replay', () => this.replay(null)),
                h(
                  'span',
                  { class: 'dim' },
                  'Runs the script again with the recorded results. Nothing is changed.',
                ),
              )
            : null,
          (this.replayed = h('div', { 'aria-live': 'polite' })),
          h('h3', null, 'Script'),
          rich('code', source ?? '', 'ts'),
        ),
      );
    }

    /** Replays the run, with a call that fails if there is one, and shows how it ends. */
    async replay(call) {
      try {
        const { matches, output } = await post(
          `/runs/${this.run}/replay`,
          call ? { fail: call } : {},
          { once: false },
        );
        const text = call
          ? `If ${call} had failed, the script would have ended like this:`
          : matches
            ? 'The replay matches the recording.'
            : 'The replay differs from the recording.';
        fill(
          this.replayed,
          h(
            'section',
            { class: 'card', 'aria-label': 'Replay' },
            h('p', null, text),
            outputElement(output, { scripts: new Map() }),
          ),
        );
      } catch (error) {
        fill(this.replayed, errorNote(error));
      }
      this.replayed.scrollIntoView({ block: 'nearest' });
    }

    callRow(call, run) {
      const body = h('div', { class: 'call-body' });
      const exit = call.value?.exitCode;
      const isFailed = call.state !== 'done' || exit > 0;
      const row = h(
        'details',
        { class: 'call', 'data-call': call.id },
        h(
          'summary',
          null,
          h('span', { class: 'tool' }, call.tool),
          h('span', { class: 'call-args' }, summaryOf(call.args)),
          h(
            'span',
            { class: 'call-end' },
            call.line ? h('span', { class: 'dim' }, `line ${call.line}`) : null,
            h(
              'span',
              { class: 'dim' },
              `at ${duration(Math.max(0, call.started_ms - run.started_ms))}`,
            ),
            call.reused ? h('span', { class: 'tag' }, 'reused') : null,
            h('span', { class: 'dim' }, duration(call.duration_ms)),
            stateLabel(
              isFailed && call.state === 'done' ? 'failed' : call.state,
              exit > 0 ? `exit ${exit}` : undefined,
            ),
          ),
        ),
        body,
      );
      row.addEventListener('toggle', () => {
        if (!row.open || body.childNodes.length) return;
        body.append(...callDetails(call));
        if (run.ended_ms)
          body.append(
            h(
              'div',
              { class: 'actions' },
              button('What if this call had failed?', () => this.replay(call.id)),
            ),
          );
      });
      return row;
    }
  },
);
