//! The `usage` of a completion.

use super::ReplyResult;
use super::scanner::Scanner;

/// Token figures from here on cannot be true.
const ABSURD: u64 = 1 << 31;

/// Token counts of a completion. One that is missing, negative, no integer or above 2^31 - 1 is None, alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageCounts {
    /// Tokens of the prompt.
    pub prompt: Option<u32>,
    /// Of these, tokens that the server had cached; never more than `prompt`, and None where that is.
    pub cached: Option<u32>,
    /// Tokens of all choices.
    pub generated: Option<u32>,
    /// Of these, tokens of reasoning.
    pub reasoning: Option<u32>,
}

impl UsageCounts {
    /// Read them; what is no object says nothing.
    pub(super) fn read(scan: &mut Scanner<'_>) -> ReplyResult<Self> {
        let mut counts = Self::default();
        if scan.peek() != b'{' {
            return scan.skip().map(|()| counts);
        }
        // Where DeepSeek and SGLang put them.
        let (mut hit, mut thought) = (None, None);
        let names = [
            "prompt_tokens",
            "completion_tokens",
            "prompt_tokens_details",
            "completion_tokens_details",
            "prompt_cache_hit_tokens",
            "reasoning_tokens",
        ];
        scan.object(&names, |scan, name| {
            match name {
                "prompt_tokens" => counts.prompt = count(scan)?,
                "completion_tokens" => counts.generated = count(scan)?,
                "prompt_tokens_details" => counts.cached = detail(scan, "cached_tokens")?,
                "completion_tokens_details" => counts.reasoning = detail(scan, "reasoning_tokens")?,
                "prompt_cache_hit_tokens" => hit = count(scan)?,
                _ => thought = count(scan)?,
            }
            Ok(())
        })?;
        counts.reasoning = counts.reasoning.or(thought);
        counts.cached = counts.cached.or(hit).zip(counts.prompt).map(|(cached, prompt)| cached.min(prompt));
        Ok(counts)
    }
}

/// Read a figure of an object; what is no object has none.
pub fn detail(scan: &mut Scanner<'_>, name: &'static str) -> ReplyResult<Option<u32>> {
    if scan.peek() != b'{' {
        return scan.skip().map(|()| None);
    }
    let mut found = None;
    scan.object(&[name], |scan, _| {
        found = count(scan)?;
        Ok(())
    })?;
    Ok(found)
}

/// Read a figure; what cannot be one is None.
pub fn count(scan: &mut Scanner<'_>) -> ReplyResult<Option<u32>> {
    match scan.peek() {
        b'-' | b'0'..=b'9' => scan.number().map(|number| number.below(ABSURD)),
        _ => scan.skip().map(|()| None),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::UsageCounts;
    use crate::reply::scanner::Scanner;

    fn read(json: &str) -> [Option<u32>; 4] {
        let counts = UsageCounts::read(&mut Scanner::new(json.as_bytes()).unwrap()).unwrap();
        [counts.prompt, counts.cached, counts.generated, counts.reasoning]
    }

    #[test]
    fn each_figure_stands_alone() {
        let json = r#"{"prompt_tokens":5,"completion_tokens":-1,"prompt_tokens_details":{"cached_tokens":9},
            "completion_tokens_details":{"reasoning_tokens":3},"total_tokens":"many"}"#;
        assert_eq!(read(json), [Some(5), Some(5), None, Some(3)]);
        assert_eq!(read(r#"{"prompt_tokens":5,"prompt_cache_hit_tokens":2}"#), [Some(5), Some(2), None, None]);
        assert_eq!(
            read(r#"{"prompt_tokens":12.0,"reasoning_tokens":2,"completion_tokens_details":null}"#),
            [Some(12), None, None, Some(2)]
        );
        assert_eq!(
            read(r#"{"reasoning_tokens":2,"completion_tokens_details":{"reasoning_tokens":3}}"#),
            [None, None, None, Some(3)]
        );
        assert_eq!(read(r#"{"prompt_tokens":2147483648,"prompt_cache_hit_tokens":2}"#), [None; 4]);
    }

    #[test]
    fn what_cannot_be_true_is_not_reported() {
        for json in
            ["null", "[]", "7", "{}", r#"{"prompt_tokens":5.5,"completion_tokens":1e10,"prompt_tokens_details":[]}"#]
        {
            assert_eq!(read(json), [None; 4], "{json}");
        }
    }
}
