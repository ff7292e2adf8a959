// expect: argument 2
const r = await tools.exec({ command: ["printenv", "MODE"], env: { MODE: "test" }, cwd: ["app"] });
return r.stdout.trim() === "test";
