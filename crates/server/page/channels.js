// Channels: the list, the messages of one, and a form to post.

import { follow, get, post, put } from '/page/api.js';
import { ENTER_HINT, emptyNote, errorNote, every, field, fill, h, onEnter } from '/page/dom.js';
import { ago, authorName, dateTime, plural, visible } from '/page/format.js';
import { ListView } from '/page/list-view.js';
import { mentionList } from '/page/mentions.js';
import { rich } from '/page/render.js';
import { keepDraft, removeSent } from '/page/unsaved.js';

/** How often the list is read, and a channel that is not stored yet. */
const POLL_MS = 5000;
/** Longest name of a channel. */
const MAX_NAME_LENGTH = 64;

/** What a mention does, for people. */
const MENTION_HINT =
  'Type @ and choose a session: it gets the post as its next message, and follows the channel from then on.';

/** A valid name of a channel made from what a person typed: `team-chat` for `Team chat`. */
function channelName(text) {
  return text
    .normalize('NFD')
    .replace(/\p{M}/gu, '')
    .toLowerCase()
    .replace(/[^a-z0-9_.-]+/g, '-')
    .replace(/^[^a-z0-9]+|-+$/g, '')
    .slice(0, MAX_NAME_LENGTH);
}

/** The form that opens a channel by its name. */
function newChannelForm() {
  const name = h('input', { type: 'text', spellcheck: 'false', required: true });
  const rule = 'Lower-case letters, digits, - _ and . are used: “Team chat” becomes team-chat.';
  const hint = h('span', null, rule);
  name.addEventListener('input', () => {
    const made = channelName(name.value);
    hint.textContent = made && made !== name.value ? `It will be called ${made}.` : rule;
  });
  const submit = (event) => {
    event.preventDefault();
    const made = channelName(name.value);
    if (made) {
      name.value = '';
      hint.textContent = rule;
      location.hash = `#/channels/${made}`;
    } else hint.textContent = 'Use at least one letter from a to z, or a digit.';
  };
  return h(
    'form',
    { class: 'new-channel', onsubmit: submit },
    field('New channel', name, hint),
    h('button', { type: 'submit' }, 'Create channel'),
  );
}

