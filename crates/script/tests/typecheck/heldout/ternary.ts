// expect: ok
const lint = await tools.exec({ command: ["ruff", "check", "."] });
const summary = lint.exitCode === 0 ? "ok" : lint.stdout.split("\n").length + " problems";
store("lint", summary);
return summary;
