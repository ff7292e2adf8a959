// expect: readonly 4
const file = await tools.readFile({ path: "package.json" });
const pkg = JSON.parse(file.text);
file.text = "2.0.0";
const written = await tools.writeFile({ path: "package.json", content: JSON.stringify(pkg, null, 2) + "\n" });
return written.bytes;
