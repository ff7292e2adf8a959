//! The recalled block: what a recall found, as text for the newest message.

use crate::board::{ProjectDocument, shorten_title, truncate_to_tokens};
use crate::layer_quote::{mention_layer, quote_layers};
use crate::lessons::{Lesson, LessonKind};
use crate::level_writer::read_level_text;
use crate::sectioned_text::SectionedText;
use crate::store::{now_ms, require_session};
use crate::{Band, Level, Memory, MemoryHit, RecalledMemory, TurnFormat, time, tokens};

/// The share of the tokens for turns.
const TURNS_SHARE: f64 = 0.6;
/// The share of the tokens for lessons and layers. The rest is for the board.
const LESSONS_SHARE: f64 = 0.25;
/// The share of the tokens for the documents of the project.
const DOCUMENTS_SHARE: f64 = 0.1;
/// Tokens of a mentioned turn.
const MAX_MENTION_TOKENS: u32 = 30;

impl Memory {
    /// Returns the text of the recalled block and its tokens.
    pub(crate) fn compose_block(
        &self,
        session: &str,
        max_tokens: u32,
        recalled: &RecalledMemory,
        documents: &[ProjectDocument],
        bands: &[Band],
        question: &str,
    ) -> (String, u32) {
        let RecalledMemory {
            hits,
            mentioned,
            lessons,
            mentioned_layers,
            board,
            ..
        } = recalled;
        let bands = describe_bands(bands);
        // Counting tokens indexes the vocabulary: skip it if there is nothing.
        if hits.is_empty()
            && mentioned.is_empty()
            && lessons.is_empty()
            && mentioned_layers.is_empty()
            && board.is_empty()
            && documents.is_empty()
            && bands.is_none()
        {
            return (String::new(), 0);
        }
        let tags = tokens::count("<recalled>\n</recalled>\n") + 2;
        let room = max_tokens.saturating_sub(tags);
        let mut block = SectionedText::new(room);
        let share = |share: f64| (f64::from(room) * share) as u32;
        let (for_turns, for_lessons) = (share(TURNS_SHARE), share(LESSONS_SHARE));
        let turns = self.render_turns(session, hits, for_turns);
        let heading =
            "May be relevant; tools.history.getTurn(\"T-n\", \"R\") returns a turn in full:";
        block.add(heading, turns, room);
        let mentions = mentioned.iter().map(|hit| self.mention(session, hit));
        let mentions = mentions.chain(mentioned_layers.iter().map(mention_layer));
        block.add("Related; not quoted:", mentions, for_turns);
        let after_turns = block.tokens_left;
        let (layers, lessons): (Vec<&Lesson>, Vec<&Lesson>) = lessons
            .iter()
            .partition(|lesson| lesson.kind == LessonKind::Layer);
        let lines = lessons.iter().map(|lesson| lesson.content.clone());
        block.add("Lessons:", lines, for_lessons);
        let for_layers = (for_lessons + for_turns).saturating_sub(room - after_turns);
        let for_layers = for_layers.min(block.tokens_left);
        let heading = "References:";
        let for_quotes = for_layers.saturating_sub(tokens::count(heading) + 1);
        let quotes = quote_layers(&layers, question, for_quotes);
        block.add(heading, quotes, for_layers);
        let board = board.iter();
        let board = board.map(|entry| format!("{} (until turn {})", entry.text, entry.until_turn));
        block.add("On the board:", board, room);
        let now = now_ms();
        let lines = documents.iter().map(|document| {
            let (title, age) = (
                shorten_title(&document.title),
                time::format_ago(now, document.saved_ms),
            );
            format!("{}: \"{title}\" ({age})", document.key)
        });
        let heading = "File Cabinet of this project; tools.fetchFromFc(key) reads a document:";
        block.add(heading, lines, share(DOCUMENTS_SHARE));
        block.add("Earlier turns in this prompt:", bands, room);
        if block.text.is_empty() {
            return (String::new(), 0);
        }
        let text = format!("<recalled>\n{}</recalled>\n", block.text);
        let tokens = tokens::count(&text);
        (text, tokens)
    }

