// expect: property 3
const files = await tools.fileSearch({ pattern: ".ts" });
const reads = await Promise.all(files.map((f) => tools.readFile({ path: f.name })));
const total = reads.reduce((sum, r) => sum + r.totalLines, 0);
return { files: reads.length, total };
