// expect: property 4
async function lineCount(path: string): Promise<number> {
  const file = await tools.readFile({ path });
  return file.length;
}
const [a, b] = await Promise.all([lineCount("a.txt"), lineCount("b.txt")]);
return a + b;
