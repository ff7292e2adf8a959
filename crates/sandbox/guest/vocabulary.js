// Defines the globals of scripts: `tools`, `context`, `console` and the helpers. They use the few
// functions that the host offers (call, sleep, cancel, message, finish). All of this is part of the
// snapshot; names and data of a run are requested from the host when the script first uses them.
const vocabulary = (host, { urls, encodings }) => {
  const pending = new Map(); // id -> { resolve, reject, promise } of a call, or { fire } of a timer
  let lastId = 0;

  const define = (object, name, value, enumerable = false) =>
    Object.defineProperty(object, name, { value, enumerable, writable: true, configurable: true });

  // One class per error code, so that `instanceof` works. build.rs defines ERROR_CLASSES.
  const errors = {};
  for (const name of ERROR_CLASSES) errors[name] = { [name]: class extends Error {} }[name];

  // Name and message are enumerable, so that {...error} and JSON.stringify(error) include them.
  const makeError = (fields) => {
    const error = new (errors[fields.name] ?? { TypeError, RangeError }[fields.name] ?? Error)(fields.message);
    define(error, "name", fields.name, true);
    define(error, "message", fields.message, true);
    if (fields.code !== undefined) {
      define(error, "retryable", false, true);
      define(error, "suggestions", Object.freeze([]), true);
    }
    for (const key of Object.keys(fields))
      if (key !== "name" && key !== "message" && key !== "at") define(error, key, fields[key], true);
    const at = fields.at ?? host.position();
    if (at) define(error, "stack", `    at ${fields.toolName ? `tools.${fields.toolName}` : "<anonymous>"} (script.ts:${at})\n`);
    return error;
  };

  // Sends a message and returns the reply. A reply that starts with "!" is an error in JSON:
  // thrown.
  const ask = (channel, text) => {
    const reply = host.message(channel, text);
    if (reply !== undefined && reply[0] === "!") throw makeError(host.parseFrozen(reply.slice(1)));
    return reply;
  };

  // Reads a property; undefined if that throws.
  const read = (object, key) => {
    try {
      const value = object[key];
      return typeof value === "function" || typeof value === "symbol" ? undefined : value;
    } catch {
      return undefined;
    }
  };

  // Describes a thrown value as JSON for the host. Never throws, whatever the value does.
  const describe = (thrown) => {
    const fields = {};
    try {
      if (thrown instanceof Error) {
        fields.name = String(read(thrown, "name") ?? "Error");
        fields.message = String(read(thrown, "message") ?? "").slice(0, 8192);
        fields.stack = String(read(thrown, "stack") ?? "").slice(0, 8192);
        for (const key of ["code", "toolName", "callId", "retryable", "suggestions", "path", "metadata"]) {
          const value = read(thrown, key);
          if (value !== undefined && host.isPlain(value, 8)) fields[key] = value;
        }
        const brief = (error) => (error instanceof Error ? `${read(error, "name")}: ${read(error, "message")}` : inspect(error));
        const cause = read(thrown, "cause");
        if (cause !== undefined) fields.cause = brief(cause);
        if (thrown instanceof AggregateError && Array.isArray(thrown.errors))
          fields.message = [fields.message, ...thrown.errors.slice(0, 5).map(brief)].filter(Boolean).join("; ");
      } else {
        fields.name = thrown === null ? "null" : typeof thrown;
        fields.message = inspect(thrown).slice(0, 8192);
        fields.thrown = true;
      }
    } catch {
      fields.name ??= "Error";
      fields.message ??= "an error that cannot be read";
    }
    return JSON.stringify(fields);
  };

  const MAX_ARGS = 1 << 20; // characters of JSON one call may send
  const MAX_VALUE = 4 << 20; // characters of JSON the script may return; the host may show less
  let depthLimit;
  const maxDepth = () => (depthLimit ??= Number(host.message("depth", "") ?? 64));
  const typedArray = Object.getPrototypeOf(Uint8Array);

  const describePath = (path) => (path === "" ? "the value" : `\`${path}\``);
  const joinPath = (path, key) =>
    typeof key === "number" ? `${path}[${key}]` : /^[A-Za-z_$][\w$]*$/.test(key) ? (path ? `${path}.${key}` : key) : `${path}[${JSON.stringify(key)}]`;
  const namespaces = new WeakSet(); // `tools` and its namespaces
  const serializationError = (path, what, fix) =>
    makeError({ name: "SerializationError", code: "SerializationError", message: `${describePath(path)} ${what}: ${fix}`, path, retryable: true });

  // Turns a value into plain JSON data. Nothing is dropped silently: a value that JSON cannot
  // represent is converted (Map, Set, Error, Date), mentioned in `notes`, or passed to
  // `onUnsupported` with its path and a fix.
  const toPlain = (value, path, depth, parents, notes, onUnsupported) => {
    switch (typeof value) {
      case "string":
      case "boolean":
        return value;
      case "number":
        if (Number.isFinite(value)) return value;
        notes.push(`${describePath(path)} is ${value}, which JSON cannot represent: written as null`);
        return null;
      case "undefined":
        return undefined;
      case "bigint":
        return onUnsupported(value, path, "is a BigInt, which JSON cannot represent", "use String(x) or Number(x)");
      case "function":
        return onUnsupported(value, path, "is a function", "pass data, not code; did you mean to call it?");
      case "symbol":
        return onUnsupported(value, path, "is a symbol", "use a string");
    }
    if (value === null) return null;
    if (parents.includes(value)) return onUnsupported(value, path, "is cyclic: it contains itself", "keep only the fields you need");
    if (depth <= 0) return onUnsupported(value, path, `is nested deeper than ${maxDepth()} levels`, "use a flatter value");
    if (namespaces.has(value)) return onUnsupported(value, path, "is `tools` or part of it", "call a tool; Object.keys(tools) lists them");
    if (value instanceof Promise) return onUnsupported(value, path, "is a promise that was not awaited", "write `await`, or `await Promise.all(list)`");
    if (value instanceof WeakMap || value instanceof WeakSet || value instanceof WeakRef)
      return onUnsupported(value, path, `is a ${value.constructor.name}`, "use plain data");
    if (value instanceof ArrayBuffer || value instanceof DataView)
      return onUnsupported(value, path, "is binary data", "use Array.from(new Uint8Array(x)) or a string");
    parents.push(value);
    const inner = (item, key) => toPlain(item, joinPath(path, key), depth - 1, parents, notes, onUnsupported);
    let plain;
    if (typeof value.toJSON === "function") {
      if (value instanceof Date && Number.isNaN(value.getTime())) notes.push(`${describePath(path)} is an invalid Date: written as null`);
      plain = toPlain(value.toJSON(""), path, depth - 1, parents, notes, onUnsupported);
    } else if (Array.isArray(value) || value instanceof typedArray) {
      plain = Array.from(value, (item, i) => inner(item, i) ?? null);
    } else if (value instanceof Set) {
      plain = [...value].map((item, i) => inner(item, i) ?? null);
    } else if (value instanceof Map) {
      const keys = [...value.keys()];
      const simple = keys.every((key) => typeof key === "string" || typeof key === "number");
      if (simple && new Set(keys.map(String)).size === keys.length) {
        plain = Object.create(null);
        for (const [key, item] of value) plain[key] = inner(item, String(key));
      } else {
        plain = [...value].map(([key, item], i) => [inner(key, i) ?? null, inner(item, i) ?? null]);
      }
    } else if (value instanceof Error) {
      plain = { name: String(value.name), message: String(value.message) };
      if (value instanceof AggregateError) plain.errors = inner(value.errors, "errors");
      if (value.cause !== undefined) plain.cause = inner(value.cause, "cause");
      for (const key of Object.keys(value)) if (key !== "stack") plain[key] = inner(value[key], key);
    } else if (value instanceof RegExp || value instanceof urls.URLSearchParams) {
      plain = String(value);
    } else if (value instanceof Number || value instanceof String || value instanceof Boolean) {
      plain = value.valueOf();
    } else if (typeof value.next === "function" && typeof value[Symbol.iterator] === "function") {
      return onUnsupported(value, path, "is an iterator", "spread it: [...x]");
    } else {
      plain = Object.create(null);
      for (const key of Object.keys(value)) plain[key] = inner(value[key], key);
    }
    parents.pop();
    return plain;
  };

  const stringify = (value, notes) =>
    host.fastJson(value, maxDepth(), MAX_VALUE) ??
    (host.isPlain(value, maxDepth())
      ? JSON.stringify(value)
      : JSON.stringify(
          toPlain(value, "", maxDepth(), [], notes, (_, path, what, fix) => {
            throw serializationError(path, what, fix);
          }),
        ));

  // The text that replaces a value JSON cannot represent in a log.
  const placeholder = (value, path, what) =>
    typeof value === "bigint" ? `${value}n`
    : typeof value === "function" ? `[function ${value.name || "anonymous"}]`
    : typeof value === "symbol" ? String(value)
    : value instanceof Promise ? "[promise: write `await` to see its value]"
    : namespaces.has(value) ? "[tools]"
    : `[${what.replace(/^is (an? )?/, "")}]`;

  // Renders a value for logs. Never throws; strings are not quoted.
  const inspect = (value) => {
    try {
      if (typeof value === "string") return value;
      if (typeof value === "bigint" || typeof value === "function" || namespaces.has(value) || value instanceof Promise)
        return placeholder(value, "", "");
      if (typeof value === "object" && value !== null) {
        if (value instanceof Error) return `${value.name}: ${value.message}${value.stack ? `\n${value.stack}`.trimEnd() : ""}`;
        const text = JSON.stringify(toPlain(value, "", 8, [], [], placeholder));
        return value instanceof Map || value instanceof Set ? `${value.constructor.name}(${value.size}) ${text}` : text;
      }
      return String(value);
    } catch (error) {
      return `[${read(error, "message") ?? "unprintable value"}]`;
    }
  };

  // Serializes the arguments of a call as JSON. Throws if they cannot be sent.
  const serializeArgs = (path, args) => {
    const notes = [];
    let text;
    try {
      text = stringify(args, notes);
    } catch (error) {
      if (read(error, "name") !== "SerializationError") throw error;
      throw makeError({
        name: "ToolValidationError", code: "ToolValidationError", toolName: path, retryable: true,
        message: `${path}: an argument cannot be sent: ${error.message.replace(/^`\[0\]\.?/, "`").replace(/^`` /, "it ")}`,
      });
    }
    if (text.length > MAX_ARGS)
      throw makeError({
        name: "ToolValidationError", code: "ToolValidationError", toolName: path, retryable: true,
        message: `${path}: the arguments have ${text.length} bytes as JSON, the limit is ${MAX_ARGS}`,
      });
    if (notes.length > 0) for (const note of notes) host.message("warning", note.replace(/^`\[0\]\.?/, "argument `"));
    return text;
  };
  const call = (path, args, view) => {
    const entry = Promise.withResolvers();
    if (view) entry.view = view;
    const next = lastId + 1;
    pending.set(next, entry);
    if (host.callFast(next, path, args, maxDepth(), MAX_ARGS)) {
      lastId = next;
      return entry.promise;
    }
    pending.delete(next);
    // Serializing these arguments can run code of the script, which can make calls itself.
    const text = serializeArgs(path, args);
    const id = ++lastId;
    pending.set(id, entry);
    host.call(id, path, text);
    return entry.promise;
  };

  // A result that is a part of a text file also has `content`, the same string as `text`, and
  // `numbered`. The latter is computed when it is read, and not enumerable: a result that is returned
  // or logged does not contain the text once more.
  const numberLines = (text, first) =>
    text.replace(/\n$/, "").split("\n").map((line, i) => `L${first + i}: ${line.replace(/\r$/, "")}`).join("\n");
  const textLines = (part) => {
    if (typeof part?.text !== "string") return part;
    let numbered;
    const get = () => (numbered ??= part.text === "" ? "" : numberLines(part.text, part.firstLine));
    return Object.freeze(Object.defineProperty({ ...part, content: part.text }, "numbered", { get: Object.freeze(get) }));
  };
  const callForLines = (path, args) => call(path, args, textLines);

  // A result that is a session, or a list of sessions, also has `send`, which is not enumerable.
  const withSend = (session) => {
    if (Array.isArray(session)) return Object.freeze(session.map(withSend));
    if (typeof session?.id !== "string") return session;
    const send = (...args) => call("sessions.send", [session.id, ...args]);
    return Object.freeze(define({ ...session }, "send", Object.freeze(send)));
  };
  const callForSession = (path, args) => call(path, args, withSend);

  // Starts a task: a call that continues after the script has ended. The host returns its id at
  // once.
  const spawn = (path, args) => {
    const id = ask("spawn", serializeArgs(path, args));
    const task = { id };
    let done;
    Object.defineProperty(task, "done", { get: Object.freeze(() => (done ??= call("spawn.wait", [{ id }]))) });
    define(task, "cancel", Object.freeze(() => call("spawn.cancel", [{ id }])));
    return Object.freeze(task);
  };

  // Names are resolved by the host, once each: "tool", "namespace", or an error with suggestions.
  const pathOf = new WeakMap(); // function of a tool, or a namespace -> its path
  // Names that code reads from any object to find out what it is. A tool can still have such a
  // name.
  const PROBES = new Set(["then", "toJSON", "next", "constructor", "toString", "valueOf", "length", "prototype", "nodeType", "inspect"]);
  const namespace = (prefix) => {
    const known = new Map();
    const lookup = (name) => {
      let found = known.get(name);
      if (found === undefined) {
        const path = prefix + name;
        if (PROBES.has(name) && host.message("exists", path) === undefined) return undefined;
        const kind = ask("resolve", path);
        if (kind === "absent") return undefined;
        const make = { task: spawn, "tool of text lines": callForLines, "tool of a session": callForSession }[kind] ?? call;
        found = kind === "namespace" ? namespace(`${path}.`) : define((...args) => make(path, args), "name", name);
        // `.raw(…)` returns the complete response of an MCP tool, not only its value.
        if (kind === "tool with raw") define(found, "raw", Object.freeze(define((...args) => call(`${path}.raw`, args), "name", "raw")));
        if (typeof found === "function") pathOf.set(Object.freeze(found), path);
        known.set(name, found);
      }
      return found;
    };
    const refuseChange = (name) => {
      throw new TypeError(`cannot change \`${prefix ? prefix.slice(0, -1) : "tools"}.${String(name)}\`: the tools are read-only`);
    };
    // Code that inspects the object as a whole needs all names to be defined, and the object
    // frozen.
    const complete = (target) => {
      if (Object.isExtensible(target)) {
        for (const name of host.parseFrozen(ask("names", prefix)))
          Object.defineProperty(target, name, { value: lookup(name), enumerable: true });
        Object.freeze(target);
      }
      return target;
    };
    const proxy = new Proxy(Object.create(null), {
      get: (_, name) => (typeof name === "symbol" ? undefined : lookup(name)),
      has: (target, name) =>
        typeof name === "string" && (Object.hasOwn(target, name) || host.message("exists", prefix + name) !== undefined),
      ownKeys: (target) => Reflect.ownKeys(complete(target)),
      getOwnPropertyDescriptor: (target, name) => Reflect.getOwnPropertyDescriptor(complete(target), name),
      isExtensible: (target) => Reflect.isExtensible(complete(target)),
      preventExtensions: (target) => Reflect.preventExtensions(complete(target)),
      setPrototypeOf: (_, proto) => proto === null,
      set: (_, name) => refuseChange(name),
      deleteProperty: (_, name) => refuseChange(name),
      defineProperty: (_, name) => refuseChange(name),
    });
    namespaces.add(proxy);
    pathOf.set(proxy, prefix.slice(0, -1));
    return proxy;
  };
  const tools = namespace("");

  // Promise.race that cancels the losing calls. `inPlace` is a bit mask of the entries that are
  // calls written in the array literal itself: the script has no other reference to them.
  const race = (entries, inPlace) => {
    const winner = Promise.race(entries);
    const mine = entries.filter((_, i) => inPlace & (1 << i));
    const ids = [...pending].filter(([, entry]) => mine.includes(entry.promise)).map(([id]) => id);
    const stopRest = () => {
      for (const id of ids) if (pending.has(id)) host.cancel(id);
    };
    winner.then(stopRest, stopRest);
    return winner;
  };

  const MAX_TIMERS = 256;
  let timers = 0;
  const setTimeout = (callback, ms = 0, ...args) => {
    if (typeof callback !== "function") throw new TypeError("setTimeout takes a function");
    if (timers >= MAX_TIMERS) throw new RangeError(`more than ${MAX_TIMERS} timers are pending`);
    const wait = Number(ms);
    const id = ++lastId;
    timers++;
    pending.set(id, { fire: () => callback(...args) });
    host.sleep(id, wait > 0 ? wait : 0);
    return id;
  };
  const clearTimeout = (id) => {
    if (pending.get(id)?.fire && pending.delete(id)) {
      timers--;
      host.cancel(id);
    }
  };

  // Replaces `%s`, `%d`, `%o` and the like as Node does, then appends the other values.
  const format = (first, ...rest) => {
    if (typeof first !== "string" || !/%[sdifoOjc%]/.test(first)) return [first, ...rest].map(inspect).join(" ");
    const head = first.replace(/%([sdifoOjc%])/g, (placeholder, kind) => {
      if (kind === "%") return "%";
      if (rest.length === 0) return placeholder;
      const value = rest.shift();
      if (kind === "c") return "";
      if (kind !== "d" && kind !== "f" && kind !== "i") return inspect(value);
      const number = typeof value === "number" ? value : typeof value === "string" ? Number(value) : NaN;
      return String(kind === "i" ? Math.trunc(number) : number);
    });
    return [head, ...rest.map(inspect)].join(" ");
  };
  let indent = "";
  const logAt = (level) => (...args) => {
    const line = args.length === 0 ? "" : format(...args);
    host.message("log", `${level}\n${indent}${indent ? line.replaceAll("\n", `\n${indent}`) : line}`);
  };
  const log = logAt("log");
  const timing = new Map();
  const counts = new Map();
  const console = {
    log, info: log, debug: log, dir: (value) => log(value), warn: logAt("warn"), error: logAt("error"),
    trace: (...args) => log(...args, `(line ${host.position()})`),
    assert: (ok, ...args) => void (ok || logAt("error")("assertion failed:", ...args)),
    count: (label = "default") => {
      counts.set(label, (counts.get(label) ?? 0) + 1);
      log(`${inspect(label)}: ${counts.get(label)}`);
    },
    time: (label = "default") => void timing.set(label, Date.now()),
    timeEnd: (label = "default") => log(`${inspect(label)}: ${Date.now() - (timing.get(label) ?? Date.now())} ms`),
    group: (...args) => {
      if (args.length > 0) log(...args);
      indent += "  ";
    },
    groupEnd: () => void (indent = indent.slice(2)),
    table: (rows) => {
      const list = typeof rows === "object" && rows !== null ? Object.values(rows) : [rows];
      for (const row of list) log(row);
    },
  };

  const text = (...values) => {
    for (const value of values) ask("text", typeof value === "string" ? value : (stringify(value, []) ?? "undefined"));
  };
  const image = (value, detail) => void ask("image", JSON.stringify([value, detail]));
  const audio = (value) => void ask("audio", JSON.stringify([value]));
  const notify = (value) => void ask("notify", typeof value === "string" ? value : stringify(value, []) ?? "");
  const store = (key, value) => {
    if (typeof key !== "string" || key === "") throw new TypeError("store needs a non-empty string as its key");
    const json = stringify(value, []);
    if (json === undefined) throw new TypeError(`store(${JSON.stringify(key)}): undefined cannot be stored`);
    ask("store", `${JSON.stringify(key)}\n${json}`);
  };
  const load = (key) => {
    const json = ask("load", JSON.stringify(String(key)));
    return json === undefined ? undefined : host.parseFrozen(json);
  };
  // Decides about recorded calls of the resumed run. While one is undecided, calls that may change
  // something throw.
  const recordedId = (callId) => {
    if (typeof callId !== "string" || callId === "") throw new TypeError("resume needs the id of a recorded call");
    return callId;
  };
  const resume = {
    repeat: (callId) => void ask("resume", JSON.stringify([recordedId(callId)])),
    skip: (callId, value = null) =>
      void ask("resume", `[${JSON.stringify(recordedId(callId))},${stringify(value, [])}]`),
  };
  const recall = (handle, options) => call("recall", [{ handle, ...options }]);
  const help = (name) => ask("help", name === undefined ? "" : (pathOf.get(name) ?? String(name))) ?? "";
  const exit = () => host.exit();
  const yield_control = () => void ask("yield", "");
  const emitProgress = (message, kind = "info") => void ask("progress", `${kind === "warn" ? "warn" : "info"}\n${String(message)}`);

  const structuredClone = (value) => {
    const seen = new Map();
    const copy = (item, path) => {
      if (typeof item === "function" || typeof item === "symbol") throw new TypeError(`structuredClone: ${describePath(path)} cannot be cloned`);
      if (typeof item !== "object" || item === null) return item;
      if (seen.has(item)) return seen.get(item);
      let clone;
      if (item instanceof Date) clone = new Date(item.getTime());
      else if (item instanceof RegExp) clone = new RegExp(item.source, item.flags);
      else if (item instanceof typedArray) clone = item.slice();
      else if (item instanceof ArrayBuffer) clone = item.slice(0);
      else if (item instanceof Map) {
        seen.set(item, (clone = new Map()));
        for (const [k, v] of item) clone.set(copy(k, path), copy(v, path));
      } else if (item instanceof Set) {
        seen.set(item, (clone = new Set()));
        for (const v of item) clone.add(copy(v, path));
      } else if (item instanceof Error) {
        seen.set(item, (clone = new Error(item.message)));
        define(clone, "name", item.name);
      } else {
        seen.set(item, (clone = Array.isArray(item) ? new Array(item.length) : {}));
        for (const key of Object.keys(item)) define(clone, key, copy(item[key], joinPath(path, key)), true);
      }
      seen.set(item, clone);
      return clone;
    };
    return copy(value, "");
  };

  let contextValue;
  const context = () => {
    if (contextValue === undefined) {
      const fields = { ...host.parseFrozen(ask("context", "")) };
      // Values that change while the script runs are requested whenever they are read.
      const live = (object, name, read) => Object.freeze(Object.defineProperty({ ...object }, name, { get: Object.freeze(read), enumerable: true }));
      fields.sandbox = live(fields.sandbox, "remainingToolBudget", () => Number(ask("budget", "")));
      fields.approvals = live(fields.approvals, "lastRequestId", () => host.message("approval", ""));
      // Not enumerable, because `return context` and console.log(context) should contain data only.
      define(fields, "telemetry", Object.freeze({ emitProgress }));
      define(fields, "emitProgress", emitProgress);
      contextValue = Object.freeze(fields);
    }
    return contextValue;
  };
  let allTools;
  const listTools = () => (allTools ??= host.parseFrozen(ask("tools", "")));

  // Rejected promises without a handler. The host is notified at once, and again if a handler is added.
  const rejections = new Map();
  let lastRejection = 0;
  const finishWith = (value) => {
    const notes = [];
    let json;
    try {
      json = value === undefined ? "" : (stringify(value, notes) ?? "");
    } catch (error) {
      return fail(error);
    }
    if (json.length > MAX_VALUE)
      return fail(serializationError("", `has ${json.length} bytes as JSON`, "return only what is needed: filter, count, or take a slice"));
    for (const note of notes) host.message("warning", note);
    host.finish(0, json);
  };
  const fail = (error) => {
    let description = '{"name":"Error","message":"an error that cannot be described"}';
    try {
      description = describe(error);
    } catch {}
    host.finish(1, description);
  };

  const hooks = {
    run: (main) => void main().then(finishWith, fail),
    settle: (id, how, payload) => {
      const entry = pending.get(id);
      if (entry === undefined) return;
      pending.delete(id);
      if (entry.fire) {
        timers--;
        entry.fire();
      } else if (how === 1) entry.resolve(entry.view ? entry.view(payload) : payload);
      else entry.reject(how === 0 ? makeError(payload) : payload);
    },
    fail,
    rejection: (promise, reason, handled) => {
      if (handled) {
        const id = rejections.get(promise);
        if (id !== undefined && rejections.delete(promise)) host.message("handled", String(id));
      } else if (rejections.size < 8) {
        rejections.set(promise, ++lastRejection);
        host.message("rejected", `${lastRejection}\n${describe(reason)}`);
      }
    },
  };

  Object.freeze(emitProgress);
  // Whole milliseconds since the script's first call: a finer clock could be used to observe the
  // host.
  let origin;
  const performance = { now: () => Date.now() - (origin ??= Date.now()) };
  const globals = {
    performance, tools, console, text, image, audio, notify, store, load, recall, resume, help, exit, yield_control,
    setTimeout, clearTimeout, structuredClone, __race: race, ...encodings, ...urls, ...errors,
  };
  const lazy = { context, ALL_TOOLS: listTools };
  // `tools` and its namespaces are proxies that ask the host: the hardening must not walk into
  // them.
  return { globals, lazy, hooks, opaque: [tools] };
};
