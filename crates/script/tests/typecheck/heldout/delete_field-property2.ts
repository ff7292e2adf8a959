// expect: property 3
const f = await tools.readFile({ path: "a.txt" });
const { raw: text, ...rest } = f;
return Object.keys(rest).length + text.length;
