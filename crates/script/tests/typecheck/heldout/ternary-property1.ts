// expect: property 3
const lint = await tools.exec({ command: ["ruff", "check", "."] });
const summary = lint.exitCode === 0 ? "ok" : lint.text.split("\n").length + " problems";
store("lint", summary);
return summary;
