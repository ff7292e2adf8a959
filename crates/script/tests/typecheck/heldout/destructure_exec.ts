// expect: ok
const { exitCode, stdout, stderr } = await tools.exec({ command: ["ls", "-la"] });
const rows = stdout.split("\n").slice(1);
return { exitCode, rows: rows.length, problems: stderr.length };
