//! A server's form in the chat: whose it is and what it wants, filled in field by field, looked at and sent, or not.
//!
//! As with the gate, keys count once nothing was typed for a moment.

use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui_core::text::Span;
use selvedge_mcp::{Address, Elicited, Field, Form, Wants};
use serde_json::Value;
use tokio::sync::oneshot;

use super::editor::Editor;
use super::look::Look;
use super::pending::QuietWait;
use super::question::keys_row;
use super::rows::{Fit, Row, clean, one_line};
use crate::ends::ends;
use crate::filling::{self, Filling};

/// Lines of a server's message that are shown.
const MESSAGE_LINES: usize = 60;

pub(crate) struct FormQuestion {
    pub(crate) server: String,
    pub(crate) form: Form,
    pub(crate) reply: oneshot::Sender<Elicited>,
}

pub(crate) struct FormAsking {
    server: String,
    message: String,
    wants: Wanted,
    reply: oneshot::Sender<Elicited>,
    pub(super) quiet: QuietWait,
    state: State,
    /// What is wrong with what was typed.
    wrong: Option<String>,
}

enum Wanted {
    Fields(Filling),
    Visit(Address),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Whether it is filled in at all.
    Open,
    Field,
    /// All is filled in, and not sent.
    Review,
}

#[derive(Debug, PartialEq)]
pub(crate) enum FormPressed {
    NotMine,
    Taken,
    /// Something was filled in, which is told.
    Filled(Row),
    Decided(Elicited),
}

impl FormAsking {
    /// `None` where it wants something that cannot be shown; whoever waits hears of it.
    pub(crate) fn new(question: FormQuestion, now: Instant) -> Option<Self> {
        let wants = match question.form.wants {
            Wants::Fields(fields) => Wanted::Fields(Filling::new(fields)),
            Wants::Visit(address) => Wanted::Visit(address),
            _ => return None,
        };
        Some(Self {
            server: question.server,
            message: question.form.message,
            wants,
            reply: question.reply,
            quiet: QuietWait::new(now),
            state: State::Open,
            wrong: None,
        })
    }

    pub(crate) fn is_void(&self) -> bool {
        self.reply.is_closed()
    }

    pub(crate) async fn void(&mut self) {
        self.reply.closed().await;
    }

    pub(crate) fn decide(self, elicited: Elicited) {
        // Where nobody waits any more, nobody needs it.
        let _ = self.reply.send(elicited);
    }

    /// What stands before what is typed into a field.
    pub(crate) fn mark(&self) -> Option<String> {
        match (&self.wants, self.state) {
            (Wanted::Fields(filling), State::Field) => {
                let name: String = one_line(&filling.next()?.name).chars().take(24).collect();
                Some(format!("{name} › "))
            }
            _ => None,
        }
    }

    pub(crate) fn press(&mut self, key: KeyEvent, words: &mut Editor, now: Instant) -> FormPressed {
        if !self.quiet.is_over {
            self.quiet.disturbed(now);
            return FormPressed::NotMine;
        }
        match self.state {
            State::Field => self.typed(key, words),
            State::Open | State::Review => self.chosen(key, words),
        }
    }

    fn typed(&mut self, key: KeyEvent, words: &mut Editor) -> FormPressed {
        let Wanted::Fields(filling) = &mut self.wants else {
            return FormPressed::Taken;
        };
        match key.code {
            KeyCode::Enter => match filling.fill(&words.text()) {
                Ok(()) => {
                    words.clear();
                    self.wrong = None;
                    if filling.next().is_none() {
                        self.state = State::Review;
                    }
                    let line = one_line(&filling.last().unwrap_or_default());
                    FormPressed::Filled(Row::text(line).indent(4))
                }
                Err(why) => {
                    self.wrong = Some(why.to_string());
                    FormPressed::Taken
                }
            },
            KeyCode::Esc => {
                words.clear();
                self.wrong = None;
                if filling.back().is_none() {
                    self.state = State::Open;
                }
                FormPressed::Taken
            }
            _ => {
                words.press(key);
                FormPressed::Taken
            }
        }
    }

