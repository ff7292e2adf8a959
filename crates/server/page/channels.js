// Channels: the list, the messages of one, and a form to post.

import { follow, get, post } from '/page/api.js';
import { emptyNote, errorNote, fill, h } from '/page/dom.js';
import { ago, dateTime, plural, visible } from '/page/format.js';
import { rich } from '/page/render.js';

customElements.define(
  'sv-channels',
  class extends HTMLElement {
    connectedCallback() {
      this.stop = new AbortController();
      this.list = h('ul', { class: 'rows', 'aria-label': 'Channels' });
      this.note = h('div');
      this.detail = h('div', { class: 'detail' });
      const name = h('input', {
        type: 'text',
        'aria-label': 'Name of a channel',
        placeholder: 'Name',
        pattern: '[a-z0-9_\\-]+',
      });
      fill(
        this,
        h(
          'section',
          { class: 'side', 'aria-label': 'List of channels' },
          h('div', { class: 'side-head' }, h('h2', null, 'Channels')),
          h(
            'form',
            {
              class: 'inline',
              onsubmit: (event) => {
                event.preventDefault();
                if (name.value.trim())
                  location.hash = `#/channels/${encodeURIComponent(name.value.trim())}`;
              },
            },
            name,
            h('button', { type: 'submit' }, 'Open'),
          ),
          this.note,
          this.list,
        ),
        this.detail,
      );
      this.show(this.path ?? []);
    }

    disconnectedCallback() {
      this.stop.abort();
    }

    show([name]) {
      this.stop.abort();
      this.stop = new AbortController();
      this.name = name || null;
      this.classList.toggle('has-detail', Boolean(name));
      this.refresh();
      if (name) this.open(name);
      else
        fill(
          this.detail,
          emptyNote(
            'No channel is selected.',
            'People and sessions post to channels. A post that mentions a session which follows the channel becomes its next message.',
          ),
        );
    }

    async refresh() {
      try {
        const { channels } = await get('/channels', this.stop.signal);
        fill(
          this.note,
          channels.length
            ? null
            : h('p', { class: 'dim' }, 'There are no channels yet. The first post creates one.'),
        );
        fill(
          this.list,
          channels.map((channel) =>
            h(
              'li',
              null,
              h(
                'a',
                {
                  href: `#/channels/${encodeURIComponent(channel.name)}`,
                  'aria-current': channel.name === this.name ? 'true' : null,
                },
                h('span', { class: 'row-title' }, `# ${channel.name}`),
                h(
                  'span',
                  { class: 'row-facts' },
                  h('span', { class: 'dim' }, plural(channel.messages, 'message')),
                  h('time', { class: 'dim' }, ago(channel.time)),
                ),
              ),
            ),
          ),
        );
      } catch (error) {
        if (!this.stop.signal.aborted) fill(this.note, errorNote(error));
      }
    }

    open(name) {
      const { signal } = this.stop;
      const path = `/channels/${encodeURIComponent(name)}`;
      const posts = h('div', {
        class: 'posts',
        tabindex: 0,
        role: 'log',
        'aria-label': `Messages of ${name}`,
      });
      const note = h('div');
      const text = h('textarea', {
        rows: 2,
        dir: 'auto',
        'aria-label': 'Post',
        placeholder: 'Post; @ and the id of a session mentions it',
      });
      const form = h(
        'form',
        {
          class: 'composer',
          onsubmit: async (event) => {
            event.preventDefault();
            if (!text.value.trim()) return;
            try {
              const { queued, refused } = await post(`${path}/messages`, {
                text: text.value.trim(),
              });
              text.value = '';
              fill(
                note,
                queued.length ? h('p', { class: 'notice' }, `Sent to ${queued.join(', ')}.`) : null,
                refused.map((reason) => h('p', { class: 'notice error' }, visible(reason))),
              );
              this.refresh();
              if (!isKnown) start();
            } catch (error) {
              fill(note, errorNote(error));
            }
          },
        },
        text,
        h(
          'div',
          { class: 'composer-buttons' },
          h('button', { type: 'submit', class: 'primary' }, 'Post'),
        ),
      );
      fill(
        this.detail,
        h(
          'header',
          { class: 'session-head' },
          h('a', { class: 'back', href: '#/channels' }, '← Channels'),
          h('h2', null, `# ${name}`),
        ),
        posts,
        note,
        form,
      );
      let last = 0;
      const show = (message) => {
        if (message.number <= last) return;
        last = message.number;
        const isAtEnd = posts.scrollHeight - posts.scrollTop - posts.clientHeight < 60;
        posts.append(
          h(
            'article',
            { class: 'post', 'aria-label': `Message ${message.number}` },
            h(
              'p',
              { class: 'item-head' },
              h('span', { class: 'kind' }, visible(message.author)),
              h('time', { class: 'dim', title: dateTime(message.time) }, ago(message.time)),
              message.hops ? h('span', { class: 'tag' }, plural(message.hops, 'hop')) : null,
            ),
            rich('markdown', message.text),
          ),
        );
        if (isAtEnd) posts.scrollTop = posts.scrollHeight;
      };
      // A channel exists from its first message on.
      let isKnown = false;
      const start = async () => {
        try {
          const { messages } = await get(`${path}/messages`, signal);
          isKnown = true;
          messages.forEach(show);
          posts.scrollTop = posts.scrollHeight;
        } catch (error) {
          if (error.status !== 404 && !signal.aborted) fill(note, errorNote(error));
          return;
        }
        follow(`${path}/events`, {
          after: last,
          signal,
          onEvent: (event) => show(event.message ?? event),
        });
      };
      start();
    }
  },
);
