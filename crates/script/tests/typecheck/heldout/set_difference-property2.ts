// expect: property 7
const [left, right] = await Promise.all([
  tools.listDir({ path: "old" }),
  tools.listDir({ path: "new" }),
]);
const names = new Set(right.entries.map((e) => e.path.replace("new/", "")));
return left.entries.map((e) => e.name.replace("old/", "")).filter((n) => !names.has(n));
