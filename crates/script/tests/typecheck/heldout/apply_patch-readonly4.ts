// expect: readonly 10
const patch = [
  "*** Begin Patch",
  "*** Add File: notes.txt",
  "+hello",
  "*** End Patch",
].join("\n");
const result = await tools.applyPatch({ patch });
const added = result.changes.filter((c) => c.kind === "add");
result.changes.reverse();
return added.map((c) => `${c.path} (+${c.added})`);
