// expect: property 5
const hits = await tools.grepFiles({ pattern: "fn main", include: "*.rs" });
const first = hits[0];
const line = first?.line ?? 0;
const where = first ? `${first.file}:${line}` : "none";
return where;
