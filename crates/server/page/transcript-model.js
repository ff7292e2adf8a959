// The content of a transcript: the stored items of a session, and what the events of its latest
// turn add: open items, running scripts and their calls.
//
// Items are numbered and are the truth. An item of an event is shown until the item with the same
// key is read; so a reload or a reconnect shows each item once.

import { follow, get } from '/page/api.js';
import { answerOrder } from '/page/dom.js';
import { summaryOf } from '/page/format.js';
import { recalledNote } from '/page/recalled.js';
import { decisionOf } from '/page/run-state.js';

/** Most items of one request. */
const MAX_READ = 1000;
/** How long events are collected before the items are read. */
const SYNC_DELAY_MS = 120;
/** How often the items are read while another process runs a turn. */
const POLL_MS = 3000;
/** Longest output of a running call that is kept, in characters. */
export const MAX_LIVE_OUTPUT = 20_000;

/** Text of a message. */
export function messageText(item) {
  const parts = Array.isArray(item.content) ? item.content : [item.content];
  return parts.map((part) => (typeof part === 'string' ? part : (part?.text ?? ''))).join('');
}

/** A key by which the item of an event is found among the stored items of its turn. */
function keyOf(item) {
  const id = item.id ?? item.call_id;
  if (item.type !== 'message' && id) return `${item.type}/${id}`;
  return `${item.type}/${item.role ?? ''}/${messageText(item)}`;
}

function emptyScript() {
  return { status: 'running', calls: new Map(), logs: [], progress: null, startedMs: null };
}

/** Dispatches `items`, `live`, `script` (with an id), `usage`, `turn` and `notes`. */
export class TranscriptModel extends EventTarget {
  constructor(session) {
    super();
    this.session = session;
    /** Stored items by number - 1, as far as they are read. */
    this.items = [];
    this.total = 0;
    /** Items of events that are not read yet, in order. An open one has `isOpen`. */
    this.live = [];
    this.scripts = new Map();
    this.turn = { number: null, state: 'idle', end: null };
    this.usage = null;
    this.notices = [];
    /** By turn: what the memory added to its prompt, `{ text, details }`, for people. */
    this.recalled = new Map();
    /** By turn: how it ended. */
    this.ends = new Map();
    /** Calls of approval requests that wait, by the id of the request. */
    this.asked = new Map();
    this.beginReadChanged = answerOrder();
    /** Numbers of files by turns that changed some. */
    this.changed = new Map();
    /** By turn: keys of stored items for which no event has arrived, with their count. */
    this.unmatched = new Map();
    this.syncTimer = 0;
    this.isSyncing = false;
  }

  tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  /** Reads the latest turn, and follows the session until `signal` is aborted. */
  async start(signal) {
    this.signal = signal;
    const path = `/sessions/${this.session}`;
    const [latest, first] = await Promise.all([
      get(`${path}/latest-turn`, signal),
      get(`${path}/items?limit=1`, signal),
    ]);
    this.total = first.total;
    this.turn.number = latest.turn;
    this.usage = latest.usage;
    // All items of the latest turn, which its events repeat.
    let from = this.total;
    do {
      from = Math.max(0, from - MAX_READ);
      await this.load(from, Math.min(this.total, from + MAX_READ));
    } while (from > 0 && this.items[from]?.turn >= latest.turn);
    // A later turn may have begun between the two answers.
    for (const entry of this.items) {
      if (entry && entry.turn >= latest.turn) this.expect(entry.turn, keyOf(entry.item));
    }
    await this.readChanged();
    this.readNotes(latest.turn);
    this.tell('items');
    this.tell('usage');
    follow(`${path}/events`, {
      after: latest.after,
      signal,
      onEvent: (event) => this.take(event),
      onOpen: () => {
        // What was open is sent again.
        this.live = this.live.filter((entry) => !entry.isOpen);
        for (const script of this.scripts.values()) {
          for (const call of script.calls.values()) {
            if (call.status === 'running') call.output = '';
          }
        }
        this.sync();
        this.tell('live');
      },
    });
    const timer = setInterval(() => {
      if (!document.hidden) this.sync();
    }, POLL_MS);
    signal.addEventListener('abort', () => clearInterval(timer));
  }

