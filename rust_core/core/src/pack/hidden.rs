//! What a layout does not show of its tokens, and needs to give them back as they were.

use std::ops::Range;

use crate::storage::tokens::TokenBuffer;

/// Log-probability and version of the few tokens that stand in a layout with others, by place in the layout.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Hidden {
    places: Vec<usize>,
    figures: Vec<(f32, i32)>,
}

impl Hidden {
    /// Note what a token had. Places ascend.
    pub(super) fn push(&mut self, place: usize, logprob: f32, version: i32) {
        self.places.push(place);
        self.figures.push((logprob, version));
    }

    /// Put back what the tokens at these places had; the first of them is token `start` of `tokens`.
    pub(super) fn restore(&self, places: Range<usize>, start: usize, tokens: &mut TokenBuffer) {
        let from = self.places.partition_point(|&place| place < places.start);
        let noted = self.places[from..].iter().zip(&self.figures[from..]);
        for (&place, &(logprob, version)) in noted.take_while(|(place, _)| **place < places.end) {
            let at = start + place - places.start;
            tokens.logprobs[at] = logprob;
            tokens.versions[at] = version;
        }
    }
}
