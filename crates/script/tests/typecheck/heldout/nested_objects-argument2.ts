// expect: argument 4
const summary: { path: string; first: string }[] = [];
for (const { path } of (await tools.fileSearch({ pattern: "test" })).slice(0, 3)) {
  const file = await tools.readFile({ path, maxLines: 1 });
  summary.push({ path, first: file.text });
}
summary.sort((a, b) => a.path.localeCompare(b.path));
return summary;