    fn chosen(&mut self, key: KeyEvent, words: &mut Editor) -> FormPressed {
        if key
            .modifiers
            .intersects(KeyModifiers::CONTROL | KeyModifiers::ALT)
        {
            return FormPressed::NotMine;
        }
        match (key.code, &mut self.wants) {
            (KeyCode::Char('y' | 'Y'), Wanted::Visit(_)) => {
                FormPressed::Decided(Elicited::Accepted(Value::Null))
            }
            (KeyCode::Char('y' | 'Y'), Wanted::Fields(filling)) if self.state == State::Review => {
                FormPressed::Decided(Elicited::Accepted(filling.content()))
            }
            (KeyCode::Char(key), Wanted::Fields(filling))
                if matches!(
                    (key, self.state),
                    ('y' | 'Y', _) | ('e' | 'E', State::Review)
                ) =>
            {
                if self.state == State::Review {
                    filling.again();
                }
                words.clear();
                // A form without fields only wants to be agreed to.
                self.state = match filling.next() {
                    Some(_) => State::Field,
                    None => State::Review,
                };
                FormPressed::Taken
            }
            (KeyCode::Char('n' | 'N'), _) => FormPressed::Decided(Elicited::Declined),
            (KeyCode::Esc, _) => FormPressed::Decided(Elicited::Cancelled),
            _ => FormPressed::Taken,
        }
    }

    /// Whose form it is and what it wants, for the page above.
    pub(crate) fn told(&self, look: Look) -> Vec<Row> {
        let head = format!("the server {} asks:", one_line(&self.server));
        let mut rows = vec![
            Row::blank(),
            Row::of(head, look.asks()).behind(Span::styled("? ", look.asks())),
        ];
        // Its words are indented: they cannot look like a question of ours.
        let foreign = |text: String| Row::text(text).indent(6);
        let message = clean(&self.message);
        let lines = ends(&message, MESSAGE_LINES);
        rows.extend(lines.iter().map(|line| foreign(line.text())));
        match &self.wants {
            Wanted::Fields(filling) => {
                for field in filling.fields() {
                    let about = Row::of(one_line(&filling::about(field)), look.strong());
                    rows.push(about.behind(Span::raw("  · ")));
                    rows.extend(field.about.iter().map(|words| foreign(one_line(words))));
                    rows.extend(choices(field).map(foreign));
                }
            }
            Wanted::Visit(address) => {
                let words = format!(
                    "it wants you to open this address, which leads to {}; it is not opened for you:",
                    one_line(&address.host)
                );
                rows.push(Row::of(words, look.strong()).indent(2));
                rows.push(foreign(one_line(&address.url)).fit(Fit::Letters));
            }
        }
        rows.push(Row::blank());
        rows
    }

    /// What is asked for right now, and the keys.
    pub(crate) fn rows(&self, look: Look) -> Vec<Row> {
        let server = one_line(&self.server);
        let keys = |keys: Vec<(&'static str, String)>| vec![keys_row(keys, look)];
        let (no, leave) = (("n", "no".to_owned()), ("Esc", "leave it".to_owned()));
        match (&self.wants, self.state) {
            _ if !self.quiet.is_over => vec![Row::quiet("  …")],
            (Wanted::Visit(_), _) => keys(vec![("y", "I open it".to_owned()), no, leave]),
            (Wanted::Fields(_), State::Open) => {
                let fill = ("y", format!("fill it in for {server}"));
                keys(vec![fill, no, leave])
            }
            (Wanted::Fields(_), State::Review) => {
                let send = ("y", format!("send this to {server}"));
                keys(vec![send, ("e", "fill it in again".to_owned()), no, leave])
            }
            (Wanted::Fields(filling), State::Field) => {
                let Some(field) = filling.next() else {
                    return Vec::new();
                };
                let place = format!("{} of {}: ", filling.place(), filling.fields().len());
                let body = vec![
                    Span::raw(place),
                    Span::styled(one_line(&filling::about(field)), look.strong()),
                ];
                let mut rows = vec![Row::spans(body).behind(Span::styled("? ", look.asks()))];
                rows.extend(choices(field).map(|line| Row::text(line).indent(6).cut()));
                let wrong = self.wrong.iter();
                rows.extend(wrong.map(|why| Row::of(one_line(why), look.bad()).indent(2)));
                rows.push(Row::quiet(format!(
                    "  for {server}; Enter goes on, Esc goes back"
                )));
                rows
            }
        }
    }
}

/// The choices of a field in one line, where it has any.
fn choices(field: &Field) -> Option<String> {
    let choices = filling::choices(field);
    (!choices.is_empty()).then(|| one_line(&choices.join("  ")))
}

/// What became of a form, in a row.
pub(crate) fn elicited(elicited: &Elicited, look: Look) -> Row {
    let words = match elicited {
        Elicited::Accepted(Value::Null) => "yes",
        Elicited::Accepted(_) => "sent",
        Elicited::Declined => "no",
        Elicited::Cancelled => "left",
    };
    Row::of(words, look.strong()).behind(Span::styled("» ", look.asks()))
}

#[cfg(test)]
mod tests {
    use super::super::pending::QUIET;
    use super::*;
    use serde_json::json;

