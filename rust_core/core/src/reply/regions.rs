//! How sure the model was of a turn, by region: thinking, tool calls and all of it. Regions are found by the tags in
//! the text that the tokens spell.

use libm::exp;

use crate::error::{Error, Result, beginning};
use crate::keyword::keywords;

/// The tags around a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tags {
    open: String,
    close: String,
}

impl Tags {
    /// Bytes of the longest tag.
    const LONGEST: usize = 64;

    /// A pair of tags.
    ///
    /// # Errors
    /// [`Error::Value`] if one is empty or longer than 64 bytes, or the two are equal.
    pub fn new(open: impl Into<String>, close: impl Into<String>) -> Result<Self> {
        let tags = Self { open: open.into(), close: close.into() };
        let fits = |tag: &str| (1..=Self::LONGEST).contains(&tag.len());
        if fits(&tags.open) && fits(&tags.close) && tags.open != tags.close {
            return Ok(tags);
        }
        let value = format!("tags are {:?} and {:?}", beginning(&tags.open), beginning(&tags.close));
        Err(Error::conflict(value, "two different strings of 1 to 64 bytes"))
    }

    /// `<think>` and `</think>`.
    #[must_use]
    pub fn think() -> Self {
        Self { open: "<think>".to_owned(), close: "</think>".to_owned() }
    }

    /// `<tool_call>` and `</tool_call>`.
    #[must_use]
    pub fn tool() -> Self {
        Self { open: "<tool_call>".to_owned(), close: "</tool_call>".to_owned() }
    }
}

/// A part of a text, from its first byte to the one after its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RegionSpan {
    start: usize,
    end: usize,
    // None for a tag.
    part: Option<Region>,
}

/// The tags and regions of a text, in order. They do not overlap, and the rest of the text is in no region.
#[derive(Default)]
struct RegionSpans {
    done: Vec<RegionSpan>,
    /// The region that the next close tag ends, and where it starts.
    open: Option<(Region, usize)>,
    /// Whether there was a tag of thinking and one of a tool call.
    seen: [bool; 2],
}

impl RegionSpans {
    /// Look for tags. Inside a region only its own close tag is one.
    fn find(text: &[u8], think: &Tags, tool: &Tags) -> Vec<RegionSpan> {
        let pairs = [(Region::Think, think), (Region::Tool, tool)];
        let mut spans = Self::default();
        let mut at = 0;
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            let inside = spans.open.map(|(region, _)| region);
            let tag = pairs.iter().find_map(|&(region, tags)| {
                if inside.is_none() && rest.starts_with(tags.open.as_bytes()) {
                    return Some((region, true, tags.open.len()));
                }
                let closes = inside.is_none_or(|inside| inside == region) && rest.starts_with(tags.close.as_bytes());
                closes.then_some((region, false, tags.close.len()))
            });
            let Some((region, opens, len)) = tag else {
                at += 1;
                continue;
            };
            if opens {
                spans.open = Some((region, at + len));
            } else {
                spans.close(region, at);
            }
            spans.seen[region as usize] = true;
            spans.done.push(RegionSpan { start: at, end: at + len, part: None });
            at += len;
        }
        spans.close_last(text.len());
        spans.done
    }

    /// End a region at its close tag. Where nothing opened it and it is the first tag of its kind, the prompt did.
    fn close(&mut self, region: Region, end: usize) {
        if let Some((region, start)) = self.open.take() {
            self.done.push(RegionSpan { start, end, part: Some(region) });
        } else if !self.seen[region as usize] {
            if region == Region::Think {
                // What looked like a tool call until here was thought of only.
                *self = Self::default();
            }
            let start = self.done.last().map_or(0, |last| last.end);
            self.done.push(RegionSpan { start, end, part: Some(region) });
        }
    }

    fn close_last(&mut self, end: usize) {
        if let Some((region, start)) = self.open {
            self.done.push(RegionSpan { start, end, part: Some(region) });
        }
    }
}

/// The region of every token, of which `ends` are the ends in the text they spell.
///
/// A token is in a region if at least one of its bytes is and none is part of a tag.
fn assign<'a>(ends: &'a [usize], spans: &'a [RegionSpan]) -> impl Iterator<Item = Option<Region>> + 'a {
    let mut first = 0;
    let mut start = 0;
    ends.iter().map(move |&end| {
        while spans.get(first).is_some_and(|span| span.end <= start) {
            first += 1;
        }
        let mut found = None;
        for span in spans[first..].iter().take_while(|span| span.start < end && start < end) {
            if span.end > start {
                found = Some(span.part);
            }
            if span.part.is_none() {
                break;
            }
        }
        start = end;
        found.flatten()
    })
}

/// Mean entropy and perplexity (its exponential) by region: over all regions of a kind together, and over the tokens whose
/// entropy is known.
pub fn uncertainty(text: &[u8], ends: &[usize], entropies: &[f32], think: &Tags, tool: &Tags) -> Uncertainty {
    let spans = RegionSpans::find(text, think, tool);
    let mut sums = [(0.0, 0u32); 3];
    let known = entropies.iter().zip(assign(ends, &spans)).filter(|(entropy, _)| !entropy.is_nan());
    for (&entropy, part) in known {
        for region in [Some(Region::All), part].into_iter().flatten() {
            let (sum, count) = &mut sums[region as usize];
            *sum += f64::from(entropy);
            *count += 1;
        }
    }
    // Without tokens it is 0 / 0, which is NaN.
    let means = sums.map(|(sum, count)| sum / f64::from(count));
    #[expect(clippy::cast_possible_truncation, reason = "the columns are f32")]
    let [entropy, perplexity] =
        [means.map(|mean| mean as f32), means.map(|mean| exp(mean).clamp(0.0, f64::from(f32::MAX)) as f32)];
    Uncertainty { entropy, perplexity, ..Uncertainty::UNKNOWN }
}

