// Texts for people: times, durations, sizes, and text with hidden characters made visible.

const NUMBER = new Intl.NumberFormat('en');
const DATE = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' });
const CLOCK = new Intl.DateTimeFormat(undefined, { timeStyle: 'medium' });

/** `12,345` */
export function count(number) {
  return NUMBER.format(number ?? 0);
}

/** `1 call`, `2 calls` */
export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? '' : 's'}`;
}

/** How long ago a time is, such as `5 min`. */
export function ago(ms) {
  const seconds = Math.max(0, (Date.now() - ms) / 1000);
  if (seconds < 5) return 'now';
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

/** Date and time in the language of the browser. */
export function dateTime(ms) {
  return DATE.format(new Date(ms));
}

/** `250 ms`, `1.6 s`, `2 min 5 s` */
export function duration(ms) {
  if (ms === null || ms === undefined) return '';
  if (ms < 1) return '< 1 ms';
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60000)} min ${Math.round((ms % 60000) / 1000)} s`;
}

/** `3.4 KB` */
export function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(1)} KB`;
  return `${(bytes / 1e6).toFixed(1)} MB`;
}

/** Who wrote a message, for people: tokens of logged-in browsers have generated names. */
export function authorName(author) {
  return author.startsWith('page_') ? 'web page' : visible(author);
}

/** The word that mentions a session with this title: `fix-login` for `Fix login`. */
export function mentionOf(title) {
  const words = title.split(/[^\p{L}\p{N}_.-]+/u).filter((word) => word);
  return words
    .join('-')
    .replace(/[.-]+$/, '')
    .toLowerCase();
}

/** The last part of a path, for people. */
export function folderName(path) {
  return visible(path.replace(/\/+$/, '').split('/').pop() || path);
}

const CONTROLS = new RegExp(
  '[\\0-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e' +
    '\\u2060-\\u2069\\ufeff\\u{e0000}-\\u{e007f}]',
  'gu',
);

/** Text in which control characters, invisible ones and changes of the direction are visible. */
export function visible(text) {
  return String(text)
    .replace(/\r\n/g, '\n')
    .replace(CONTROLS, (c) => {
      const code = c.codePointAt(0);
      if (code < 0x20) return String.fromCharCode(0x2400 + code);
      return `[U+${code.toString(16).toUpperCase().padStart(4, '0')}]`;
    });
}

/** JSON with indentation; text stays as it is. */
export function pretty(value) {
  if (typeof value === 'string') return value;
  return JSON.stringify(value, null, 2) ?? '';
}

/** A text with at most this many characters; a longer one ends with `…`. */
export function shorten(text, most) {
  const characters = [...text];
  return characters.length > most ? `${characters.slice(0, most - 1).join('')}…` : text;
}

/** The name of a tool in scripts: `readFile` for `read_file`. */
export function toolName(name) {
  return name.replace(/([a-z0-9])_([a-z0-9])/g, (_, left, right) => left + right.toUpperCase());
}

/** How long it is until a time, such as `45 s`. */
export function timeLeft(ms) {
  const seconds = Math.max(0, Math.ceil((ms - Date.now()) / 1000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h`;
}

/** The time of the day in the language of the browser. */
export function clockTime(ms) {
  return CLOCK.format(new Date(ms));
}

/** Short form of the arguments of a call, for one line. */
export function summaryOf(args) {
  if (!args) return '';
  if (Array.isArray(args.command)) return args.command.join(' ');
  const text =
    args.path ?? args.url ?? args.command ?? args.pattern ?? args.query ?? JSON.stringify(args);
  return shorten(String(text), 300);
}
