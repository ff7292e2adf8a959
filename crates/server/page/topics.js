// Topics of the sessions over time, as small charts.

import { get } from '/page/api.js';
import { emptyNote, fill, h, table } from '/page/dom.js';
import { plural, visible } from '/page/format.js';

/** Lists the topics in an element. */
export async function showTopics(content, signal) {
  const { topics, weeks } = await get('/memory/topics', signal);
  if (!topics.length) {
    fill(
      content,
      emptyNote(
        'There are no topics yet.',
        'A topic is a word that several turns mention. They are found every 12 hours, or with `selvedge memory distill`.',
      ),
    );
    return;
  }
  // All charts have the same scale, so that they can be compared.
  const most = Math.max(...topics.flatMap((topic) => topic.turns_by_week), 1);
  fill(
    content,
    h(
      'p',
      { class: 'dim' },
      weeks.length
        ? `How many turns mention a topic, by week, from ${weeks[0]} to ${weeks.at(-1)}. A topic leads to its turns.`
        : 'How many turns mention a topic. A topic leads to its turns.',
    ),
    table(
      'Topics',
      ['Topic', 'Area', 'Turns', 'Over time'],
      topics.map((topic) => topicRow(topic, most, weeks)),
    ),
  );
}

function topicRow({ name, category, turns, turns_by_week: byWeek }, most, weeks) {
  return [
    h('a', { href: `#/memory/search/${encodeURIComponent(name)}`, dir: 'auto' }, visible(name)),
    category,
    h('span', { class: 'number' }, String(turns)),
    byWeek.length ? chart(byWeek, most, weeks) : '',
  ];
}

/** A bar for each week. */
function chart(turns, most, weeks) {
  const peak = turns.indexOf(Math.max(...turns));
  const label = `most in the week of ${weeks[peak]}: ${plural(turns[peak], 'turn')}`;
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
