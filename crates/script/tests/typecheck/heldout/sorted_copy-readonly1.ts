// expect: readonly 3
const hits = await tools.grepFiles({ pattern: "unsafe" });
const sorted = hits.sort((a, b) => a.line - b.line);
const top = [...hits].sort((a, b) => a.path.localeCompare(b.path))[0];
return { first: sorted[0]?.text, top: top?.path };
