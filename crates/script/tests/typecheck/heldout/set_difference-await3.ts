// expect: await 2
const [left, right] = Promise.all([
  tools.listDir({ path: "old" }),
  tools.listDir({ path: "new" }),
]);
const names = new Set(right.entries.map((e) => e.path.replace("new/", "")));
return left.entries.map((e) => e.path.replace("old/", "")).filter((n) => !names.has(n));
