// expect: property 3
const hits = await tools.fileSearch({ pattern: "config", limit: 50 });
const best = hits.filter((h) => h.rank > 0.5);
return best.map((h) => h.path);