  /** Reads which turns changed files. */
  async readChanged() {
    const isNewest = this.beginReadChanged();
    try {
      const { turns } = await get(`/sessions/${this.session}/changed-turns`, this.signal);
      if (!isNewest()) return;
      this.changed = new Map(turns.map(({ turn, files }) => [turn, files]));
      this.tell('notes');
    } catch {
      /* the end of the next turn reads them again */
    }
  }

  /** Reads what the memory added to turns, and how they ended. Events repeat the latest turn. */
  async readNotes(latest) {
    try {
      for (let after = 0; after !== undefined;) {
        const path = `/sessions/${this.session}/turn-notes?after=${after}`;
        const { turns, next } = await get(path, this.signal);
        for (const note of turns.filter(({ turn }) => turn < latest)) {
          if (note.recalled) this.recalled.set(note.turn, recalledNote(note.recalled));
          this.ends.set(note.turn, note);
        }
        this.tell('notes');
        after = next;
      }
    } catch {
      /* the transcript is complete without them */
    }
  }

  expect(turn, key) {
    const keys = this.unmatched.get(turn) ?? new Map();
    keys.set(key, (keys.get(key) ?? 0) + 1);
    this.unmatched.set(turn, keys);
  }

  /** Takes one expected key of the turn whose events arrive. Returns whether there was one. */
  takeExpected(key) {
    const keys = this.unmatched.get(this.turn.number);
    const left = keys?.get(key) ?? 0;
    if (left > 0) keys.set(key, left - 1);
    return left > 0;
  }

  /** Reads the items from an index up to another, if they are not read. */
  async load(from, to) {
    const end = Math.min(to, this.total);
    while (from < end && this.items[from]) from += 1;
    while (from < end) {
      const limit = Math.min(MAX_READ, end - from);
      const { items } = await get(
        `/sessions/${this.session}/items?after=${from}&limit=${limit}`,
        this.signal,
      );
      if (!items.length) return;
      for (const entry of items) this.items[entry.number - 1] ??= entry;
      from += items.length;
    }
  }

  /** Reads new items soon. */
  sync() {
    if (this.syncTimer) return;
    this.syncTimer = setTimeout(() => {
      this.syncTimer = 0;
      this.readNew();
    }, SYNC_DELAY_MS);
  }

  async readNew() {
    if (this.isSyncing) return this.sync();
    this.isSyncing = true;
    try {
      const path = `/sessions/${this.session}/items`;
      let isChanged = false;
      for (;;) {
        const { items, total } = await get(
          `${path}?after=${this.total}&limit=${MAX_READ}`,
          this.signal,
        );
        for (const entry of items) this.append(entry);
        isChanged ||= items.length > 0;
        if (!items.length || this.total >= total) break;
      }
      if (isChanged) {
        this.tell('items');
        this.tell('live');
      }
    } catch {
      /* the stream reports it, and a later event reads again */
    }
    this.isSyncing = false;
  }

  /** Adds a stored item after the others. */
  append(entry) {
    this.items[entry.number - 1] = entry;
    this.total = Math.max(this.total, entry.number);
    const key = keyOf(entry.item);
    const isSame = (live) => !live.isOpen && live.turn === entry.turn && keyOf(live.item) === key;
    const at = this.live.findIndex(isSame);
    if (at >= 0) this.live.splice(at, 1);
    // The events of a later turn may still be on their way.
    else if (entry.turn >= (this.turn.number ?? 0)) this.expect(entry.turn, key);
  }

  script(id) {
    let script = this.scripts.get(id);
    if (!script) this.scripts.set(id, (script = emptyScript()));
    return script;
  }

  call(script, id) {
    let call = script.calls.get(id);
    if (!call) script.calls.set(id, (call = { id, tool: '', status: 'running', output: '' }));
    return call;
  }

  /** Takes an event of the session. */
  take(event) {
    const handler = HANDLERS[event.type];
    if (handler) handler(this, event);
  }

  endTurn(state, end) {
    this.turn = { number: end.turn, state, end };
    this.ends.set(end.turn, end);
    this.usage = { ...this.usage, ...end, context_tokens: this.usage?.context_tokens };
    this.live = this.live.filter((entry) => !entry.isOpen);
    this.sync();
    this.readChanged();
    this.tell('turn');
    this.tell('usage');
    this.tell('live');
  }
}

