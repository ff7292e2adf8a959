// expect: await 2
const fast = Promise.race([
  tools.exec({ command: ["ping", "-c1", "a"] }),
  tools.exec({ command: ["ping", "-c1", "b"] }),
]);
return fast.exitCode;
