// expect: argument 2
const page = await tools.fetchUrl({ urls: [1, 2] });
if (page.failed.length > 0) {
  return page.failed.map((f) => `${f.url}: ${f.error}`);
}
return page.fetches.map((f) => f.title);