/** What each type of event changes. Others change nothing. */
const HANDLERS = {
  'turn.started'(model, event) {
    if (event.turn !== model.turn.number) {
      for (const turn of model.unmatched.keys()) {
        if (turn < event.turn) model.unmatched.delete(turn);
      }
      model.live = [];
    }
    model.turn = { number: event.turn, state: 'running', end: null };
    model.notices = [];
    model.sync();
    model.tell('turn');
    model.tell('live');
  },
  'item.started'(model, event) {
    model.live = model.live.filter((entry) => entry.id !== event.item_id);
    model.live.push({
      id: event.item_id,
      item: event.item,
      text: startText(event.item),
      isOpen: true,
    });
    model.tell('live');
  },
  'item.updated'(model, event) {
    const entry = model.live.find((live) => live.id === event.item_id && live.isOpen);
    if (!entry) return;
    entry.text += event.delta;
    model.tell('live');
  },
  'item.completed'(model, event) {
    const at = model.live.findIndex((live) => live.id === event.item_id && live.isOpen);
    const entry = { id: event.item_id, item: event.item, turn: model.turn.number, isOpen: false };
    if (model.takeExpected(keyOf(event.item))) {
      if (at >= 0) model.live.splice(at, 1);
    } else if (at >= 0) {
      model.live[at] = entry;
    } else {
      model.live.push(entry);
    }
    model.sync();
    model.tell('live');
  },
  'item.dropped'(model, event) {
    model.live = model.live.filter((entry) => entry.id !== event.item_id);
    model.tell('live');
  },
  'script.started'(model, event) {
    const script = model.script(event.script_id);
    script.status = 'running';
    model.tell('script', event.script_id);
  },
  'script.finished'(model, event) {
    Object.assign(model.script(event.script_id), {
      status: event.status,
      durationMs: event.duration_ms,
      error: event.error ?? null,
    });
    model.tell('script', event.script_id);
  },
  'script.log'(model, event) {
    model.script(event.script_id).logs.push(event);
    model.tell('script', event.script_id);
  },
  'script.progress'(model, event) {
    model.script(event.script_id).progress = event.message;
    model.tell('script', event.script_id);
  },
  'script.notify'(model, event) {
    model.script(event.script_id).progress = event.message;
    model.tell('script', event.script_id);
  },
  'call.started'(model, event) {
    const call = model.call(model.script(event.parent_id), event.call_id);
    Object.assign(call, { tool: event.tool, summary: event.args_summary, status: 'running' });
    model.tell('script', event.parent_id);
  },
  'call.output'(model, event) {
    const call = model.call(model.script(event.parent_id), event.call_id);
    call.output = (call.output + event.text).slice(-MAX_LIVE_OUTPUT);
    model.tell('script', event.parent_id);
  },
  'call.finished'(model, event) {
    const call = model.call(model.script(event.parent_id), event.call.id);
    Object.assign(call, event.call, { failure: event.result_failure ?? null });
    model.tell('script', event.parent_id);
  },
  'approval.requested'(model, event) {
    const script = model.script(event.request.scope_id);
    const calls = [];
    for (const asked of event.request.calls) {
      const known = model.call(script, asked.call_id);
      const summary = known.summary ?? summaryOf(asked.args);
      Object.assign(known, { tool: asked.tool, summary, status: 'waiting', isAsked: true });
      calls.push(known);
    }
    model.asked.set(event.request.id, { calls, script: event.request.scope_id });
    model.tell('script', event.request.scope_id);
  },
  'approval.answered'(model, event) {
    const { calls, script } = model.asked.get(event.id) ?? { calls: [] };
    model.asked.delete(event.id);
    calls.forEach((call, at) => {
      const answer = event.answers[at] ?? event.answers[0];
      if (answer) call.decision = decisionOf(answer);
    });
    if (script) model.tell('script', script);
  },
  'usage.updated'(model, event) {
    model.usage = event;
    model.tell('usage');
  },
  error(model, event) {
    model.notices.push(event.message);
    model.tell('live');
  },
  'thread.compacted'(model, event) {
    const { tokens_before: before, tokens_after: after } = event;
    model.notices.push(`The conversation was compacted from ${before} to ${after} tokens.`);
    model.tell('live');
  },
  'memory.recalled'(model, event) {
    model.recalled.set(model.turn.number, recalledNote(event));
    model.tell('notes');
    model.tell('live');
  },
  'turn.completed': (model, event) => model.endTurn('completed', event),
  'turn.failed': (model, event) => model.endTurn('failed', event),
};

function startText(item) {
  if (item.type === 'script_tool_call') return item.source_code ?? '';
  return messageText(item);
}
