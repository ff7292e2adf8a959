// One run: why it failed, its timeline with a lane per concurrent call, its calls and its script.

import { get, post, query } from '/page/api.js';
import { button, errorNote, fill, h } from '/page/dom.js';
import { dateTime, duration, plural } from '/page/format.js';
import { rich } from '/page/render.js';
import { scriptEditor } from '/page/script-editor.js';
import {
  callDetails,
  errorParts,
  outputElement,
  stateLabel,
  summaryOf,
} from '/page/script-item.js';
import { timeline, waitTexts } from '/page/timeline.js';

/** How often a run that has not ended is read. */
const POLL_MS = 1500;
/** How long a run may be missing: a resumed one is stored with its first call or at its end. */
const START_LIMIT_MS = 60_000;
/** When runs were resumed from this page, by the id of the new run. */
const resumed = new Map();

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
        if (signal.aborted) return;
        const isStarting = Date.now() - (resumed.get(this.run) ?? 0) < START_LIMIT_MS;
        if (error.status === 404 && isStarting) {
          fill(this, h('p', { class: 'panel', role: 'status' }, 'The script starts …'));
          setTimeout(() => !signal.aborted && this.read(), POLL_MS / 3);
        } else fill(this, errorNote(error));
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
                run.session && run.id.startsWith('scr_')
                  ? button('Edit and resume', () => this.openEditor(run, source ?? ''))
                  : null,
              )
            : null,
          (this.replayed = h('div', { 'aria-live': 'polite' })),
          (this.editor = h('div')),
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

    /** Shows an editor with the script. Its calls that have ended return their recorded results. */
    async openEditor(run, source) {
      const note = h('div');
      const { signal } = this.stop;
      let tools = [];
      try {
        ({ tools } = await get(`/tools${query({ workspace: run.directory })}`, signal));
      } catch (error) {
        // The editor works without completion.
        fill(note, errorNote(error));
      }
      const editor = scriptEditor(source, tools);
      const submit = h('button', { type: 'submit', class: 'primary' }, 'Resume');
      const resume = async (event) => {
        event.preventDefault();
        submit.disabled = true;
        try {
          const { id } = await post(`/runs/${run.id}/resume`, { source: editor.source });
          resumed.set(id, Date.now());
          location.hash = `#/runs/${id}`;
        } catch (error) {
          submit.disabled = false;
          fill(note, errorNote(error));
        }
      };
      fill(
        this.editor,
        h(
          'form',
          { class: 'card', 'aria-label': 'Edit and resume', onsubmit: resume },
          h('h3', null, 'Edit and resume'),
          h(
            'p',
            { class: 'dim' },
            'Calls that have ended return their recorded results if they are the same. All others run now, and may ask for approval.',
          ),
          editor.element,
          note,
          h(
            'div',
            { class: 'actions' },
            submit,
            button('Cancel', () => fill(this.editor)),
          ),
        ),
      );
      this.editor.scrollIntoView({ block: 'nearest' });
      editor.focus();
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
            waitTexts(call).map((text) => h('span', { class: 'tag' }, text)),
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
