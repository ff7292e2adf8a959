// expect: await 3
const names = ["README.md", "CHANGELOG.md", "LICENSE"];
const files = Promise.all(names.map((path) => tools.readFile({ path })));
const lines = files.map((file, i) => `${names[i]}: ${file.totalLines} lines`);
return lines.join("\n");
