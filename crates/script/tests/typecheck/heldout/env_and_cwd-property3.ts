// expect: property 3
const r = await tools.exec({ command: ["printenv", "MODE"], env: { MODE: "test" }, cwd: "app" });
return r.stdOut.trim() === "test";
