// expect: readonly 4
const f = await tools.readFile({ path: "a.txt" });
const { text, ...rest } = f;
delete (f as any as typeof f).text;
return Object.keys(rest).length + text.length;
