// expect: ok
const jobs = ["a", "b", "c"].map((name) => tools.exec({ command: ["./build.sh", name] }));
const done = await Promise.allSettled(jobs);
const ok = done.filter((d) => d.status === "fulfilled").length;
return `${ok} of ${jobs.length} built`;
