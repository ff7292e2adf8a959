// One run: why it failed, its timeline with a lane per concurrent call, its calls and its script.

import { follow, get, post, query } from '/page/api.js';
import { approvals } from '/page/approval-store.js';
import { showCards } from '/page/approvals.js';
import { answerOrder, button, errorNote, every, fill, h, marked } from '/page/dom.js';
import { dateTime, duration, plural, summaryOf, toolName, visible } from '/page/format.js';
import { rich } from '/page/render.js';
import { decisionText, runState, runTitle, stateByPerson, stateLabel } from '/page/run-state.js';
import { scriptEditor } from '/page/script-editor.js';
import { callDetails, errorParts, outputElement, resultParts } from '/page/script-item.js';
import { timeline, waitTexts } from '/page/timeline.js';
import { MAX_LIVE_OUTPUT } from '/page/transcript-model.js';
import { watchEdits } from '/page/unsaved.js';

/** How often a run that has not ended is read. */
const POLL_MS = 1500;
/** How often the timeline of such a run grows. */
const GROW_MS = 500;
/** How long a change waits while a person presses something that it would replace. */
const PRESS_MS = 150;
/** How long a run may be missing: a resumed one is stored with its first call or at its end. */
const START_LIMIT_MS = 60_000;
/** When runs were resumed from this page, by the id of the new run. */
const resumed = new Map();

