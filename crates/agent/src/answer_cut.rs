//! The end of an answer after its first block (`AfterBlock::Stop`).

use selvedge_script::detect::Segment;

use crate::answer::AnswerReader;

/// Where an answer ends before its stream does (`AfterBlock::Stop`). The rest is read, because a
/// closing reasoning tag in it would say that the block is reasoning, and dropped.
#[derive(Debug)]
pub(crate) struct AnswerCut {
    pub(crate) item_index: u32,
    /// Length of the item's text up to the end of the block, in bytes.
    pub(crate) text_len: usize,
    /// The text of the item after the block.
    pub(crate) dropped_text: String,
}

impl AnswerReader<'_> {
    /// Returns whether the item begins after the end of the answer.
    pub(crate) fn is_after_cut(&self, item_index: u32) -> bool {
        self.cut
            .as_ref()
            .is_some_and(|cut| cut.item_index < item_index)
    }

    /// Returns the length of the item's text up to the end of the answer, if it is in this item.
    pub(crate) fn kept_text_len(&self, item_index: u32) -> Option<usize> {
        let cut = self.cut.as_ref().filter(|cut| cut.item_index == item_index);
        cut.map(|cut| cut.text_len)
    }

    /// Drops a segment after the end of the answer. Returns false if there is no such end, or no
    /// longer: the segment ends reasoning that contained the block.
    pub(crate) fn drop_after_cut(&mut self, item_index: u32, segment: &Segment) -> bool {
        let cut = self.cut.take_if(|cut| cut.item_index == item_index);
        let Some(mut cut) = cut else {
            return false;
        };
        if matches!(segment, Segment::EndOfReasoning(_)) {
            let state = self.items.entry(item_index).or_default();
            state.pending_text.push_str(&cut.dropped_text);
            return false;
        }
        cut.dropped_text.push_str(segment.raw());
        self.cut = Some(cut);
        true
    }
}
