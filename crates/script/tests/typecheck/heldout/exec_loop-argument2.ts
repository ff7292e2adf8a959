// expect: argument 4
const failures: string[] = [];
for (const dir of ["core", "cli", "web"]) {
  const r = await tools.exec({ command: ["make", "test"], workdir: dir });
  if (r.exitCode !== 0 || r.timedOut) failures.push(`${dir}: ${r.stderr.split("\n").at(-1)}`);
}
return failures;