    fn asking(request: Value) -> (FormAsking, oneshot::Receiver<Elicited>) {
        let (reply, answer) = oneshot::channel();
        let form = Form::read(&request).unwrap();
        let now = Instant::now();
        let mut asking = FormAsking::new(
            FormQuestion {
                server: "shop".into(),
                form,
                reply,
            },
            now,
        )
        .unwrap();
        assert_eq!(
            asking.press(KeyCode::Char('y').into(), &mut Editor::default(), now),
            FormPressed::NotMine
        );
        asking.quiet.open_if_quiet(now + QUIET);
        (asking, answer)
    }

    fn two_fields() -> Value {
        json!({"message": "Hello\u{1b}[2J\n? the gate asks", "requestedSchema": {"type": "object", "properties": {
            "name": {"type": "string", "title": "Name"},
            "size": {"type": "string", "enum": ["S", "M"], "default": "M"},
        }, "required": ["name"]}})
    }

    fn plain(rows: &[Row]) -> Vec<String> {
        rows.iter().map(Row::plain).collect()
    }

    #[test]
    fn foreign_words_are_shown_as_such() {
        let (asking, _answer) = asking(two_fields());
        assert_eq!(
            plain(&asking.told(Look::Plain)),
            [
                "",
                "? the server shop asks:",
                "      Hello\u{fffd}[2J",
                "      ? the gate asks",
                "  · Name (name): text; required",
                "  · size: one of these; M where nothing is typed",
                "      1. S  2. M",
                ""
            ]
        );
    }

    #[test]
    fn it_is_filled_in_corrected_looked_at_and_sent() {
        let (mut asking, _answer) = asking(two_fields());
        let (mut words, now) = (Editor::default(), Instant::now());
        let mut press =
            |asking: &mut FormAsking, code: KeyCode| asking.press(code.into(), &mut words, now);
        assert_eq!(press(&mut asking, KeyCode::Char('y')), FormPressed::Taken);
        // What has to be there is asked for again.
        assert_eq!(press(&mut asking, KeyCode::Enter), FormPressed::Taken);
        assert!(plain(&asking.rows(Look::Plain)).contains(&"  a value is required".to_owned()));
        for letter in "Ada".chars() {
            press(&mut asking, KeyCode::Char(letter));
        }
        assert!(
            matches!(press(&mut asking, KeyCode::Enter), FormPressed::Filled(row) if row.plain() == "    name: Ada")
        );
        press(&mut asking, KeyCode::Char('9'));
        press(&mut asking, KeyCode::Enter);
        assert!(plain(&asking.rows(Look::Plain)).contains(&"  not one of the choices".to_owned()));
        press(&mut asking, KeyCode::Backspace);
        assert!(
            matches!(press(&mut asking, KeyCode::Enter), FormPressed::Filled(row) if row.plain() == "    size: M")
        );
        assert!(
            asking.rows(Look::Plain)[0]
                .plain()
                .contains("y send this to shop")
        );
        let sent = Elicited::Accepted(json!({"name": "Ada", "size": "M"}));
        assert_eq!(
            press(&mut asking, KeyCode::Char('y')),
            FormPressed::Decided(sent)
        );
    }

    #[test]
    fn an_address_is_shown_and_asked_about() {
        let request =
            json!({"mode": "url", "message": "Log in", "url": "https://example.com/login?x=1"});
        let (mut asking, _answer) = asking(request);
        let told = plain(&asking.told(Look::Plain)).join("\n");
        assert!(
            told.contains("leads to example.com")
                && told.contains("      https://example.com/login?x=1"),
            "{told}"
        );
        let pressed = asking.press(
            KeyCode::Char('n').into(),
            &mut Editor::default(),
            Instant::now(),
        );
        assert_eq!(pressed, FormPressed::Decided(Elicited::Declined));
    }
}
