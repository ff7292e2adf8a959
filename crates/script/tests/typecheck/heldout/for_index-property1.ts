// expect: property 5
const hits = await tools.grepFiles({ pattern: "panic!", limit: 20 });
const out: string[] = [];
for (let i = 0; i < hits.length; i++) {
  out.push(`${i + 1}. ${hits[i].path}:${hits[i].lineNo}`);
}
return out.join("\n");
