// expect: readonly 4
const r = await tools.exec({ command: ["true"] });
const copy = { ...r, label: "x" };
r.exitCode = 3;
return [copy.exitCode, r.exitCode, copy.label];
