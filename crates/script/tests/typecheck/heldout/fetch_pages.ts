// expect: ok
const page = await tools.fetchUrl({ urls: ["https://example.com/a", "https://example.com/b"] });
if (page.failed.length > 0) {
  return page.failed.map((f) => `${f.url}: ${f.error}`);
}
return page.fetches.map((f) => f.title);
