// expect: property 2
const read = async (path: string) => (await tools.readFile({ path })).body;
const before = await read("old.txt");
const after = await read("new.txt");
return before.trim() === after.trim() ? "same" : "different";
