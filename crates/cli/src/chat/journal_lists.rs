//! Lists of sessions and runs in the chat, read from the journal in the background.

use ratatui_core::style::Style;
use ratatui_core::text::Span;
use selvedge_journal::{
    Journal, JournalError, RunFilter, RunSummary, SessionSummary, StoredRunState,
};

use super::app::Chat;
use super::rows::{StyledRow, sanitize_line};
use super::theme::Theme;
use super::updates::ChatUpdate;
use crate::list_table::{COLUMN_GAP, column_padding, column_widths, first_code_line};
use crate::problem::Problem;
use crate::runs::{format_age, format_calls};

/// Sessions or runs that one list shows.
const MAX_LISTED_ROWS: usize = 20;
/// Rows that a list reads: one more tells whether it is cut.
const QUERIED_ROWS: u32 = MAX_LISTED_ROWS as u32 + 1;

/// A cell of a list and its style.
type ChatListCell = (String, Style);

/// The texts of a list besides its rows.
struct ChatListTexts<const COLUMNS: usize> {
    headings: [&'static str; COLUMNS],
    /// Shown if there are no rows.
    empty: &'static str,
    /// Shown if there are more than [`MAX_LISTED_ROWS`].
    cut: &'static str,
    hint: &'static str,
}

const SESSION_LIST: ChatListTexts<3> = ChatListTexts {
    headings: ["SESSION", "USED", "TITLE"],
    empty: "no sessions in this folder",
    cut: "only the last 20 sessions; run `selvedge sessions list` for all",
    hint: "type /continue ID to continue a session",
};

const RUN_LIST: ChatListTexts<5> = ChatListTexts {
    headings: ["RUN", "STATE", "STARTED", "CALLS", "SCRIPT"],
    empty: "no runs in this session yet",
    cut: "only the newest 20 runs; run `selvedge runs list` for all",
    hint: "run `selvedge runs show ID` for details",
};

impl Chat {
    /// Reads the journal in the background, then calls `show` with the result on the thread that
    /// draws.
    fn read_journal<T: Send + 'static>(
        &mut self,
        read: impl FnOnce(&Journal) -> Result<T, JournalError> + Send + 'static,
        show: impl FnOnce(&mut Self, Result<T, JournalError>) + Send + 'static,
    ) {
        let Some(journal) = &self.setup.journal else {
            return self.print_no_journal_error();
        };
        let (loaded, sender) = (journal.spawn_blocking(read), self.sender.clone());
        tokio::spawn(async move {
            let loaded = loaded.await;
            let show = Box::new(move |chat: &mut Self| show(chat, loaded));
            // Sending fails only if the chat has ended.
            let _ = sender.send(ChatUpdate::JournalRead(show));
        });
    }

    /// Reads the newest sessions of this folder whose ids begin with `prefix`, with their titles:
    /// one more than a list shows.
    pub(super) fn load_sessions(
        &mut self,
        prefix: String,
        show: impl FnOnce(&mut Self, Result<Vec<(SessionSummary, String)>, JournalError>)
        + Send
        + 'static,
    ) {
        let here = self.setup.directory.display().to_string();
        let redactor = self.setup.redactor();
        let read = move |journal: &Journal| {
            let ours = journal.sessions_in(&here, &prefix, QUERIED_ROWS)?;
            let titled = ours.into_iter().map(|session| {
                let title = crate::sessions::session_title(journal, &session, &redactor);
                (session, title)
            });
            Ok(titled.collect())
        };
        self.read_journal(read, show);
    }

    pub(super) fn list_sessions(&mut self) {
        self.load_sessions(String::new(), |chat, sessions| {
            let now = selvedge_protocol::since_epoch();
            let row = |(session, title): (SessionSummary, String)| {
                let used = format!("{} ago", format_age(now, session.touched_ms));
                [session.id, used, title].map(plain_cell)
            };
            let rows = sessions.map(|sessions| sessions.into_iter().map(row).collect());
            chat.print_list(rows, &SESSION_LIST);
        });
    }

