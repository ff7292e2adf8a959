// Finds links in Markdown files to a missing file or heading.
//   selvedge run examples/dead-links.ts -C path/to/project --max-calls 1000

const pages = await tools.fileSearch({ pattern: "**/*.md" });
const texts = await Promise.all(pages.map((page) => tools.readFile({ path: page.path })));
const all = new Set((await tools.fileSearch({ pattern: "**/*", limit: 50_000 })).map((file) => file.path));
const folders = new Set([...all].flatMap((path) => path.split("/").map((_, i, parts) => parts.slice(0, i).join("/"))));

// Converts a heading to an anchor like GitHub.
const anchor = (heading: string) => heading.toLowerCase().replace(/[^\p{L}\p{N}\s_-]/gu, "").trim().replace(/\s/g, "-");
const anchors = new Map(
  pages.map((page, i) => [page.path, new Set([...texts[i].text.matchAll(/^#+\s+(.+)$/gm)].map((m) => anchor(m[1])))]),
);

function resolve(from: string, to: string): string {
  const parts = to.startsWith("/") ? [] : from.split("/").slice(0, -1);
  for (const part of to.split("/")) {
    if (part === "..") parts.pop();
    else if (part !== "." && part !== "") parts.push(part);
  }
  return parts.join("/");
}

// Removes code, which has no links.
const prose = (text: string) => text.replace(/^(```|~~~)[^]*?^\1/gm, (code) => code.replace(/.+/g, "")).replace(/`[^`\n]*`/g, "");

const dead = pages.flatMap((page, i) =>
  prose(texts[i].text).split("\n").flatMap((line, n) =>
    [...line.matchAll(/\[[^\]]*\]\(([^)\s]+)[^)]*\)/g)].flatMap(([, link]) => {
      if (/^[a-z][a-z0-9+.-]*:/i.test(link)) return []; // another site
      const [file, heading] = link.split("#");
      const target = file === "" ? page.path : resolve(page.path, decodeURIComponent(file));
      const at = `${page.path}:${n + 1}`;
      if (!all.has(target) && !folders.has(target)) return [{ at, link, why: "no such file" }];
      if (heading && anchors.has(target) && !anchors.get(target)!.has(heading)) return [{ at, link, why: "no such heading" }];
      return [];
    }),
  ),
);

return { message: `${dead.length} dead links in ${pages.length} pages`, dead };
