// Topics of the sessions over time, as small charts.

import { get } from '/page/api.js';
import { emptyNote, fill, h, table } from '/page/dom.js';
import { dateTime, plural, visible } from '/page/format.js';

/** Lists the topics in an element. */
export async function showTopics(content, signal) {
  const { topics, first_ms: from, last_ms: to } = await get('/memory/topics', signal);
  if (!topics.length) {
    fill(
      content,
      emptyNote(
        'There are no topics yet.',
        'A topic is a word that several turns mention. Topics are found after a session was idle for some time.',
      ),
    );
    return;
  }
  // All charts have the same scale, so that they can be compared.
  const most = Math.max(...topics.flatMap(({ turns }) => turns), 1);
  fill(
    content,
    h(
      'p',
      { class: 'dim' },
      `How many turns mention a topic, from ${dateTime(from)} to ${dateTime(to)}.`,
    ),
    table(
      'Topics',
      ['Topic', 'Area', 'Turns', 'Over time'],
      topics.map((topic) => topicRow(topic, most, from, to)),
    ),
  );
}

function topicRow({ name, category, turns }, most, from, to) {
  const sum = turns.reduce((all, count) => all + count, 0);
  return [
    h('span', { dir: 'auto' }, visible(name)),
    category,
    h('span', { class: 'number' }, String(sum)),
    chart(turns, most, from, to),
  ];
}

/** A bar for each part of the time. */
function chart(turns, most, from, to) {
  const peak = turns.indexOf(Math.max(...turns));
  const time = from + ((peak + 0.5) * (to - from)) / turns.length;
  const label = `most around ${dateTime(time)}: ${plural(turns[peak], 'turn')}`;
  return h(
    'div',
    { class: 'chart', role: 'img', 'aria-label': label, title: label },
    turns.map((count) => {
      const bar = h('span', { class: count ? 'chart-bar' : 'chart-bar none' });
      bar.style.height = `${(100 * count) / most}%`;
      return bar;
    }),
  );
}
