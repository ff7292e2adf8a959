// expect: property 7
const hits = await tools.grepFiles({ pattern: "version =", path: "Cargo.toml" });
const hit = hits.find((h) => h.text.startsWith("version"));
if (!hit) throw new Error("no version");
const file = await tools.readFile({ path: hit.path });
const lines = file.text.split("\n");
lines[hit.row - 1] = 'version = "1.2.3"';
await tools.writeFile({ path: hit.path, content: lines.join("\n") });
