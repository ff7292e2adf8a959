/** Ids, working directory and limits of this run. Read-only. */
declare const context: {
  readonly conversationId: string;
  readonly sessionId: string;
  readonly turnId: string;
  readonly scriptId: string;
  readonly workingDirectory: string;
  /** Arguments after `--` on the command line. */
  readonly args: readonly string[];
  readonly provider: string;
  readonly model: string;
  readonly sandbox: {
    readonly timeoutMs: number;
    readonly memoryMb: number;
    readonly remainingToolBudget: number;
    readonly maxConcurrentToolCalls: number;
    readonly mode: "disabled" | "dry-run" | "enabled";
  };
  readonly capabilities: { readonly tools: readonly string[] };
  readonly approvals: { readonly required: boolean; readonly lastRequestId?: string };
  readonly telemetry: { emitProgress(message: string, kind?: "info" | "warn"): void };
  emitProgress(message: string, kind?: "info" | "warn"): void;
};
/** Writes to the run's logs. */
declare const console: Record<
  "log" | "info" | "debug" | "dir" | "warn" | "error" | "trace" | "assert" | "count" | "time" | "timeEnd" | "group" | "groupEnd" | "table",
  (...values: unknown[]) => void
>;
/** Shows output besides the returned value. */
declare function text(...values: unknown[]): void;
/** Shows an image: a base64 `data:` URL or a content block. */
declare function image(value: string | { data: string; mimeType: string }, detail?: string): void;
/** Plays a sound: a base64 `data:` URL or a content block. */
declare function audio(value: string | { data: string; mimeType: string }): void;
/** Sends a message to the caller at once, before the script ends. */
declare function notify(value: unknown): void;
/** Stores a JSON value for later scripts of the session. */
declare function store(key: string, value: unknown): void;
/** Returns a value that `store` stored, or undefined. */
declare function load(key: string): any;
/** Returns what an earlier run (`scr_…`) or one of its calls (`scr_…/tool_3`) returned, or a slice of it. */
declare function recall(handle: string, options?: { pointer?: string; offset?: number; limit?: number }): Promise<{ value: any; total: number | null; truncated: boolean }>;
/** Decides about a recorded call of the resumed run: run it again, or return a value instead. */
declare const resume: { repeat(callId: string): void; skip(callId: string, value?: unknown): void };
/** Returns an overview, or the types of one tool. */
declare function help(name?: string | Function): string;
/** Name and description of every tool. */
declare const ALL_TOOLS: readonly { readonly name: string; readonly description: string }[];
/** Ends the script successfully. */
declare function exit(): never;
/** Lets the caller stop waiting; the script continues. Has no effect if the caller waits for the result. */
declare function yield_control(): void;
declare function setTimeout(callback: (...args: any[]) => void, ms?: number, ...args: unknown[]): number;
declare function clearTimeout(id: number): void;
/** Returns a deep copy, which can be changed: results are frozen. */
declare function structuredClone<T>(value: T): MutableCopy<T>;
type MutableCopy<T> = T extends object ? { -readonly [K in keyof T]: MutableCopy<T[K]> } : T;
/** Standard URL parser (WHATWG). */
declare class URL {
  constructor(url: string | URL, base?: string | URL);
  static canParse(url: string | URL, base?: string | URL): boolean;
  static parse(url: string | URL, base?: string | URL): URL | null;
  href: string;
  readonly origin: string;
  protocol: string;
  username: string;
  password: string;
  host: string;
  hostname: string;
  port: string;
  pathname: string;
  search: string;
  readonly searchParams: URLSearchParams;
  hash: string;
  toString(): string;
  toJSON(): string;
}
declare class URLSearchParams {
  constructor(init?: string | Record<string, string> | Iterable<readonly [string, string]>);
  readonly size: number;
  append(name: string, value: string): void;
  delete(name: string, value?: string): void;
  get(name: string): string | null;
  getAll(name: string): string[];
  has(name: string, value?: string): boolean;
  set(name: string, value: string): void;
  sort(): void;
  forEach(callback: (value: string, name: string, params: URLSearchParams) => void, thisArg?: unknown): void;
  keys(): IterableIterator<string>;
  values(): IterableIterator<string>;
  entries(): IterableIterator<[string, string]>;
  [Symbol.iterator](): IterableIterator<[string, string]>;
  toString(): string;
}
declare class TextEncoder {
  readonly encoding: string;
  encode(text?: string): Uint8Array;
  encodeInto(text: string, target: Uint8Array): { read: number; written: number };
}
/** Decodes `utf-8` (default), `utf-16le` and `latin1`. */
declare class TextDecoder {
  constructor(label?: string, options?: { fatal?: boolean; ignoreBOM?: boolean });
  readonly encoding: string;
  readonly fatal: boolean;
  readonly ignoreBOM: boolean;
  decode(input?: ArrayBuffer | ArrayBufferView, options?: { stream?: boolean }): string;
}
/** Random values from the run's seed. They are not secret. */
declare const crypto: {
  randomUUID(): string;
  getRandomValues<T extends ArrayBufferView>(array: T): T;
};
declare function queueMicrotask(callback: () => void): void;
declare function atob(text: string): string;
declare function btoa(text: string): string;
/** The error that a failed call throws; `name` is its code. */
interface ToolError extends Error {
  readonly code: string;
  readonly toolName?: string;
  readonly callId?: string;
  readonly retryable: boolean;
  readonly suggestions: readonly string[];
}
/** `now()` returns the milliseconds since its first call. */
declare const performance: { now(): number };
