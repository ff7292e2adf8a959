// A turn as the memory stores it: a line of JSON for each item, or text.

import { h } from '/page/dom.js';
import { pretty, summaryOf, toolName, visible } from '/page/format.js';
import { plain, rich } from '/page/render.js';

/** Names of roles for people; others are shown as they are. */
const ROLES = { user: 'Message', assistant: 'Answer' };

/** The items of a turn, for people. A line that is no item is shown as it is. */
export function rawTurn(text) {
  const parts = [];
  for (const line of text.split('\n')) {
    const item = parseItem(line);
    if (item) parts.push(item);
    // Neighbouring lines of text stay together.
    else if (typeof parts.at(-1) === 'string') parts.push(`${parts.pop()}\n${line}`);
    else if (line.trim()) parts.push(line);
  }
  return parts.map((part) =>
    typeof part === 'string' ? plain(part, { dir: 'auto' }) : itemParts(part),
  );
}

function parseItem(line) {
  try {
    const item = JSON.parse(line);
    return item?.type || item?.role ? item : null;
  } catch {
    return null;
  }
}

function itemParts(item) {
  switch (item.type ?? 'message') {
    case 'message':
      return [head(ROLES[item.role] ?? item.role), plain(textOf(item.content), { dir: 'auto' })];
    case 'reasoning':
      return [head('Reasoning'), plain(textOf(item.summary ?? item.content), { dir: 'auto' })];
    case 'script_tool_call':
      return [head('Script'), rich('code', item.source_code ?? '', item.language ?? 'ts')];
    case 'function_call':
      return [head(`Call ${item.name}`), rich('code', item.arguments ?? '', 'json')];
    case 'script_tool_call_output':
    case 'function_call_output':
      return [head('Result'), (item.calls ?? []).map(callParts), resultParts(item)];
    default:
      return [head(item.type), rich('code', pretty(item), 'json')];
  }
}

function head(name) {
  return h('p', { class: 'item-head' }, h('span', { class: 'kind' }, visible(name)));
}

/** A call of a script, with its error or result. */
function callParts({ tool, args, error, result }) {
  const name = `${toolName(tool ?? '')} ${summaryOf(args)}`;
  const value = error?.message ?? result?.aggregatedOutput ?? result;
  return [h('p', { class: 'dim', dir: 'ltr' }, visible(name)), value ? plain(pretty(value)) : null];
}

function resultParts({ error, output, output_json: value }) {
  return [
    error ? plain(error.message ?? pretty(error)) : null,
    output?.length ? plain(textOf(output)) : null,
    value ? rich('code', value, 'json') : null,
  ];
}

/** The text of a message or an output. */
function textOf(content) {
  if (typeof content === 'string') return content;
  if (!Array.isArray(content)) return pretty(content ?? '');
  return content.map((part) => part?.text ?? (typeof part === 'string' ? part : '')).join('\n');
}
