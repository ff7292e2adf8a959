// expect: await 3
const paths = ["a", "b"];
const texts = paths.map((path) => tools.readFile({ path }).text);
return texts.map((t) => t.length);
