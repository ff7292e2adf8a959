/** Ids, the working directory and the limits of this run. Read-only. */
declare const context: {
  readonly conversationId: string;
  readonly sessionId: string;
  readonly turnId: string;
  readonly scriptId: string;
  readonly workingDirectory: string;
  /** Words after `--` on the command line. */
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
/** Leaves a note in the run's logs. */
declare const console: Record<
  "log" | "info" | "debug" | "dir" | "warn" | "error" | "trace" | "assert" | "count" | "time" | "timeEnd" | "group" | "groupEnd" | "table",
  (...values: unknown[]) => void
>;
/** Shows something besides the returned value. */
declare function text(...values: unknown[]): void;
/** Shows an image: a base64 `data:` URL or a content block. */
declare function image(value: string | { data: string; mimeType: string }, detail?: string): void;
/** Plays a sound: a base64 `data:` URL or a content block. */
declare function audio(value: string | { data: string; mimeType: string }): void;
/** Tells the host something at once. */
declare function notify(value: unknown): void;
/** Keeps a JSON value for later scripts of the session. */
declare function store(key: string, value: unknown): void;
/** A value kept by `store`, or undefined. */
declare function load(key: string): any;
/** What an earlier run returned (`scr_…`) or one of its calls (`scr_…/tool_3`), whole or in slices. */
declare function recall(handle: string, options?: { pointer?: string; offset?: number; limit?: number }): Promise<{ value: any; total: number | null; truncated: boolean }>;
/** Decides about a call that the resumed run recorded: run it again, or return a value instead. */
declare const resume: { repeat(callId: string): void; skip(callId: string, value?: unknown): void };
/** What there is, or the types of one tool. */
declare function help(name?: string | Function): string;
/** Every tool by name and purpose. */
declare const ALL_TOOLS: readonly { readonly name: string; readonly description: string }[];
/** Ends the script here, successfully. */
declare function exit(): never;
/** Tells the host that it may hand control back while the script goes on; a host that waits for the result does not. */
declare function yield_control(): void;
declare function setTimeout(callback: (...args: any[]) => void, ms?: number, ...args: unknown[]): number;
declare function clearTimeout(id: number): void;
declare function structuredClone<T>(value: T): T;
declare function queueMicrotask(callback: () => void): void;
declare function atob(text: string): string;
declare function btoa(text: string): string;
/** What a failed call is thrown as; `name` says which. */
interface ToolError extends Error {
  readonly code: string;
  readonly toolName?: string;
  readonly callId?: string;
  readonly retryable: boolean;
  readonly suggestions: readonly string[];
}
/** Milliseconds since the script first asked. */
declare const performance: { now(): number };