customElements.define(
  'sv-channels',
  class extends ListView {
    heading = 'Channels';
    pollMs = POLL_MS;
    search = newChannelForm();
    /** Ends when another channel is opened. */
    opened = new AbortController();

    disconnectedCallback() {
      super.disconnectedCallback();
      this.opened.abort();
    }

    openNothing() {
      this.opened.abort();
      fill(
        this.detail,
        emptyNote('No channel is selected.', 'People and sessions post to channels.', MENTION_HINT),
      );
    }

    async read() {
      const { channels } = await get('/channels', this.stop.signal);
      // A new channel is shown before its first post stores it.
      if (this.selected && !channels.some(({ name }) => name === this.selected))
        channels.unshift({ name: this.selected, messages: 0 });
      const entries = channels.map((channel) => ({ ...channel, id: channel.name }));
      const note = entries.length ? null : 'There are no channels yet.';
      return { entries, hasMore: false, note };
    }

    address(channel) {
      return `#/channels/${encodeURIComponent(channel.name)}`;
    }

    row({ name, messages, time }) {
      return [
        h('span', { class: 'row-title' }, `# ${visible(name)}`),
        h(
          'span',
          { class: 'row-facts' },
          messages
            ? [
                h('span', { class: 'dim' }, plural(messages, 'message')),
                h('time', { class: 'dim' }, ago(time)),
              ]
            : h('span', { class: 'dim' }, 'new: write the first post'),
        ),
      ];
    }

    open(name) {
      this.opened.abort();
      this.opened = new AbortController();
      const { signal } = this.opened;
      const path = `/channels/${encodeURIComponent(name)}`;
      const posts = h('div', {
        class: 'posts',
        tabindex: 0,
        role: 'log',
        'aria-label': `Messages of ${visible(name)}`,
      });
      const note = h('div', { class: 'channel-note' });
      const text = h('textarea', {
        rows: 2,
        dir: 'auto',
        'aria-label': 'Post',
        placeholder: 'Message; @ mentions a session',
      });
      const keep = keepDraft(text, `channel/${name}`);
      const mentions = mentionList(text, signal);
      const submit = h('button', { type: 'submit', class: 'primary' }, 'Post');
      const send = async (event) => {
        event?.preventDefault();
        const typed = text.value;
        const sent = typed.trim();
        if (!sent || submit.disabled) return;
        submit.disabled = true;
        try {
          // A session gets posts that mention it if it follows the channel.
          for (const { id } of mentions.mentioned()) await put(`${path}/followers/${id}`);
          const { queued, refused } = await post(`${path}/messages`, {
            text: mentions.outgoing(sent),
          });
          removeSent(text, typed);
          keep();
          const titles = queued.map((id) => visible(mentions.titleOf(id)));
          fill(
            note,
            titles.length
              ? h('p', { class: 'notice good' }, `Sent to ${titles.join(', ')}.`)
              : null,
            refused.map((reason) => h('p', { class: 'notice error' }, visible(reason))),
          );
          this.refresh();
          start();
        } catch (error) {
          fill(note, errorNote(error));
        }
        submit.disabled = false;
        text.focus();
      };
      onEnter(text, send);
      const form = h(
        'form',
        { class: 'composer', onsubmit: send },
        h('div', { class: 'composer-text' }, mentions.list, text, h('small', { class: 'keys' }, ENTER_HINT)),
        h(
          'div',
          { class: 'composer-buttons' },
          submit,
        ),
      );
      const empty = emptyNote(
        'No messages yet.',
        'The channel is stored with its first post.',
        MENTION_HINT,
      );
      empty.hidden = true;
      posts.append(empty);
      fill(
        this.detail,
        h(
          'header',
          { class: 'session-head' },
          h('a', { class: 'back', href: '#/channels' }, '← Channels'),
          h('h2', null, `# ${visible(name)}`),
        ),
        posts,
        note,
        form,
      );
      let last = 0;
      const show = (message) => {
        if (message.number <= last) return;
        last = message.number;
        empty.remove();
        const isAtEnd = posts.scrollHeight - posts.scrollTop - posts.clientHeight < 60;
        posts.append(
          h(
            'article',
            { class: 'post', 'aria-label': `Message ${message.number}` },
            h(
              'p',
              { class: 'item-head' },
              h('span', { class: 'kind' }, author(message)),
              h('time', { class: 'dim', title: dateTime(message.time) }, ago(message.time)),
              message.hops ? h('span', { class: 'tag' }, plural(message.hops, 'hop')) : null,
            ),
            rich('markdown', mentions.readable(message.text)),
          ),
        );
        if (isAtEnd) posts.scrollTop = posts.scrollHeight;
      };
      // A channel exists from its first message on, which another client may write.
      let isKnown = false;
      let isReading = false;
      const start = async () => {
        if (isKnown || isReading) return;
        isReading = true;
        try {
          const { messages } = await get(`${path}/messages`, signal);
          await mentions.ready;
          isKnown = true;
          messages.forEach(show);
          posts.scrollTop = posts.scrollHeight;
        } catch (error) {
          if (error.status !== 404 && !signal.aborted) fill(note, errorNote(error));
          empty.hidden = false;
          return;
        } finally {
          isReading = false;
        }
        follow(`${path}/events`, {
          after: last,
          signal,
          onEvent: show,
        });
      };
      start();
      every(POLL_MS, signal, start);
      text.focus();
    }
  },
);

/** Who posted a message: the person, another token, or a session with a link. */
function author({ author: id, author_title: title, is_own: isOwn }) {
  if (isOwn) return 'You';
  if (!id.startsWith('ses_')) return authorName(id);
  return h('a', { href: `#/sessions/${id}`, dir: 'auto' }, visible(title ?? id));
}
