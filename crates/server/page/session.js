// One session: its transcript, its queue, and what a person can do with it.

import { get, post, remove } from '/page/api.js';
import { approvals } from '/page/approval-store.js';
import { showCards } from '/page/approvals.js';
import { showChanges } from '/page/changes.js';
import {
  ENTER_HINT,
  answerOrder,
  askPerson,
  button,
  errorNote,
  every,
  fill,
  h,
  onEnter,
} from '/page/dom.js';
import { count, shorten, visible } from '/page/format.js';
import { takeCreated } from '/page/new-session.js';
import { TranscriptModel } from '/page/transcript-model.js';
import '/page/transcript.js';
import { keepDraft, removeSent } from '/page/unsaved.js';

/** How often the state of the session and its queue are read. */
const POLL_MS = 3000;
/** How long until a session that could not be read is read again. */
const RETRY_MS = 2000;
/** How long after the end of a turn the queue is read again. */
const SETTLE_MS = 400;

customElements.define(
  'sv-session',
  class extends HTMLElement {
    connectedCallback() {
      this.stop = new AbortController();
      this.model = new TranscriptModel(this.session);
      this.beginRead = answerOrder();
      this.heading = h('h2', { class: 'session-title', dir: 'auto', tabindex: -1 }, 'Session');
      this.facts = h('p', { class: 'dim session-facts' });
      this.status = h('p', { class: 'hidden-text', role: 'status' });
      this.actions = h('div', { class: 'actions' });
      this.cards = new Map();
      this.queue = h('div', { class: 'queue' });
      this.usage = h('p', { class: 'dim usage' });
      this.notes = h('div');
      this.body = h('div', { class: 'session-body' });
      this.stopButton = button('Stop', () => this.stopTurn(), 'danger', { hidden: true });
      fill(
        this.actions,
        this.stopButton,
        button('Changes', () => this.showChanges()),
        button('Fork', () => this.fork()),
        button('Delete', () => this.confirmDelete(), 'danger'),
        h('a', { href: `#/memory/${this.session}` }, 'Memory'),
      );
      fill(
        this,
        h(
          'header',
          { class: 'session-head' },
          h('a', { class: 'back', href: '#/sessions' }, '← Sessions'),
          h('div', { class: 'session-name' }, this.heading, this.facts),
          this.actions,
          this.status,
        ),
        this.body,
        this.notes,
        this.queue,
        this.composer(),
        this.usage,
      );
      if (takeCreated() === this.session) this.input.focus();
      this.open();
    }

    disconnectedCallback() {
      this.stop.abort();
    }

    async open() {
      const { signal } = this.stop;
      try {
        await this.refresh();
        await this.model.start(signal);
      } catch (error) {
        if (signal.aborted) return;
        fill(this.body, errorNote(error));
        // Nothing can be done with a session that does not exist.
        if (error.status === 404) {
          this.actions.remove();
          this.querySelector('.composer').remove();
        } else {
          setTimeout(() => !signal.aborted && this.open(), RETRY_MS);
        }
        return;
      }
      if (signal.aborted) return;
      this.transcript = document.createElement('sv-transcript');
      this.transcript.model = this.model;
      fill(this.body, this.transcript);
      const listen = (target, name, action) => target.addEventListener(name, action, { signal });
      listen(this.model, 'usage', () => this.showUsage());
      listen(this.model, 'turn', () => {
        this.showTurn();
        // The message counts as answered a moment after the turn has ended.
        for (const pause of [0, SETTLE_MS, 3 * SETTLE_MS]) {
          setTimeout(async () => {
            if (signal.aborted) return;
            await this.refresh();
            this.dispatchEvent(new Event('session-changed', { bubbles: true }));
          }, pause);
        }
      });
      listen(approvals, 'change', () => this.showApprovals());
      this.showUsage();
      this.showTurn();
      this.showApprovals();
      every(POLL_MS, signal, () => this.refresh());
    }

    composer() {
      this.input = h('textarea', {
        rows: 2,
        'aria-label': 'Message',
        dir: 'auto',
        placeholder: 'Message to the agent',
        title: ENTER_HINT,
        oninput: () => this.fitInput(),
      });
      this.keepDraft = keepDraft(this.input, `session/${this.session}`);
      onEnter(this.input, () => this.send());
      this.sendButton = h('button', { type: 'submit', class: 'primary' }, 'Send');
      this.steerButton = button('Stop and send', () => this.send({ isSteering: true }), '', {
        hidden: true,
      });
      return h(
        'form',
        {
          class: 'composer',
          onsubmit: (event) => {
            event.preventDefault();
            this.send();
          },
        },
        this.input,
        // The button that was "Send" must not become one that stops the turn.
        h('div', { class: 'composer-buttons' }, this.steerButton, this.sendButton),
      );
    }

    fitInput() {
      this.input.style.height = 'auto';
      this.input.style.height = `${Math.min(this.input.scrollHeight + 2, innerHeight * 0.35)}px`;
    }

    async refresh() {
      const path = `/sessions/${this.session}`;
      const isNewest = this.beginRead();
      const read = await Promise.all([
        get(path, this.stop.signal),
        get(`${path}/messages`, this.stop.signal),
      ]).catch((error) => {
        if (!this.info) throw error;
        if (error.status === 404) this.showDeleted();
        // What is shown stays until the next read.
        return null;
      });
      if (!read || !isNewest()) return;
      const [session, { messages }] = read;
      this.info = session;
      const title = visible(session.title || session.id);
      if (this.heading.textContent !== title) this.heading.textContent = title;
      const environment = session.environment ? ` · environment ${session.environment}` : '';
      const creator = session.creator ? ` · created by ${session.creator}` : '';
      this.facts.textContent = visible(`${session.directory}${environment}${creator}`);
      this.showQueue(messages);
      this.showTurn();
    }

    /** Says that another client deleted the session. What was read of it stays. */
    showDeleted() {
      if (this.stop.signal.aborted) return;
      this.stop.abort();
      this.classList.remove('busy', 'waits');
      this.transcript?.asked.remove();
      for (const part of [this.actions, this.queue, this.querySelector('.composer')]) part.remove();
      fill(this.notes, h('p', { class: 'notice', role: 'alert' }, 'This session was deleted.'));
      this.dispatchEvent(new Event('session-changed', { bubbles: true }));
    }

    get isBusy() {
      return this.model.turn.state === 'running' || this.info?.state === 'busy' || this.hasOpen;
    }

    showTurn() {
      const { isBusy } = this;
      this.stopButton.hidden = !isBusy;
      this.steerButton.hidden = !isBusy;
      this.sendButton.textContent = isBusy ? 'Queue' : 'Send';
      this.sendButton.title = isBusy ? 'The turn runs. The message is answered after it.' : '';
      this.classList.toggle('busy', isBusy);
      const { state, end } = this.model.turn;
      const text =
        { running: 'A turn runs.', failed: 'The turn failed.', completed: 'The turn has ended.' }[
          state
        ] ?? '';
      if (this.status.textContent !== text) this.status.textContent = text;
      if (end) this.dataset.turn = end.turn;
    }

    showQueue(messages) {
      this.hasOpen = messages.length > 0;
      const queued = messages.filter((message) => message.state === 'queued');
      this.queued = queued;
      const key = JSON.stringify(queued);
      if (key === this.shownQueue) return;
      this.shownQueue = key;
      fill(
        this.queue,
        queued.map((message) =>
          h(
            'div',
            { class: 'queued' },
            h('span', { class: 'tag' }, 'queued'),
            h('span', { class: 'queued-text', dir: 'auto' }, visible(message.text)),
            button(
              'Remove',
              async () => {
                await this.attempt(() =>
                  remove(`/sessions/${this.session}/messages/${message.number}`),
                );
                this.refresh();
              },
              '',
              { 'aria-label': `Remove queued message ${message.number}` },
            ),
          ),
        ),
      );
    }

    showUsage() {
      const usage = this.model.usage;
      if (!usage?.usage) return fill(this.usage);
      const {
        input_tokens: input,
        output_tokens: output,
        cached_input_tokens: cached,
      } = usage.usage;
      const parts = [
        `turn ${usage.turn}`,
        `${count(input)} tokens in${cached ? ` (${count(cached)} cached)` : ''}`,
        `${count(output)} out`,
      ];
      if (typeof usage.cost === 'number') parts.push(`cost ${usage.cost.toFixed(4)}`);
      if (usage.context_tokens && usage.context_window) {
        const percent = Math.round((100 * usage.context_tokens) / usage.context_window);
        parts.push(
          `context ${count(usage.context_tokens)} of ${count(usage.context_window)} (${percent} %)`,
        );
      }
      fill(this.usage, parts.join(' · '));
    }

    /** Shows the requests of the session at the end of its transcript. */
    showApprovals() {
      const waiting = approvals.ofSession(this.session);
      showCards(waiting, this.cards, { box: this.transcript.asked, heading: this.heading });
      this.classList.toggle('waits', this.cards.size > 0);
      this.transcript.showJump();
    }

    /** Runs an action, and shows its failure. */
    async attempt(action) {
      try {
        fill(this.notes);
        return await action();
      } catch (error) {
        fill(this.notes, errorNote(error));
        return undefined;
      }
    }

    async send({ isSteering = false } = {}) {
      if (this.sendButton.disabled) return;
      const typed = this.input.value;
      const text = typed.trim();
      if (!text) return this.input.focus();
      this.sendButton.disabled = true;
      const sent = await this.attempt(async () => {
        // Afterwards, the stop could end the turn of the message.
        if (isSteering) await post(`/sessions/${this.session}/stop`);
        return post(`/sessions/${this.session}/messages`, { text });
      });
      this.sendButton.disabled = false;
      if (!sent) return;
      removeSent(this.input, typed);
      this.keepDraft();
      this.fitInput();
      this.transcript?.toEnd();
      this.refresh();
    }

    /** Stops the turn. If messages wait, asks first: the next one would be answered at once. */
    async stopTurn() {
      const [next] = this.queued ?? [];
      if (next && !(await this.mayStartNext(next))) return;
      await this.attempt(() => post(`/sessions/${this.session}/stop`));
      this.refresh();
    }

    mayStartNext(next) {
      return askPerson('Stop this turn?', {
        content: [
          h('p', null, 'The agent then answers the queued message at once:'),
          h('pre', { class: 'text', dir: 'auto' }, visible(shorten(next.text, 400))),
          h('p', null, 'To stop the agent completely, remove the queued message first.'),
        ],
        yes: 'Stop, and answer the queued message',
        no: 'Let it run',
      });
    }

    /** Copies the session after a question. */
    async fork() {
      const isWanted = await askPerson('Fork this session?', {
        content: [
          h(
            'p',
            null,
            'A new session starts with a copy of this conversation. Both work in the same folder, and this one stays as it is.',
          ),
        ],
        yes: 'Create the copy',
        no: 'Cancel',
        isDanger: false,
      });
      if (!isWanted) return;
      const fork = await this.attempt(() => post(`/sessions/${this.session}/fork`));
      if (fork) location.hash = `#/sessions/${fork.id}`;
    }

    /** Deletes the session after a question. */
    async confirmDelete() {
      const isWanted = await askPerson('Delete this session?', {
        content: [
          h(
            'p',
            null,
            'Its turns, its runs, its worktree and what the memory has of it are deleted. Files of the folder stay.',
          ),
        ],
        yes: 'Delete the session',
        no: 'Keep it',
      });
      if (!isWanted) return;
      const done = await this.attempt(async () => {
        await remove(`/sessions/${this.session}`);
        return true;
      });
      if (done) location.hash = '#/sessions';
    }

    showChanges() {
      return this.attempt(() =>
        showChanges(this.session, {
          notes: this.notes,
          hasWorktree: this.info?.worktree,
        }),
      );
    }
  },
);
