// expect: property 3
const run = await tools.exec({ command: ["cargo", "test", "--workspace"], timeoutMs: 600_000 });
if (run.code !== 0) {
  const failed = run.stdout.split("\n").filter((line) => line.includes("FAILED"));
  return { ok: false, failed };
}
return { ok: true, took: run.durationMs };
