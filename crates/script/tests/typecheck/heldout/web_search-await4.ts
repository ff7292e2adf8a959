// expect: await 2
const found = tools.webSearch({ query: "rust async traits", maxResults: 5 });
for (const hit of found.results) {
  text(`${hit.title} - ${hit.url}`);
}
return found.results.length;
