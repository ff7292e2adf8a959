// expect: ok
const fast = await Promise.race([
  tools.exec({ command: ["ping", "-c1", "a"] }),
  tools.exec({ command: ["ping", "-c1", "b"] }),
]);
return fast.exitCode;
