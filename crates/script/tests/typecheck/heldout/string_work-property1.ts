// expect: property 3
const file = await tools.readFile({ path: "Cargo.toml" });
const sections = file.lines.split(/^\[/m).slice(1).map((s) => s.split("]")[0]);
const unique = Array.from(new Set(sections)).sort();
return unique.map((s) => s.padEnd(20) + sections.filter((x) => x === s).length);
