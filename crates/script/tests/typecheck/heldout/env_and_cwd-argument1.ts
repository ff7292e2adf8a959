// expect: argument 2
const r = await tools.exec({ command: ["printenv", "MODE"], env: { MODE: 1 }, cwd: "app" });
return r.stdout.trim() === "test";
