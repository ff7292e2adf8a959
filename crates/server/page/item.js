// One item of a transcript as an element.

import { h } from '/page/dom.js';
import { pretty, visible } from '/page/format.js';
import { GrowingText, plain, rich } from '/page/render.js';
import { outputElement, scriptElement } from '/page/script-item.js';
import { messageText } from '/page/transcript-model.js';

const LABELS = { user: 'Message', assistant: 'Answer', system: 'System', developer: 'System' };

function article(kind, label, ...content) {
  return h('article', { class: `item ${kind}`, 'aria-label': visible(label) }, content);
}

function head(label) {
  return h('p', { class: 'item-head' }, h('span', { class: 'kind' }, visible(label)));
}

function reasoningText(item) {
  const parts = [...(item.summary ?? []), ...(item.content ?? [])];
  return parts.map((part) => (typeof part === 'string' ? part : (part?.text ?? ''))).join('\n');
}

/** Returns an element for a complete item; `update` shows a change of its script. */
export function itemElement(item, model) {
  const none = () => {};
  switch (item.type) {
    case 'message': {
      const label = LABELS[item.role] ?? item.role;
      return {
        element: article(item.role, label, head(label), rich('markdown', messageText(item))),
        update: none,
      };
    }
    case 'reasoning': {
      const text = reasoningText(item);
      const body = text
        ? plain(text, { dir: 'auto' })
        : h('p', { class: 'dim' }, 'The model does not show it.');
      return {
        element: article(
          'reasoning',
          'Reasoning',
          h('details', null, h('summary', null, 'Reasoning'), body),
        ),
        update: none,
      };
    }
    case 'script_tool_call': {
      const script = scriptElement(item, model);
      return { element: article('script', 'Script', script.element), update: script.update };
    }
    case 'script_tool_call_output':
      return {
        element: article('result', 'Result of a script', outputElement(item, model)),
        update: none,
      };
    case 'function_call':
      return {
        element: article(
          'call-item',
          `Call of ${item.name}`,
          head(`Call ${item.name}`),
          rich('code', prettyArguments(item.arguments), 'json'),
        ),
        update: none,
      };
    case 'function_call_output': {
      const text =
        typeof item.output === 'string' ? item.output : messageText({ content: item.output });
      const label = item.failed ? 'Result: failed' : 'Result';
      return {
        element: article('result', label, head(label), plain(text || pretty(item.output))),
        update: none,
      };
    }
    default:
      return {
        element: article(
          'other',
          item.type,
          h(
            'details',
            null,
            h('summary', null, `Data of the provider (${visible(item.type)})`),
            plain(pretty(item)),
          ),
        ),
        update: none,
      };
  }
}

function prettyArguments(text) {
  try {
    return pretty(JSON.parse(text));
  } catch {
    return pretty(text);
  }
}

/** Returns an element for an open item, and a function that shows its text so far. */
export function openElement(item) {
  if (item.type === 'reasoning') {
    const pre = h('pre', { class: 'text', dir: 'auto' });
    const element = article(
      'reasoning',
      'Reasoning',
      h('details', null, h('summary', null, 'Reasoning …'), pre),
    );
    return {
      element,
      set: (text) => {
        pre.textContent = visible(text);
      },
    };
  }
  if (item.type === 'message') {
    const growing = new GrowingText();
    const element = article('assistant', 'Answer', head('Answer'), growing.element);
    return { element, set: (text) => growing.set(text) };
  }
  const pre = h('pre', { class: 'code' });
  const label = item.type === 'script_tool_call' ? 'Script' : item.type;
  const element = article('script', label, head(`${label} …`), pre);
  return {
    element,
    set: (text) => {
      pre.textContent = visible(text);
    },
  };
}
