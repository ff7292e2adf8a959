// What the page shows to a browser without a valid cookie.

import { button, h } from '/page/dom.js';

customElements.define(
  'sv-login',
  class extends HTMLElement {
    connectedCallback() {
      this.replaceChildren(
        h(
          'section',
          { class: 'panel narrow', 'aria-labelledby': 'login-title' },
          h('h2', { id: 'login-title' }, 'Log in'),
          h(
            'p',
            null,
            location.hash === '#/used-login'
              ? 'This login URL does not work any more: it was used before, or is older than ten minutes.'
              : 'This browser is not logged in, or its login has expired.',
          ),
          h(
            'ol',
            null,
            h(
              'li',
              null,
              'On the machine of the server, run ',
              h('code', null, 'selvedge serve login'),
              '.',
            ),
            h(
              'li',
              null,
              'Open the URL that it prints in this browser. It works once within ten minutes.',
            ),
          ),
          h(
            'p',
            null,
            'The login lasts seven days. ',
            h('code', null, 'selvedge serve token list'),
            ' shows it.',
          ),
          button('Try again', () => location.assign('/'), 'primary'),
        ),
      );
    }
  },
);
