// expect: readonly 5
const hits = await tools.grepFiles({ pattern: "unsafe" });
const sorted = hits.toSorted((a, b) => a.line - b.line);
const top = [...hits].sort((a, b) => a.path.localeCompare(b.path))[0];
hits.push({ path: "x", line: 1, text: "" });
return { first: sorted[0]?.text, top: top?.path };
