// build.rs joins vocabulary.js, harden.js and this file. The guest calls the resulting function
// once, with the host's functions and what library.js returned.
(host, library) => {
  const { globals, lazy, hooks, opaque } = vocabulary(host, library);
  for (const name of Object.keys(globals)) Object.defineProperty(globalThis, name, { value: globals[name], enumerable: false });
  for (const name of Object.keys(lazy)) Object.defineProperty(globalThis, name, { get: lazy[name], enumerable: false });
  harden([hooks], opaque);
  return hooks;
}
