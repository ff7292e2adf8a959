// expect: property 4
const page = await tools.fetchUrl({ urls: ["https://example.com/a", "https://example.com/b"] });
if (page.failed.length > 0) {
  return page.failed.map((f) => `${f.url}: ${f.message}`);
}
return page.fetches.map((f) => f.title);
