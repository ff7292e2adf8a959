// expect: property 5
const summary: { path: string; first: string }[] = [];
for (const { path } of (await tools.fileSearch({ pattern: "test" })).slice(0, 3)) {
  const file = await tools.readFile({ path, limit: 1 });
  summary.push({ path, first: file.firstLine });
}
summary.sort((a, b) => a.path.localeCompare(b.path));
return summary;
