// expect: ok
const r = await tools.exec({ command: ["true"] });
const copy = { ...r, label: "x" };
copy.exitCode = 3;
return [copy.exitCode, r.exitCode, copy.label];
