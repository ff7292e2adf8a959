// Requests to the HTTP API, and streams of Server-Sent Events that continue after a break.

const API = '/api/v1';
/** Pauses before a stream connects again, in milliseconds. The last one repeats. */
const RETRY_PAUSES = [200, 500, 1000, 2000, 4000];
/** A stream without a byte for this long is broken; the server sends a comment more often. */
const SILENCE_LIMIT_MS = 45_000;
/** How long a request that changes something is tried again if the server does not answer. */
const REPEAT_LIMIT_MS = 15_000;

/** A failure that the API or the network reported. */
class ApiFailure extends Error {
  constructor(status, message, hint) {
    super(message);
    this.status = status;
    this.hint = hint;
  }
}

/** Dispatches `login` when a request has no valid token, and `connection` with a `state`. */
export const apiEvents = new EventTarget();

function report(state) {
  apiEvents.dispatchEvent(new CustomEvent('connection', { detail: state }));
}

function randomKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

function sleep(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener(
      'abort',
      () => {
        clearTimeout(timer);
        resolve();
      },
      { once: true },
    );
  });
}

async function failureOf(response) {
  const text = await response.text();
  let error = null;
  try {
    error = JSON.parse(text).error;
  } catch {
    /* not an answer of the API */
  }
  if (response.status === 401) apiEvents.dispatchEvent(new Event('login'));
  const message = error?.message ?? `status ${response.status}`;
  return new ApiFailure(response.status, message, error?.hint);
}

async function request(method, path, { body, signal, key } = {}) {
  const headers = {};
  if (body !== undefined) headers['content-type'] = 'application/json';
  if (key) headers['idempotency-key'] = key;
  let response;
  try {
    const text = body === undefined ? undefined : JSON.stringify(body);
    response = await fetch(API + path, { method, headers, body: text, signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    report('offline');
    throw new ApiFailure(0, 'the server does not answer', 'check that `selvedge serve` runs');
  }
  report('online');
  if (!response.ok) throw await failureOf(response);
  return response.status === 204 ? null : response.json();
}

/** Reads JSON. */
export function get(path, signal) {
  return request('GET', path, { signal });
}

/** Sends JSON. While the server does not answer, the request is repeated: it runs once. */
export async function post(path, body = {}, { once = true } = {}) {
  const key = once ? randomKey() : undefined;
  const deadline = Date.now() + REPEAT_LIMIT_MS;
  for (;;) {
    try {
      return await request('POST', path, { body, key });
    } catch (error) {
      if (error.status !== 0 || !once || Date.now() > deadline) throw error;
      await sleep(500);
    }
  }
}

/** Writes something; a request without a body names it by its path. */
export function put(path, body) {
  return request('PUT', path, { body });
}

/** Changes the given fields. */
export function patch(path, body) {
  return request('PATCH', path, { body });
}

export function remove(path) {
  return request('DELETE', path);
}

/** Reads text outside of `/api/v1`, such as `/metrics`. */
export async function getText(path, signal) {
  const response = await fetch(path, { signal });
  if (!response.ok) throw await failureOf(response);
  return response.text();
}

/** The query of a path, without empty values. */
export function query(values) {
  const entries = Object.entries(values).filter(
    ([, value]) => value !== '' && value !== null && value !== undefined,
  );
  return entries.length ? `?${new URLSearchParams(entries)}` : '';
}

/**
 * Follows a stream until `signal` is aborted. `onEvent(event, number)` gets each event, `number` is
 * undefined for parts of an open item. After a break the stream continues after the last number.
 * While the page is hidden it is closed: a browser has few connections to a server.
 * `onOpen` runs after each connect, before its events.
 */
export async function follow(path, { after, signal, onEvent, onOpen }) {
  let last = after;
  let failures = 0;
  while (!signal.aborted) {
    if (document.hidden) await untilVisible(signal);
    if (signal.aborted) return;
    const attempt = new AbortController();
    const stop = () => attempt.abort();
    const onHidden = () => {
      if (document.hidden) stop();
    };
    signal.addEventListener('abort', stop);
    document.addEventListener('visibilitychange', onHidden);
    try {
      const headers = last === undefined ? {} : { 'last-event-id': String(last) };
      const response = await fetch(API + path, { headers, signal: attempt.signal });
      if (!response.ok) throw await failureOf(response);
      report('online');
      failures = 0;
      onOpen?.();
      await readEvents(response.body, stop, (event, number) => {
        if (number !== undefined) last = number;
        onEvent(event, number);
      });
    } catch (error) {
      if (signal.aborted) return;
      if ([401, 403, 404].includes(error.status)) return;
      if (!attempt.signal.aborted) report('offline');
    } finally {
      signal.removeEventListener('abort', stop);
      document.removeEventListener('visibilitychange', onHidden);
      stop();
    }
    const pause = RETRY_PAUSES[Math.min(failures, RETRY_PAUSES.length - 1)];
    failures += 1;
    await sleep(pause, signal);
  }
}

function untilVisible(signal) {
  return new Promise((resolve) => {
    const check = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener('visibilitychange', check);
      resolve();
    };
    document.addEventListener('visibilitychange', check);
    signal.addEventListener('abort', check, { once: true });
  });
}

/** Reads the events of a body. Calls `stop` if it is silent for too long. */
async function readEvents(body, stop, onEvent) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let parts = [];
  for (;;) {
    const timer = setTimeout(stop, SILENCE_LIMIT_MS);
    const { done, value } = await reader.read();
    clearTimeout(timer);
    if (done) return;
    const text = decoder.decode(value, { stream: true });
    parts.push(text);
    // A long line arrives in many parts: they are joined once.
    if (!text.includes('\n')) continue;
    const frames = parts.join('').split('\n\n');
    parts = [frames.pop()];
    for (const frame of frames) readFrame(frame, onEvent);
  }
}

function readFrame(frame, onEvent) {
  let number;
  const data = [];
  for (const line of frame.split('\n')) {
    if (line.startsWith('data:')) data.push(line.slice(line[5] === ' ' ? 6 : 5));
    else if (line.startsWith('id:')) number = Number(line.slice(3));
  }
  if (data.length) onEvent(JSON.parse(data.join('\n')), number);
}
