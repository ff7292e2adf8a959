// expect: ok
const found = await tools.search({ query: "read a file" });
return found.map((t) => `${t.name}: ${t.description}`);
