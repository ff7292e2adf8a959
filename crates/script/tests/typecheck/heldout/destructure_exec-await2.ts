// expect: await 2
const { exitCode, stdout, stderr } = tools.exec({ command: ["ls", "-la"] });
const rows = stdout.split("\n").slice(1);
return { exitCode, rows: rows.length, problems: stderr.length };
