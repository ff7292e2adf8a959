// expect: ok
const file = await tools.readFile({ path: "package.json" });
const pkg = JSON.parse(file.text);
pkg.version = "2.0.0";
const written = await tools.writeFile({ path: "package.json", content: JSON.stringify(pkg, null, 2) + "\n" });
return written.bytes;
