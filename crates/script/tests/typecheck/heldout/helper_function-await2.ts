// expect: await 3
async function lineCount(path: string): Promise<number> {
  const file = tools.readFile({ path });
  return file.totalLines;
}
const [a, b] = await Promise.all([lineCount("a.txt"), lineCount("b.txt")]);
return a + b;
