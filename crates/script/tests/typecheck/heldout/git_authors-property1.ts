// expect: property 4
const log = await tools.exec({ command: ["git", "log", "--format=%an", "-n", "200"] });
const counts: Record<string, number> = {};
for (const author of log.out.trim().split("\n")) {
  counts[author] = (counts[author] ?? 0) + 1;
}
return Object.entries(counts).sort(([, a], [, b]) => b - a);
