// expect: ok
const f = await tools.readFile({ path: "a.txt" });
const { text, ...rest } = f;
return Object.keys(rest).length + text.length;
