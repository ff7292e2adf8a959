// expect: ok
const matches = await tools.grepFiles({ pattern: "\\bold_name\\b", path: "src" });
const paths = [...new Set(matches.map((m) => m.path))];
for (const path of paths) {
  const { text } = await tools.readFile({ path });
  await tools.writeFile({ path, content: text.replaceAll("old_name", "new_name") });
}
return { changed: paths.length };
