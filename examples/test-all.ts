// Runs all test files in parallel and reports those that fail.
//   selvedge run examples/test-all.ts -C path/to/project --timeout 10m --max-calls 500

const runners: Record<string, (path: string) => string[]> = {
  "*.test.mjs": (path) => ["node", "--test", path],
  "*.test.js": (path) => ["node", "--test", path],
  "test_*.py": (path) => ["python3", "-m", "unittest", path],
  "*.test.sh": (path) => ["sh", path],
};

const found = await Promise.all(
  Object.entries(runners).map(async ([pattern, command]) => {
    const files = await tools.fileSearch({ pattern: `**/${pattern}`, limit: 400 });
    return files.map((file) => ({ path: file.path, command: command(file.path) }));
  }),
);
const tests = found.flat().sort((a, b) => (a.path < b.path ? -1 : 1));

const results = await Promise.allSettled(tests.map((test) => tools.exec({ command: test.command, timeoutMs: 60_000 })));

const failed = tests.flatMap((test, i) => {
  const result = results[i];
  if (result.status === "rejected") return [{ path: test.path, why: result.reason.message }];
  const { exitCode, timedOut, aggregatedOutput } = result.value;
  if (exitCode === 0) return [];
  // The line with the error, instead of the whole log.
  const errorLine = aggregatedOutput.split("\n").find((line) => /^\w*Error\b|not ok|error:|expected/i.test(line.trim()));
  return [{ path: test.path, why: timedOut ? "timed out" : (errorLine ?? `exit code ${exitCode}`).trim() }];
});

return { message: `${tests.length - failed.length} of ${tests.length} test files pass`, failed };
