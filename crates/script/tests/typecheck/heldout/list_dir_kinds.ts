// expect: ok
const listing = await tools.listDir({ path: ".", depth: 2 });
const dirs = listing.entries.filter((e) => e.kind === "dir").map((e) => e.path);
if (listing.truncated) console.log("more entries exist");
return dirs;