keywords! {
    /// A part of a model turn for which uncertainty is told apart.
    #[derive(Hash)]
    #[repr(u8)]
    pub enum Region as "the region", Quoted {
        /// Between think tags.
        Think = "think",
        /// Between the tags of a tool call.
        Tool = "tool",
        /// The whole turn.
        All = "all",
    }
}

/// How uncertain a turn was, by region in the order of [`Region::ALL`]; NaN where a region has no token or no log-probs.
#[derive(Clone, Copy, Debug)]
pub struct Uncertainty {
    /// Mean entropy of a token, in nats.
    pub entropy: [f32; 3],
    /// Its exponential.
    pub perplexity: [f32; 3],
    /// What ARPO sums up over how the turn begins, before it is divided: see [`crate::reply::Arpo`].
    pub opening: f32,
}

impl Uncertainty {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self { entropy: [f32::NAN; 3], perplexity: [f32::NAN; 3], opening: f32::NAN };

    /// Whether every figure is one that can be measured.
    ///
    /// # Errors
    /// [`Error::Value`] naming the first that is negative or infinite.
    pub fn check(&self) -> Result<()> {
        for (what, figures) in [("entropy", &self.entropy), ("perplexity", &self.perplexity)] {
            for (region, &figure) in Region::ALL.iter().zip(figures) {
                if figure < 0.0 || figure.is_infinite() {
                    let value = format!("the {what} of region {} is {figure}", region.as_str());
                    return Err(Error::range(value, "0 or more and finite, or NaN where it is not known"));
                }
            }
        }
        if self.opening < 0.0 || self.opening.is_infinite() {
            let value = format!("the entropy of the opening is {}", self.opening);
            return Err(Error::range(value, "0 or more and finite, or NaN where it is not known"));
        }
        Ok(())
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.entropy.iter().chain(&self.perplexity).chain([&self.opening]).all(|figure| figure.is_nan())
    }
}

/// NaN equals NaN here: both say that a figure is not known.
impl PartialEq for Uncertainty {
    fn eq(&self, other: &Self) -> bool {
        let same = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan());
        self.entropy.iter().zip(&other.entropy).all(same)
            && self.perplexity.iter().zip(&other.perplexity).all(same)
            && same((&self.opening, &other.opening))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{Region, RegionSpans, Tags, assign};

    /// One letter a token of one byte: h thinking, t tool call, - neither.
    fn letters(text: &str) -> String {
        let spans = RegionSpans::find(text.as_bytes(), &Tags::new("(", ")").unwrap(), &Tags::new("[", "]").unwrap());
        assert!(spans.is_sorted_by(|a, b| a.end <= b.start));
        let ends: Vec<usize> = (1..=text.len()).collect();
        let letter = |part| match part {
            Some(Region::Think) => 'h',
            Some(Region::Tool) => 't',
            _ => '-',
        };
        assign(&ends, &spans).map(letter).collect()
    }

    #[test]
    fn all_regions_of_a_kind_count() {
        assert_eq!(letters("(ab)c[d]e[fg](h)"), "-hh--".to_owned() + "-t---tt--h-");
        assert_eq!(letters("plain"), "-----");
        assert_eq!(letters(""), "");
    }

    #[test]
    fn what_the_prompt_opened_starts_at_the_beginning() {
        assert_eq!(letters("ab)cd"), "hh---");
        assert_eq!(letters("a[b]c)d[e]"), "hhhhh---t-");
        assert_eq!(letters("ab]c"), "tt--");
        assert_eq!(letters("(a)bc]d"), "-h-tt--");
        assert_eq!(letters("ab)c)d"), "hh----");
        assert_eq!(letters("[a]b]c"), "-t----");
    }

    #[test]
    fn what_was_cut_off_runs_to_the_end() {
        assert_eq!(letters("a(bc"), "--hh");
        assert_eq!(letters("(a)[bc"), "-h--tt");
        assert_eq!(letters("a("), "--");
    }

    #[test]
    fn tags_inside_a_region_are_text() {
        assert_eq!(letters("(a[b]c)d"), "-hhhhh--");
        assert_eq!(letters("[a(b)c]d"), "-ttttt--");
        assert_eq!(letters("((a)"), "-hh-");
    }

    #[test]
    fn a_token_with_a_byte_of_a_tag_is_in_no_region() {
        let spans = RegionSpans::find(b"<think>ab</think>", &Tags::think(), &Tags::tool());
        let parts = |ends: &[usize]| assign(ends, &spans).collect::<Vec<_>>();
        let h = Some(Region::Think);
        assert_eq!(parts(&[3, 7, 8, 8, 9, 17]), [None, None, h, None, h, None]);
        assert_eq!(parts(&[8, 10, 17]), [None, None, None]);
        assert_eq!(parts(&[17]), [None]);
    }

    #[test]
    fn tags_are_checked() {
        for (open, close) in [("", "a"), ("a", ""), ("a", "a"), ("a", &*"b".repeat(65))] {
            assert!(Tags::new(open, close).unwrap_err().to_string().contains("tags are"));
        }
    }
}
