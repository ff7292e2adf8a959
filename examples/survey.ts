// Prints what a project consists of: languages, longest files, TODO comments, authors.
//   selvedge run examples/survey.ts -C path/to/project

const [files, todos, log] = await Promise.all([
  tools.fileSearch({ pattern: "**/*", limit: 5000 }),
  tools.grepFiles({ pattern: "\\b(TODO|FIXME|HACK)\\b", limit: 1000 }),
  tools.exec({ command: ["git", "log", "--format=%an"] }),
]);

// One command counts the lines of all files; a call per file would exceed the limit of calls.
const counted = await tools.exec({ command: ["wc", "-l", "--", ...files.map((file) => file.path).slice(0, 2000)] });
const lines = counted.stdout
  .split("\n")
  .map((line) => line.trim().match(/^(\d+) (.+)$/))
  .filter((match) => match !== null && match[2] !== "total")
  .map((match) => ({ path: match![2], lines: Number(match![1]) }));

function tally(names: string[], weights = names.map(() => 1)): [string, number][] {
  const sums = new Map<string, number>();
  names.forEach((name, i) => sums.set(name, (sums.get(name) ?? 0) + weights[i]));
  return [...sums].sort((a, b) => b[1] - a[1]);
}

const extension = (path: string) => path.match(/[^/.]\.([a-z0-9]+)$/i)?.[1] ?? "other";
const authors = tally(log.stdout.split("\n").filter(Boolean));

return {
  files: files.length,
  lines: Object.fromEntries(tally(lines.map((f) => extension(f.path)), lines.map((f) => f.lines)).slice(0, 6)),
  longest: lines.toSorted((a, b) => b.lines - a.lines).slice(0, 3).map((f) => `${f.path} (${f.lines})`),
  todos: tally(todos.map((todo) => todo.path)).slice(0, 3).map(([path, n]) => `${path}: ${n}`),
  commits: Object.fromEntries(authors.slice(0, 5)),
};
