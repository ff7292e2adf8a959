// expect: property 4
const check = await tools.exec({ command: ["npx", "tsc", "--noEmit"] });
let note = "clean";
if (check.status !== 0) {
  const first = check.stdout.split("\n").find((l) => l.includes("error TS"));
  note = first ?? check.stderr.slice(0, 200);
}
return note;
