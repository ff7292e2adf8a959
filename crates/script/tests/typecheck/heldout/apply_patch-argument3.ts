// expect: argument 8
const patch = [
  "*** Begin Patch",
  "*** Add File: notes.txt",
  "+hello",
  "*** End Patch",
].join("\n");
const result = await tools.applyPatch({ patch: [patch] });
const added = result.changes.filter((c) => c.kind === "add");
return added.map((c) => `${c.path} (+${c.added})`);
