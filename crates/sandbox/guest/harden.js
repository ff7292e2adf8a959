// Hardens the realm for untrusted scripts. Freezes every intrinsic that is reachable from the
// global object or from an instance of a kind that no global names, replaces every constructor that
// compiles strings by one that throws, and removes globals that are not standard or open a side
// channel. Runs once, at build time: the result is in the snapshot.
const harden = (roots, opaque) => {
  const removedNames = ["eval", "Function", "Atomics", "SharedArrayBuffer", "InternalError", "gc", "navigator", "DOMException", "CallSite"];
  // Some of these are still reachable as the constructor of a thrown error, so they are
  // frozen.
  const removed = removedNames.map((name) => globalThis[name]);
  for (const name of removedNames) delete globalThis[name];
  delete Error.prepareStackTrace;
  delete Error.stackTraceLimit;

  // The constructors behind function syntax: `(async () => {}).constructor` and its siblings.
  const functionPrototypes = [
    function () {},
    async function () {},
    function* () {},
    async function* () {},
  ].map((sample) => Object.getPrototypeOf(sample));
  for (const prototype of functionPrototypes) {
    const throwing = {
      Function() {
        throw new TypeError("code cannot be created from strings");
      },
    }.Function;
    Object.defineProperty(throwing, "prototype", { value: prototype, writable: false });
    Object.defineProperty(prototype, "constructor", { value: throwing, writable: false, configurable: false });
  }

  const instances = [
    ...functionPrototypes,
    (function* () {})(),
    (async function* () {})(),
    [][Symbol.iterator](),
    ""[Symbol.iterator](),
    new Map()[Symbol.iterator](),
    new Set()[Symbol.iterator](),
    "".matchAll(/x/g),
    Iterator.from({ next() { return { done: true }; } }),
    [].values().map((x) => x),
    Iterator.concat?.([]),
    Iterator.zip?.([]),
    new Proxy({}, {}),
    (function () { return arguments; })(),
    Promise.resolve(),
    new Uint8Array(0),
    Symbol.iterator, 0, 0n, "", true,
  ];
  const seen = new Set(opaque);
  const queue = [globalThis, ...instances, ...roots, ...removed];
  while (queue.length > 0) {
    const item = queue.pop();
    if (item === null || (typeof item !== "object" && typeof item !== "function")) {
      if (item !== null && item !== undefined) queue.push(Object.getPrototypeOf(item));
      continue;
    }
    if (seen.has(item)) continue;
    seen.add(item);
    queue.push(Object.getPrototypeOf(item));
    for (const key of Reflect.ownKeys(item)) {
      const d = Object.getOwnPropertyDescriptor(item, key);
      if ("value" in d) queue.push(d.value);
      else queue.push(d.get, d.set);
    }
  }
  for (const item of seen) if (!ArrayBuffer.isView(item) && !opaque.includes(item)) Object.freeze(item);
};
