// expect: argument 4
const report = ["# Report", "", "All good."].join("\n");
const saved = await tools.saveToFc({ content: report, title: "Report" });
const back = await tools.fetchFromFc({ key: saved.fileKey });
return back.content === report && saved.bytes > 0;
