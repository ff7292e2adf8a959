// expect: ok
const paths = ["a", "b"];
const texts = await Promise.all(paths.map(async (path) => (await tools.readFile({ path })).text));
return texts.map((t) => t.length);
