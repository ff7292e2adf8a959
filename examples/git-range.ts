// Summarises a range of commits: commits per author, and the folders that changed most.
//   selvedge run examples/git-range.ts -- v1.0..HEAD

const range = context.args[0] ?? "HEAD~10..HEAD";
const git = async (...args: string[]) => {
  const { exitCode, stdout, stderr } = await tools.exec({ command: ["git", ...args] });
  if (exitCode !== 0) throw new Error(stderr.trim());
  return stdout.trim().split("\n").filter(Boolean);
};

const [commits, numbers] = await Promise.all([
  git("log", "--no-merges", "--format=%h%x09%an%x09%s", range),
  git("log", "--no-merges", "--format=", "--numstat", range),
]);

const folders = new Map<string, { added: number; removed: number }>();
for (const line of numbers) {
  const [added, removed, path] = line.split("\t");
  const folder = path.includes("/") ? path.split("/").slice(0, 2).join("/") : "(top)";
  const sum = folders.get(folder) ?? { added: 0, removed: 0 };
  sum.added += Number(added) || 0;
  sum.removed += Number(removed) || 0;
  folders.set(folder, sum);
}

const byAuthor = Object.groupBy(commits.map((line) => line.split("\t")), ([, author]) => author);
return {
  message: `${commits.length} commits in ${range}`,
  commits: Object.fromEntries(
    Object.entries(byAuthor).map(([author, list]) => [author, list!.slice(0, 8).map(([hash, , subject]) => `${hash} ${subject}`)]),
  ),
  mostChanged: [...folders]
    .sort((a, b) => b[1].added + b[1].removed - a[1].added - a[1].removed)
    .slice(0, 5)
    .map(([folder, { added, removed }]) => `${folder}: +${added} -${removed}`),
};
