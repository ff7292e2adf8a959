// expect: readonly 3
const hits = await tools.fileSearch({ pattern: "config", limit: 50 });
hits.sort((a, b) => b.score - a.score);
const best = hits.filter((h) => h.score > 0.5);
return best.map((h) => h.path);
