// expect: argument 5
const file = await tools.readFile({ path: "package.json" });
const pkg = JSON.parse(file.text);
pkg.version = "2.0.0";
const written = await tools.writeFile({ path: "package.json", content: 42 });
return written.bytes;
