// expect: property 6
const page = await tools.fetchUrl({ urls: ["https://example.com/a", "https://example.com/b"] });
if (page.failed.length > 0) {
  return page.failed.map((f) => `${f.url}: ${f.error}`);
}
return page.pages.map((f) => f.title);
