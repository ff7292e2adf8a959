// expect: await 2
const hits = tools.grepFiles({ pattern: "TODO|FIXME", include: "*.rs" });
const perFile = new Map<string, number>();
for (const hit of hits) perFile.set(hit.path, (perFile.get(hit.path) ?? 0) + 1);
return [...perFile].sort((a, b) => b[1] - a[1]).slice(0, 10);
