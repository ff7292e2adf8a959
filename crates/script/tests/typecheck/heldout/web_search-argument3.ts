// expect: argument 2
const found = await tools.webSearch({ query: "rust async traits", maxResults: "five" });
for (const hit of found.results) {
  text(`${hit.title} - ${hit.url}`);
}
return found.results.length;
