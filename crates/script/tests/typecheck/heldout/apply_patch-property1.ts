// expect: property 9
const patch = [
  "*** Begin Patch",
  "*** Add File: notes.txt",
  "+hello",
  "*** End Patch",
].join("\n");
const result = await tools.applyPatch({ patch });
const added = result.files.filter((c) => c.kind === "add");
return added.map((c) => `${c.path} (+${c.added})`);
