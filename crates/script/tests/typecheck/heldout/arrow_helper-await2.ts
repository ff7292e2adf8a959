// expect: await 2
const read = async (path: string) => tools.readFile({ path }).text;
const before = await read("old.txt");
const after = await read("new.txt");
return before.trim() === after.trim() ? "same" : "different";
