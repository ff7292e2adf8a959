// expect: await 4
const failures: string[] = [];
for (const dir of ["core", "cli", "web"]) {
  const r = tools.exec({ command: ["make", "test"], cwd: dir });
  if (r.exitCode !== 0 || r.timedOut) failures.push(`${dir}: ${r.stderr.split("\n").at(-1)}`);
}
return failures;
