// expect: property 4
const found = await tools.webSearch({ query: "rust async traits", maxResults: 5 });
for (const hit of found.results) {
  text(`${hit.name} - ${hit.url}`);
}
return found.results.length;
