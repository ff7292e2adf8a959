// expect: argument 2
const run = await tools.exec({ command: ["cargo", "test", "--workspace"], timeoutMs: "10m" });
if (run.exitCode !== 0) {
  const failed = run.stdout.split("\n").filter((line) => line.includes("FAILED"));
  return { ok: false, failed };
}
return { ok: true, took: run.durationMs };
