// expect: property 4
let content = "";
try {
  content = (await tools.readFile({ path: "maybe.txt" })).contents;
} catch (error) {
  console.log(String(error));
  await tools.writeFile({ path: "maybe.txt", content: "new\n" });
}
return content.length;