    pub(super) fn list_runs(&mut self) {
        let session = self.session_id.clone();
        let (theme, redactor) = (self.theme, self.setup.redactor());
        let read = move |journal: &Journal| {
            // A chat without a turn has no session, and runs without a session are not its own.
            let Some(session) = session.filter(|id| !id.is_empty()) else {
                return Ok(Vec::new());
            };
            let runs = journal.runs(&RunFilter {
                session: Some(session),
                limit: Some(QUERIED_ROWS),
                ..RunFilter::default()
            })?;
            let with_line = runs.into_iter().map(|run| {
                // A run may expire between the two reads.
                let outline = journal.run_outline(&run.id);
                let source = outline.map_or_else(|_| String::new(), |outline| outline.source);
                let line = first_code_line(&redactor.redact_text(&source));
                (run, line)
            });
            Ok(with_line.collect::<Vec<_>>())
        };
        self.read_journal(read, move |chat, runs| {
            let now = selvedge_protocol::since_epoch();
            let row = |(run, line): (RunSummary, String)| {
                let (state, style) = match run.state {
                    StoredRunState::Running => ("running", theme.progress()),
                    StoredRunState::Completed => ("completed", theme.success()),
                    StoredRunState::Failed => ("failed", theme.error()),
                    StoredRunState::Suspended => ("suspended", theme.question()),
                    StoredRunState::Died => ("died", theme.error()),
                };
                let started = format!("{} ago", format_age(now, run.started_ms));
                [
                    plain_cell(run.id),
                    (state.to_owned(), style),
                    plain_cell(started),
                    plain_cell(format_calls(run.calls)),
                    plain_cell(line),
                ]
            };
            let rows = runs.map(|runs| runs.into_iter().map(row).collect());
            chat.print_list(rows, &RUN_LIST);
        });
    }

    /// Prints the rows with a hint, the text for no rows, or the error.
    fn print_list<const COLUMNS: usize>(
        &mut self,
        rows: Result<Vec<[ChatListCell; COLUMNS]>, JournalError>,
        texts: &ChatListTexts<COLUMNS>,
    ) {
        let mut rows = match rows {
            Ok(rows) if rows.is_empty() => return self.print_text(texts.empty),
            Ok(rows) => rows,
            Err(error) => return self.print_error(&error.into()),
        };
        let cut = (rows.len() > MAX_LISTED_ROWS).then_some(texts.cut);
        rows.truncate(MAX_LISTED_ROWS);
        let notes = cut.into_iter().chain([texts.hint]);
        let notes = notes.map(|note| StyledRow::dim(note).indented(2));
        let rows = aligned_rows(texts.headings, rows, self.theme);
        self.print_block(rows.into_iter().chain(notes));
    }

    fn print_no_journal_error(&mut self) {
        let problem = Problem::new("this chat has no journal");
        self.print_problem(&problem.hint("start selvedge without --ephemeral"));
    }
}

fn plain_cell(text: String) -> ChatListCell {
    (text, Style::new())
}

/// Returns the headings and the rows in columns. Rows that are too long are cut at their end.
fn aligned_rows<const COLUMNS: usize>(
    headings: [&str; COLUMNS],
    mut rows: Vec<[ChatListCell; COLUMNS]>,
    theme: Theme,
) -> Vec<StyledRow> {
    rows.insert(0, headings.map(|text| (text.to_owned(), theme.dim())));
    for (text, _) in rows.iter_mut().flatten() {
        *text = sanitize_line(text);
    }
    let widths = column_widths(&rows, COLUMNS, |(text, _)| text);
    let aligned = rows.into_iter().map(|row| {
        let cells = row.into_iter().zip(&widths).enumerate();
        let spans = cells.flat_map(|(column, ((text, style), width))| {
            let gap = match column + 1 == COLUMNS {
                true => String::new(),
                false => column_padding(&text, *width) + COLUMN_GAP,
            };
            [Span::styled(text, style), Span::raw(gap)]
        });
        StyledRow::spans(spans.collect()).truncated().indented(2)
    });
    aligned.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_under_their_headings() {
        let row = |id: &str, title: &str| [id, title].map(|text| plain_cell(text.to_owned()));
        let rows = vec![row("ses_1", "first"), row("日本日本", "two\nlines")];
        let rows = aligned_rows(["ID", "TITLE"], rows, Theme::Plain);
        let rows: Vec<String> = rows.iter().map(StyledRow::plain).collect();
        assert_eq!(
            rows,
            [
                "  ID        TITLE",
                "  ses_1     first",
                "  日本日本  two⏎lines"
            ]
        );
    }
}
