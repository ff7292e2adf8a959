// Wall one: makes the realm safe to hand to a stranger. Every intrinsic is reached by walking from
// the global object and from one instance of each hidden kind, and frozen; every constructor that
// compiles a string is replaced by one that refuses; what is not standard, or opens a side channel,
// is gone. Runs once, at build time: the result is in the snapshot.
const harden = (roots, opaque) => {
  const closed = ["eval", "Function", "Atomics", "SharedArrayBuffer", "InternalError", "gc", "navigator", "DOMException", "CallSite"];
  // Gone as names, yet some can be met as the constructor of a thrown error: frozen all the same.
  const gone = closed.map((name) => globalThis[name]);
  for (const name of closed) delete globalThis[name];
  delete Error.prepareStackTrace;
  delete Error.stackTraceLimit;

  // The constructors behind function syntax: `(async () => {}).constructor` and its siblings.
  const hidden = [
    function () {},
    async function () {},
    function* () {},
    async function* () {},
  ].map((sample) => Object.getPrototypeOf(sample));
  for (const prototype of hidden) {
    const refuse = {
      Function() {
        throw new TypeError("code cannot be made from strings here");
      },
    }.Function;
    Object.defineProperty(refuse, "prototype", { value: prototype, writable: false });
    Object.defineProperty(prototype, "constructor", { value: refuse, writable: false, configurable: false });
  }

  const instances = [
    ...hidden,
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
  const queue = [globalThis, ...instances, ...roots, ...gone];
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
