// expect: property 9
const patch = [
  "*** Begin Patch",
  "*** Add File: notes.txt",
  "+hello",
  "*** End Patch",
].join("\n");
const result = await tools.applyPatch({ patch });
const added = result.changes.filter((c) => c.type === "add");
return added.map((c) => `${c.path} (+${c.added})`);
