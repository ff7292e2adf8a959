// expect: property 4
const report = ["# Report", "", "All good."].join("\n");
const saved = await tools.saveToFc({ content: report, title: "Report" });
const back = await tools.fetchFromFc({ fileKey: saved.key });
return back.content === report && saved.bytes > 0;
