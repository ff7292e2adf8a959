//! A text of sections within a token limit: a heading, and the lines that fit.

use crate::board::truncate_to_tokens;
use crate::level::escape_tags;
use crate::tokens;

/// Tokens below which a line is left out instead of truncated.
const MIN_TRUNCATED_TOKENS: u32 = 24;

/// A text while it is composed, and its remaining tokens.
pub(crate) struct SectionedText {
    pub(crate) text: String,
    pub(crate) tokens_left: u32,
}

impl SectionedText {
    pub(crate) fn new(max_tokens: u32) -> Self {
        Self {
            text: String::new(),
            tokens_left: max_tokens,
        }
    }

    /// Adds a heading and the lines that fit within `share` tokens. The last one may be truncated.
    pub(crate) fn add(
        &mut self,
        heading: &str,
        lines: impl IntoIterator<Item = String>,
        share: u32,
    ) {
        let heading_cost = tokens::count(heading) + 1;
        let Some(mut room) = share.min(self.tokens_left).checked_sub(heading_cost) else {
            return;
        };
        let mut block = String::new();
        for line in lines {
            let mut line = format!("- {}\n", escape_block(&line));
            let mut cost = tokens::count(&line);
            if cost > room {
                if room < MIN_TRUNCATED_TOKENS {
                    break;
                }
                line = format!("{}\n", truncate_to_tokens(line.trim_end(), room - 2));
                cost = tokens::count(&line);
                if cost > room {
                    break;
                }
            }
            room -= cost;
            block.push_str(&line);
        }
        if !block.is_empty() {
            let all = format!("{heading}\n{block}");
            self.tokens_left = self.tokens_left.saturating_sub(tokens::count(&all));
            self.text.push_str(&all);
        }
    }
}

/// Escapes tags of turns and of blocks, so that a text cannot end the block that contains it.
fn escape_block(text: &str) -> String {
    escape_tags(text)
        .replace("</recalled", "&lt;/recalled")
        .replace("<recalled", "&lt;recalled")
        .replace("</project_brief", "&lt;/project_brief")
        .replace("<project_brief", "&lt;project_brief")
}
