// expect: ok
const names = ["README.md", "CHANGELOG.md", "LICENSE"];
const files = await Promise.all(names.map((path) => tools.readFile({ path })));
const lines = files.map((file, i) => `${names[i]}: ${file.totalLines} lines`);
return lines.join("\n");
