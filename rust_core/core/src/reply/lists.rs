//! Log-probabilities in lists side by side, as completions had them before chats: `tokens`, `token_logprobs` and
//! `top_logprobs`. Together lists those of chats so.

use super::Options;
use super::error::{Result, fail};
use super::logprobs::{Reader, logprob};
use super::scanner::Scanner;

/// The lists, in any order; those that are missing or null are None.
#[derive(Default)]
pub struct Lists {
    tokens: Option<Vec<String>>,
    logprobs: Option<Vec<f64>>,
    tops: Option<Vec<Vec<f64>>>,
}

impl Lists {
    /// Read the list of this name.
    pub fn read(&mut self, scan: &mut Scanner<'_>, name: &str) -> Result<()> {
        match name {
            "tokens" => {
                self.tokens = scan.optional(|scan| {
                    items(scan, |scan| Ok(scan.optional(Scanner::string)?.unwrap_or_default().into_owned()))
                })?;
            }
            "token_logprobs" => self.logprobs = scan.optional(|scan| items(scan, logprob))?,
            _ => self.tops = scan.optional(|scan| items(scan, likeliest))?,
        }
        Ok(())
    }

    /// The columns; None without log-probabilities of the tokens. `start` is where the lists stand.
    pub fn into_reader(self, start: usize, options: &Options) -> Result<Option<Reader>> {
        let Some(logprobs) = self.logprobs else {
            return Ok(None);
        };
        let len = logprobs.len();
        let tokens = self.tokens.as_ref().map(Vec::len);
        let tops = self.tops.as_ref().map(Vec::len);
        for (what, count) in [("tokens", tokens), ("lists of likeliest tokens", tops)] {
            if let Some(count) = count.filter(|count| *count != len) {
                return fail(start, format!("there are {count} {what} and {len} log-probabilities"));
            }
        }
        let mut tokens = self.tokens.unwrap_or_default().into_iter();
        let mut tops = self.tops.unwrap_or_default().into_iter();
        let mut reader = Reader::default();
        for own in logprobs {
            reader.top = tops.next().unwrap_or_default();
            reader.push(&tokens.next().unwrap_or_default(), own, options);
        }
        Ok(Some(reader))
    }
}

fn items<T>(scan: &mut Scanner<'_>, mut read: impl FnMut(&mut Scanner<'_>) -> Result<T>) -> Result<Vec<T>> {
    let mut found = Vec::new();
    scan.list(|scan| {
        found.push(read(scan)?);
        Ok(())
    })?;
    Ok(found)
}

/// The log-probabilities of the likeliest tokens at one place, by their text; null where there are none.
fn likeliest(scan: &mut Scanner<'_>) -> Result<Vec<f64>> {
    let mut top = Vec::new();
    scan.optional(|scan| {
        scan.values(|scan| {
            top.extend(Some(logprob(scan)?).filter(|own| !own.is_nan()));
            Ok(())
        })
    })?;
    Ok(top)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use crate::reply::logprobs::{Listed, logprobs};
    use crate::reply::scanner::Scanner;
    use crate::reply::{Options, ReplyError};

    fn read(json: &str) -> Result<Option<Listed>, Box<ReplyError>> {
        logprobs(&mut Scanner::new(json.as_bytes()).unwrap(), &Options::default())
    }

    #[test]
    fn lists_are_columns() {
        let json = r#"{"token_ids":[7,8,9],"text_offset":[0,7,8],"token_logprobs":[null,-0.5,-1e300],
            "tokens":["<think>","a","b"],"top_logprobs":[null,{"a":-1,"b":-1},{"c":null,"":0}]}"#;
        let Listed { logprobs, ids } = read(json).unwrap().unwrap();
        assert_eq!(ids, Some(vec![7, 8, 9]));
        assert!(logprobs.logprobs[0].is_nan() && logprobs.entropies[0].is_nan());
        assert_eq!(logprobs.logprobs[1..], [-0.5, -9999.0]);
        let expected = [2f32.ln(), 0.0];
        assert_eq!(logprobs.entropies[1..], expected);
        assert!((logprobs.uncertainty.entropy[0] - expected[0] / 2.0).abs() < 1e-6);
    }

    #[test]
    fn lists_may_be_missing_but_not_differ_in_length() {
        for none in ["{}", r#"{"tokens":["a"]}"#, r#"{"token_logprobs":null,"token_ids":[1]}"#] {
            assert!(read(none).unwrap().is_none(), "{none}");
        }
        let alone = read(r#"{"token_logprobs":[-1,-2]}"#).unwrap().unwrap();
        assert_eq!((alone.logprobs.logprobs, alone.ids), (vec![-1.0, -2.0], None));
        let refused = |json: &str| read(json).err().unwrap().to_string();
        let error = refused(r#"  {"token_logprobs":[-1,-2],"tokens":["a"]}"#);
        assert_eq!(error, "there are 1 tokens and 2 log-probabilities (byte 2)");
        assert!(refused(r#"{"token_logprobs":[-1],"tokens":["a","b"]}"#).contains("2 tokens and 1"));
        assert!(refused(r#"{"token_logprobs":[-1],"top_logprobs":[]}"#).contains("0 lists of likeliest tokens and 1"));
        assert!(refused(r#"{"token_logprobs":[1]}"#).contains("token_logprobs[0]: a log-probability is 1"));
        assert!(refused(r#"{"token_logprobs":[],"top_logprobs":[{"a" -1}]}"#).contains("a colon is needed"));
    }

    #[test]
    fn entries_come_before_lists() {
        let both = read(r#"{"token_logprobs":[-1,-2],"content":[{"token":"a","logprob":-3}]}"#).unwrap().unwrap();
        assert_eq!(both.logprobs.logprobs, [-3.0]);
    }
}
