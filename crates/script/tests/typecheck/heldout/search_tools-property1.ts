// expect: property 3
const found = await tools.search({ query: "read a file" });
return found.map((t) => `${t.name}: ${t.summary}`);
