// expect: argument 3
const names = ["README.md", "CHANGELOG.md", "LICENSE"];
const files = await Promise.all(names.map((path) => tools.readFile({ file: path })));
const lines = files.map((file, i) => `${names[i]}: ${file.totalLines} lines`);
return lines.join("\n");
