// expect: property 3
const { entries } = await tools.listDir({ path: "crates", depth: 1 });
const manifests = entries.flatMap((e) => (e.kind === "dir" ? [`${e.name}/Cargo.toml`] : []));
const versions = await Promise.all(manifests.map(async (path) => {
  const { text } = await tools.readFile({ path });
  return text.match(/^version = "(.*)"/m)?.[1] ?? "workspace";
}));
return Object.fromEntries(manifests.map((m, i) => [m, versions[i]]));
