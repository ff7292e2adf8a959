// expect: ok
const report = ["# Report", "", "All good."].join("\n");
const saved = await tools.saveToFc({ content: report, title: "Report" });
const back = await tools.fetchFromFc({ fileKey: saved.fileKey });
return back.content === report && saved.bytes > 0;
