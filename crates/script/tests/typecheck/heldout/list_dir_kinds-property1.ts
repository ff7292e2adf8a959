// expect: property 3
const listing = await tools.listDir({ path: ".", depth: 2 });
const dirs = listing.filter((e) => e.kind === "dir").map((e) => e.path);
if (listing.truncated) console.log("more entries exist");
return dirs;
