// Fields of the front matter of a document, as text: what is not changed stays as it is.

/** Values that need no quotes in front matter. */
const PLAIN_VALUE = /^[\p{L}][\p{L}\p{N} _.-]*$/u;
/** Words that mean something else without quotes. */
const SPECIAL_WORDS = /^(true|false|yes|no|on|off|null)$/i;
/** The front matter of a document: what is before it, its lines, and what is after them. */
const FRONT_MATTER = /^(---[ \t]*\n)((?:[^\n]*\n)*?)(---[ \t]*(?:\n|$))/;

/** A value as front matter has it. */
export function quoted(value) {
  const isPlain = PLAIN_VALUE.test(value) && !SPECIAL_WORDS.test(value);
  return isPlain ? value : JSON.stringify(value);
}

function lineOf(name) {
  return new RegExp(`^${name}:[ \\t]*(.*)$`, 'm');
}

/** The value of a field that is one line; empty if the document has none. */
export function readField(document, name) {
  const value = document.match(FRONT_MATTER)?.[2].match(lineOf(name))?.[1] ?? '';
  const text = value.replace(/\s+#.*$/, '').trim();
  const inQuotes = text.match(/^(["'])(.*)\1$/);
  return inQuotes ? inQuotes[2] : text;
}

/** The document with another value of a field. An empty value removes the field. */
export function writeField(document, name, value) {
  const line = value ? `${name}: ${quoted(value)}` : '';
  const parts = document.match(FRONT_MATTER);
  if (!parts) return line ? `---\n${line}\n---\n\n${document}` : document;
  const [whole, start, fields, end] = parts;
  const known = lineOf(name);
  let changed = fields;
  if (known.test(fields)) {
    const old = line ? known : new RegExp(`^${name}:.*\\n`, 'm');
    changed = fields.replace(old, () => line);
  } else if (line) changed = `${fields}${line}\n`;
  return start + changed + end + document.slice(whole.length);
}

/** Values of a field of other documents, each once, in order. */
export function valuesOf(documents, name) {
  const values = documents.map((entry) => entry[name]).filter((value) => typeof value === 'string');
  return [...new Set(values)].sort();
}