customElements.define(
  'sv-run',
  class extends HTMLElement {
    connectedCallback() {
      this.stop = new AbortController();
      /** Output of running calls, by their ids. */
      this.outputs = new Map();
      this.opened = new Set();
      this.beginRead = answerOrder();
      this.cards = new Map();
      this.heading = h('h2', { tabindex: -1 }, 'Run');
      this.head = h('div', { class: 'run-part' });
      /** Approval requests of the run. They stay when the rest is shown again. */
      this.asked = h('div', { class: 'asked', 'aria-live': 'polite' });
      this.rest = h('div', { class: 'run-part' });
      const back = h('a', { class: 'back', href: '#/runs' }, '← Runs');
      fill(
        this,
        h('div', { class: 'panel' }, back, this.heading, this.head, this.asked, this.rest),
      );
      // The heading gets the focus: what follows is what was chosen.
      if (this.takesFocus) this.heading.focus();
      approvals.addEventListener('change', () => this.showApprovals(), {
        signal: this.stop.signal,
      });
      this.showApprovals();
      this.read();
      every(GROW_MS, this.stop.signal, () => this.grow());
    }

    disconnectedCallback() {
      this.stop.abort();
    }

    /** Shows the requests of the run, as its session does. */
    showApprovals() {
      const waiting = [...approvals.waiting.values()].filter(({ run }) => run === this.run);
      showCards(waiting, this.cards, { box: this.asked, heading: this.heading });
    }

    async read() {
      const { signal } = this.stop;
      const isNewest = this.beginRead();
      try {
        const run = await get(`/runs/${this.run}`, signal);
        if (signal.aborted || !isNewest()) return;
        if (this.querySelector('.run-part:active')) return this.readIn(PRESS_MS);
        const key = JSON.stringify(run);
        if (key !== this.shown) this.show(run);
        this.shown = key;
        this.followOutput(run.run);
        if (!run.run.ended_ms) this.readIn(POLL_MS);
      } catch (error) {
        if (signal.aborted) return;
        const isStarting = Date.now() - (resumed.get(this.run) ?? 0) < START_LIMIT_MS;
        if (error.status === 404 && isStarting) {
          fill(this.head, h('p', { role: 'status' }, 'The script starts …'));
          this.readIn(POLL_MS / 3);
        } else fill(this.head, errorNote(error));
      }
      return undefined;
    }

    /** Reads the run again after a pause. */
    readIn(pauseMs) {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => !this.stop.signal.aborted && this.read(), pauseMs);
    }

    /** Follows the output of running calls, which is in the events of the session. */
    async followOutput({ id, session, ended_ms: ended }) {
      if (this.isFollowing || ended || !session) return;
      this.isFollowing = true;
      const { signal } = this.stop;
      const path = `/sessions/${session}`;
      const { after } = await get(`${path}/latest-turn`, signal).catch(() => ({}));
      if (after === undefined || signal.aborted) return;
      follow(`${path}/events`, {
        after,
        signal,
        // What open calls have written is sent again.
        onOpen: () => this.outputs.clear(),
        onEvent: (event) => {
          if (event.parent_id !== id) return;
          if (event.type === 'call.output') {
            const text = (this.outputs.get(event.call_id) ?? '') + event.text;
            this.outputs.set(event.call_id, text.slice(-MAX_LIVE_OUTPUT));
            this.showOutput(event.call_id);
          } else if (['call.started', 'call.finished'].includes(event.type)) this.readIn(0);
        },
      });
    }

    showOutput(id) {
      const row = this.querySelector(`[data-call="${CSS.escape(id)}"]`);
      // A running call with output is opened once; a person may close it.
      if (row?.dataset.state === 'running' && !this.opened.has(id)) {
        this.opened.add(id);
        row.open = true;
      }
      const output = row?.querySelector('.live-output');
      if (output) output.textContent = visible(this.outputs.get(id) ?? '');
    }

    /** Draws the timeline again while calls run. */
    grow() {
      const { run, calls } = this.drawn ?? {};
      if (!run || run.ended_ms || !calls.length) return;
      const [old] = this.getElementsByClassName('timeline');
      // A press on a bar takes a moment.
      if (!old || old.matches(':active')) return;
      const focusBar = this.keepBarFocus();
      old.replaceWith(timeline(run, calls, this.select));
      focusBar();
    }

    /** Returns a function that gives the focus to the bar that has it now, if one has it. */
    keepBarFocus() {
      const bars = () => [...this.querySelectorAll('.timeline button')];
      const focused = bars().indexOf(document.activeElement);
      return () => bars()[focused]?.focus({ preventScroll: true });
    }

    show({ run, source, error, calls, output, questions, advice }) {
      const open = new Set(
        [...this.querySelectorAll('.call[open]')].map(({ dataset }) => dataset.call),
      );
      const focused = document.activeElement?.closest('sv-run .call')?.dataset.call;
      const isStopFocused = document.activeElement === this.head.querySelector('button');
      const focusBar = this.keepBarFocus();
      this.drawn = { run, calls };
      const rows = h(
        'div',
        { class: 'calls' },
        calls.map((call) => this.callRow(call, run)),
      );
      const rowOf = (id) => rows.querySelector(`[data-call="${CSS.escape(id)}"]`);
      const select = (this.select = (id) => {
        const row = rowOf(id);
        row.open = true;
        row.querySelector('summary').focus();
        row.scrollIntoView({ block: 'nearest' });
      });
      // A call that waits is not among the calls yet.
      const [first] = [...calls, ...(questions ?? []).flatMap((question) => question.calls ?? [])];
      const firstCall = first ? `${first.tool} ${summaryOf(first.args)}` : '';
      const title = visible(runTitle({ id: run.id, script: source, firstCall }));
      if (this.heading.textContent !== title) this.heading.textContent = title;
      const isKnown = (question) => this.cards.has(question.id);
      fill(
        this.head,
        this.facts(run, calls, error),
        run.session && (run.state === 'running' || this.cards.size)
          ? h(
              'div',
              { class: 'actions' },
              button('Stop', () => this.stopSession(run.session), 'danger'),
            )
          : null,
        error ? errorParts(error) : null,
        (questions ?? [])
          .filter((question) => !isKnown(question))
          .map((question) => waitingNote(question)),
        // To resume and to decide, the page has buttons.
        (advice ?? [])
          .filter((text) => !text.includes('--resume') && !(this.cards.size && !run.ended_ms))
          .map((text) => h('p', { class: 'hint' }, marked(text))),
      );
      fill(
        this.rest,
        h('h3', null, `Timeline: ${plural(calls.length, 'call')}`),
        calls.length ? timeline(run, calls, select) : null,
        rows,
        output && !error
          ? h('section', { class: 'run-part', 'aria-label': 'Result' }, [
              h('h3', null, 'Result'),
              resultParts(output),
            ])
          : null,
        run.ended_ms && run.id.startsWith('scr_') ? this.actions(run, source) : null,
        (this.replayed = h('div', { 'aria-live': 'polite' })),
        (this.editor = h('div')),
        h('h3', null, 'Script'),
        rich('code', source ?? '', 'ts'),
      );
      for (const id of open) rowOf(id)?.setAttribute('open', '');
      if (focused) rowOf(focused)?.querySelector('summary').focus({ preventScroll: true });
      if (isStopFocused) this.head.querySelector('button')?.focus({ preventScroll: true });
      focusBar();
      for (const id of this.outputs.keys()) this.showOutput(id);
    }

    /** How the run stands, when and where it ran. */
    facts(run, calls, error) {
      const failed = calls.filter(({ value }) => value?.exitCode > 0).length;
      return h(
        'p',
        { class: 'facts' },
        runState({ state: run.state, error: error?.code, failed_commands: failed }),
        h('span', { class: 'id' }, run.id),
        h('span', null, dateTime(run.started_ms)),
        run.ended_ms ? h('span', null, duration(run.ended_ms - run.started_ms)) : null,
        h('span', null, visible(run.directory)),
        run.session
          ? h(
              'a',
              { href: `#/sessions/${run.session}`, dir: 'auto' },
              visible(run.title || run.session),
            )
          : null,
        run.resumes ? h('a', { href: `#/runs/${run.resumes}` }, `Resumes ${run.resumes}`) : null,
      );
    }

    /** What can be done with a script that has ended. */
    actions(run, source) {
      return h(
        'div',
        { class: 'actions' },
        button('Replay', () => this.replay(null)),
        h(
          'span',
          { class: 'dim' },
          'Runs the script again with the recorded results. Nothing is changed.',
        ),
        run.session ? button('Edit and resume', () => this.openEditor(run, source ?? '')) : null,
      );
    }

    /** Stops the turn of the run, or the script that resumed a run. */
    async stopSession(session) {
      try {
        await post(`/sessions/${session}/stop`);
      } catch (error) {
        fill(this.replayed, errorNote(error));
      }
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
      const begun = () => this.editor.querySelector('textarea');
      if (begun()) return begun().focus();
      const note = h('div');
      const { signal } = this.stop;
      let tools = [];
      try {
        ({ tools } = await get(`/tools${query({ workspace: run.directory })}`, signal));
      } catch (error) {
        // The editor works without completion.
        fill(note, errorNote(error));
      }
      if (begun()) return begun().focus();
      const editor = scriptEditor(source, tools);
      let isSent = false;
      watchEdits(editor.element, () => !isSent && editor.source !== source);
      const submit = h('button', { type: 'submit', class: 'primary' }, 'Resume');
      const resume = async (event) => {
        event.preventDefault();
        submit.disabled = true;
        try {
          const { id } = await post(`/runs/${run.id}/resume`, { source: editor.source });
          isSent = true;
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
      return editor.focus();
    }

    callRow(call, run) {
      const body = h('div', { class: 'call-body' });
      const exit = call.value?.exitCode;
      const isOpen = call.state === 'running';
      const isWaiting = isOpen && (call.waits ?? []).some(({ to_ms: to }) => !to);
      const state = isWaiting
        ? 'waiting'
        : (stateByPerson(call.error?.code) ?? (exit > 0 ? 'failed' : call.state));
      const decision = decisionText(call);
      const row = h(
        'details',
        { class: 'call', 'data-call': call.id, 'data-state': call.state },
        h(
          'summary',
          null,
          h('span', { class: 'tool' }, toolName(call.tool)),
          h('span', { class: 'call-args' }, visible(summaryOf(call.args))),
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
            decision ? h('span', { class: 'tag decision' }, decision) : null,
            h('span', { class: 'dim' }, duration(call.duration_ms)),
            stateLabel(state, exit > 0 ? `exit ${exit}` : undefined),
          ),
        ),
        body,
      );
      row.addEventListener('toggle', () => {
        if (!row.open || body.childNodes.length) return;
        body.append(...callDetails(call));
        if (isOpen) {
          body.append(h('h4', null, 'Output so far'), h('pre', { class: 'text live-output' }));
          this.showOutput(call.id);
        }
        const hasFailed = call.state !== 'done' || call.error || exit > 0;
        if (run.ended_ms && run.id.startsWith('scr_') && !hasFailed)
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

/** A question of a run that waits in no process. */
function waitingNote(question) {
  const reason = question.calls?.[0]?.reason ?? question.reason ?? question.id ?? '';
  return h('p', { class: 'notice' }, `Waits for approval: ${visible(reason)}`);
}