    /// Returns a line about a turn that is not quoted.
    fn mention(&self, session: &str, hit: &MemoryHit) -> String {
        let text = self.turn_text_at_level(&hit.session, hit.number, Level::Tiny);
        let text = text.unwrap_or_default().replace('\n', " ");
        let age = self
            .turn(&hit.session, hit.number)
            .map(|turn| time::format_ago(now_ms(), turn.at_ms));
        format!(
            "{} ({}): {}",
            turn_name(session, hit),
            age.unwrap_or_default(),
            truncate_to_tokens(&text, MAX_MENTION_TOKENS)
        )
    }

    /// Returns whether the lower levels of a turn are written.
    fn has_level(&self, hit: &MemoryHit) -> bool {
        let level = self.read(|reader| {
            let connection = &reader.connection;
            let session = require_session(connection, &hit.session)?.id;
            read_level_text(connection, session, hit.number, Level::Smoothed)
        });
        matches!(level, Ok(Some(_)))
    }

    /// Renders turns as lines, each at the highest level that fits.
    fn render_turns(&self, session: &str, hits: &[MemoryHit], room: u32) -> Vec<String> {
        let now = now_ms();
        let mut left = room;
        let mut lines = Vec::new();
        for (at, hit) in hits.iter().enumerate() {
            // A turn may take half of the remaining room, so that it leaves some for the others.
            let max_tokens = left / if at + 1 == hits.len() { 1 } else { 2 };
            let Ok(turn) = self.turn(&hit.session, hit.number) else {
                continue;
            };
            let at_level = |level| self.turn_text_at_level(&hit.session, hit.number, level);
            // The raw items of an agent's turn are JSON. The smoothed level says the same in fewer
            // tokens, if it is written: writing it takes time.
            let has_smoothed = turn.format == TurnFormat::Items && self.has_level(hit);
            let levels: &[Level] = match has_smoothed {
                true => &[Level::Smoothed, Level::Compressed],
                false => &[Level::Raw, Level::Smoothed, Level::Compressed],
            };
            let rendered = levels.iter().copied().find_map(|level| {
                let rendered = at_level(level).ok()?;
                (tokens::count(&rendered) + 16 <= max_tokens).then_some((level, rendered))
            });
            let (level, rendered) = match rendered {
                Some(rendered) => rendered,
                None if max_tokens > 24 => {
                    let rendered = at_level(Level::Compressed).unwrap_or_default();
                    (
                        Level::Compressed,
                        truncate_to_tokens(&rendered, max_tokens - 16),
                    )
                }
                None => break,
            };
            let who = turn.speaker.map(|name| format!(", {name}"));
            let who = who.unwrap_or_default();
            // A time that cannot be parsed is shown as it was written.
            let when = match &turn.ts {
                Some(ts) if time::parse_ms(ts).is_none() => ts.clone(),
                _ => time::format_ago(now, turn.at_ms),
            };
            let line = format!(
                "{}-{} ({when}{who}): {rendered}",
                turn_name(session, hit),
                level.letter()
            );
            left = left.saturating_sub(tokens::count(&line) + 2);
            lines.push(line);
        }
        lines
    }
}

/// Returns the name of a turn in a prompt of `session`: with its session if that is another.
pub(crate) fn turn_name(session: &str, hit: &MemoryHit) -> String {
    match hit.session == session {
        true => format!("T-{}", hit.number),
        false => format!("{}/T-{}", hit.session, hit.number),
    }
}

/// Returns one line about the levels of earlier turns; `None` if all of them are in full.
fn describe_bands(bands: &[Band]) -> Option<String> {
    let mut groups: Vec<(&str, u32, u32)> = Vec::new();
    for band in bands {
        let name = match band.era {
            true => "in eras",
            false => band.span.level.as_str(),
        };
        match groups.last_mut() {
            Some((last, _, end)) if *last == name => *end = band.span.last,
            _ => groups.push((name, band.span.first, band.span.last)),
        }
    }
    if groups.iter().all(|(name, ..)| *name == Level::Raw.as_str()) {
        return None;
    }
    let groups = groups
        .iter()
        .map(|(name, first, last)| match first == last {
            true => format!("T-{first} {name}"),
            false => format!("T-{first} to T-{last} {name}"),
        });
    Some(groups.collect::<Vec<_>>().join(", "))
}
