// Renames an identifier in all files, with one patch, so that either all files change or none.
//   selvedge run examples/rename.ts -C path/to/project --max-calls 1000 -- oldName newName

const [from, to] = context.args;
if (!from || !to) throw new Error("pass two names: selvedge run rename.ts -- oldName newName");
const word = new RegExp(`\\b${from.replace(/[^\w]/g, "\\$&")}\\b`, "g");

const hits = await tools.grepFiles({ pattern: `\\b${from.replace(/[^\w]/g, "\\$&")}\\b`, limit: 10_000 });
if (hits.length === 0) return `${from} was not found`;
const paths = [...new Set(hits.map((hit) => hit.path))];
const files = await Promise.all(paths.map((path) => tools.readFile({ path })));

const sections = paths.map((path, i) => {
  const lines = files[i].text.replace(/\n$/, "").split("\n");
  const hunks = lines.flatMap((line, n) => {
    const renamed = line.replace(word, to);
    // The previous line distinguishes equal lines.
    const before = n > 0 ? [` ${lines[n - 1].replace(word, to)}`] : [];
    return renamed === line ? [] : [["@@", ...before, `-${line}`, `+${renamed}`].join("\n")];
  });
  return [`*** Update File: ${path}`, ...hunks].join("\n");
});

const result = await tools.applyPatch({ patch: ["*** Begin Patch", ...sections, "*** End Patch"].join("\n") });
return { message: `${from} is now ${to}`, changed: result.changes.map((c) => `${c.path}: ${c.added} lines`) };
