// expect: ok
const hits = await tools.grepFiles({ pattern: "fn main", include: "*.rs" });
const first = hits[0];
const line = first?.line ?? 0;
const where = first ? `${first.path}:${line}` : "none";
return where;
