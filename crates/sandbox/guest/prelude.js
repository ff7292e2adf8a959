// build.rs joins the other files of this folder and this one. The guest calls the resulting
// function once, with the host's functions.
(host) => {
  localise(host);
  const { globals, lazy, hooks, opaque } = vocabulary(host);
  for (const name of Object.keys(globals)) Object.defineProperty(globalThis, name, { value: globals[name], enumerable: false });
  for (const name of Object.keys(lazy)) Object.defineProperty(globalThis, name, { get: lazy[name], enumerable: false });
  harden([hooks], opaque);
  return hooks;
}
