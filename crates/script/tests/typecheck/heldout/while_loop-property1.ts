// expect: property 7
let offset = 1;
const lines: string[] = [];
while (lines.length < 500) {
  const part = await tools.readFile({ path: "big.log", offset, limit: 100 });
  lines.push(...part.text.split("\n"));
  if (!part.more) break;
  offset += 100;
}
return lines.filter((l) => l.includes("ERROR")).length;
