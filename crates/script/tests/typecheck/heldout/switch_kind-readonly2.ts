// expect: readonly 11
const { entries } = await tools.listDir({});
const counts = { file: 0, dir: 0, symlink: 0, other: 0 };
for (const entry of entries) {
  switch (entry.kind) {
    case "file": counts.file++; break;
    case "dir": counts.dir++; break;
    default: counts.other++;
  }
}
entries[0].path = "x";
return counts;
