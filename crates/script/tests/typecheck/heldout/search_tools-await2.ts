// expect: await 2
const found = tools.search({ query: "read a file" });
return found.map((t) => `${t.name}: ${t.description}`);
