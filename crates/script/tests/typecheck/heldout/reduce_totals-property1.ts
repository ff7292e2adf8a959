// expect: property 4
const files = await tools.fileSearch({ pattern: ".ts" });
const reads = await Promise.all(files.map((f) => tools.readFile({ path: f.path })));
const total = reads.reduce((sum, r) => sum + r.lines, 0);
return { files: reads.length, total };
