// expect: property 2
const { files: entries } = await tools.listDir({ recursive: true });
const files = entries.filter(({ kind }) => kind === "file");
const sized = await Promise.all(
  files.slice(0, 20).map(async ({ path }) => {
    const { totalLines } = await tools.readFile({ path });
    return { path, totalLines };
  }),
);
return sized.sort((a, b) => b.totalLines - a.totalLines).slice(0, 5);
