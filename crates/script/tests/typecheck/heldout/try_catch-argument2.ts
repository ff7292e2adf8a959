// expect: argument 7
let content = "";
try {
  content = (await tools.readFile({ path: "maybe.txt" })).content;
} catch (error) {
  console.log(String(error));
  await tools.writeFile({ path: "maybe.txt", text: "new\n" });
}
return content.length;
