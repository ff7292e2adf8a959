// The approval requests that wait, of all sessions. One stream for the whole page.

import { follow, get, post } from '/page/api.js';

/** How often the requests are read while the page is hidden, which closes its streams. */
const HIDDEN_POLL_MS = 10_000;

class ApprovalStore extends EventTarget {
  constructor() {
    super();
    /** Requests by id, the oldest first. */
    this.waiting = new Map();
    this.closed = new Set();
    /** The last reading of the list. */
    this.reading = Promise.resolve();
  }

  start(signal) {
    follow('/approvals/events', {
      signal,
      onOpen: () => this.reload(),
      onEvent: (event) => {
        if (event.type === 'approval.requested') this.open(event.approval);
        else if (event.type === 'approval.closed') this.close(event.id);
      },
    });
    // The title tells a person in another tab that something waits.
    const timer = setInterval(() => document.hidden && this.reload(), HIDDEN_POLL_MS);
    signal.addEventListener('abort', () => clearInterval(timer));
  }

  /** Reads the whole list after earlier readings: an older list must not replace a newer one. */
  reload() {
    this.reading = this.reading.then(() => this.readAll());
    return this.reading;
  }

  /**
   * Reads the whole list: after a break of the stream some requests may be decided. Requests that
   * the stream opens or closes meanwhile are newer than the list.
   */
  async readAll() {
    const before = [...this.waiting.keys()];
    this.closed.clear();
    try {
      const { approvals } = await get('/approvals');
      const listed = new Set(approvals.map(({ id }) => id));
      for (const id of before) if (!listed.has(id)) this.waiting.delete(id);
      for (const approval of approvals) {
        if (!this.closed.has(approval.id)) this.waiting.set(approval.id, approval);
      }
      const byAge = ([, one], [, other]) => one.asked_ms - other.asked_ms;
      this.waiting = new Map([...this.waiting].sort(byAge));
      this.changed();
    } catch {
      /* the stream reports it */
    }
  }

  open(approval) {
    if (this.waiting.has(approval.id)) return;
    this.waiting.set(approval.id, approval);
    this.changed();
  }

  close(id) {
    this.closed.add(id);
    if (this.waiting.delete(id)) this.changed();
  }

  changed() {
    this.dispatchEvent(new Event('change'));
  }

  ofSession(session) {
    return [...this.waiting.values()].filter((approval) => approval.session === session);
  }

  /** Decides about a request. Another client may have been faster: the request closes as well. */
  async decide(id, decision, reason) {
    const body = reason ? { decision, reason } : { decision };
    await post(`/approvals/${id}`, body);
    this.close(id);
  }
}

export const approvals = new ApprovalStore();
