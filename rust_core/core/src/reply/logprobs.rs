//! The `logprobs` of a choice, straight into columns: one entry a token, or lists side by side (`tokens`,
//! `token_logprobs` and `top_logprobs`), as completions had them before chats. Together lists those of chats so.

use crate::reply::choice::token_ids;
use crate::reply::entropy::{Arpo, sort};
use crate::reply::number::{Number, fraction};
use crate::reply::regions::uncertainty;
use crate::reply::scanner::{Scanner, integers};
use crate::reply::string::closed;
use crate::reply::{ReplyOptions, ReplyResult, Uncertainty, fail};

/// What stands for a probability of zero, as vLLM writes it.
const FLOOR: f64 = -9999.0;

/// How far above 0 rounding may put the logarithm of a probability of one.
const ROUNDING: f64 = 1e-5;

/// What a server says of the tokens of a choice: two columns of one length, and figures of the whole.
#[derive(Clone, Debug)]
pub struct Logprobs {
    /// Log-probabilities of the sampled tokens in nats, -9999 to 0; NaN where the server does not know one.
    pub logprobs: Vec<f32>,
    /// Their entropies in nats, as [`ReplyOptions::entropy`] defines them; NaN where not known.
    pub entropies: Vec<f32>,
    /// Mean entropy and perplexity by region, and ARPO's sum.
    pub uncertainty: Uncertainty,
    /// The uncertainty of ARPO.
    pub arpo: Arpo,
}

/// Log-probabilities, and the ids of their tokens where those stand beside them.
pub struct Listed {
    /// The columns.
    pub logprobs: Logprobs,
    /// One id a token, or as many as a list of their own has.
    pub ids: Option<Vec<u32>>,
    /// Whether each entry has the id of its token; entries may then be fewer than tokens.
    pub by_entry: bool,
}

/// Read the value of `logprobs`; None where it lists no tokens.
pub fn logprobs(scan: &mut Scanner<'_>, options: &ReplyOptions) -> ReplyResult<Option<Listed>> {
    let start = scan.offset();
    let mut found = None;
    let mut lists = Lists::default();
    let mut ids = None;
    scan.object(&["content", "tokens", "token_logprobs", "top_logprobs", "token_ids"], |scan, name| {
        match name {
            "content" => found = scan.optional(|scan| entries(scan, options))?,
            "token_ids" => ids = token_ids(scan, options)?,
            list => lists.read(scan, list)?,
        }
        Ok(())
    })?;
    let found = match found {
        Some(found) => Some(found),
        None => lists.into_reader(start, options)?,
    };
    Ok(found.map(|reader| {
        let mut listed = reader.finish(options);
        listed.by_entry &= ids.is_none();
        listed.ids = ids.or(listed.ids);
        listed
    }))
}

fn entries(scan: &mut Scanner<'_>, options: &ReplyOptions) -> ReplyResult<LogprobReader> {
    let mut reader = LogprobReader::default();
    scan.list(|scan| reader.entry(scan, options))?;
    Ok(reader)
}

/// Columns that grow by one token at a time.
#[derive(Default)]
pub struct LogprobReader {
    logprobs: Vec<f32>,
    entropies: Vec<f32>,
    /// Ids of those tokens that are named by them, or have one beside their name.
    ids: Vec<u32>,
    /// Whether some have it beside their name.
    by_entry: bool,
    /// The bytes of all tokens, and where each ends.
    text: Vec<u8>,
    ends: Vec<usize>,
    /// Log-probabilities of the likeliest tokens at one place.
    pub top: Vec<f64>,
    arpo: Arpo,
}

impl LogprobReader {
    fn entry(&mut self, scan: &mut Scanner<'_>, options: &ReplyOptions) -> ReplyResult<()> {
        let start = scan.offset();
        if let Some((token, own, end)) = self.usual_entry(scan.text, start) {
            scan.at = end;
            self.push(&Scanner::part(token).string()?, own, options);
            return Ok(());
        }
        self.other_entry(scan, options)
    }

    fn other_entry(&mut self, scan: &mut Scanner<'_>, options: &ReplyOptions) -> ReplyResult<()> {
        let start = scan.offset();
        let mut token = None;
        let mut own = None;
        let mut id = None;
        self.top.clear();
        scan.object(&["id", "token", "logprob", "bytes", "top_logprobs"], |scan, name| {
            match name {
                "id" => id = identity(scan)?,
                "token" => token = scan.optional(Scanner::string)?,
                "logprob" => own = Some(logprob(scan)?),
                "bytes" => _ = scan.optional(|scan| scan.list(|scan| byte(scan).map(|byte| self.text.push(byte))))?,
                _ => _ = scan.optional(|scan| scan.list(|scan| alternative(scan, &mut self.top)))?,
            }
            Ok(())
        })?;
        let Some(own) = own else {
            return fail(start, "the member \"logprob\" is missing");
        };
        let named = self.ids.len();
        self.push(token.as_deref().unwrap_or_default(), own, options);
        if self.ids.len() == named && id.is_some() {
            self.ids.extend(id);
            self.by_entry = true;
        }
        Ok(())
    }

    /// The token, the log-probability and the end of an entry whose alternatives are [`usual`], with its bytes put into the
    /// text and its alternatives into `top`. Nothing else is None, with the text as it was.
    fn usual_entry<'a>(&mut self, text: &'a str, start: usize) -> Option<(&'a str, f64, usize)> {
        let bytes = text.as_bytes();
        let spelled = self.text.len();
        let mut read = || {
            let (token, own, list) = usual(text, start)?;
            let at = octets(bytes, list, &mut self.text)?;
            let mut at = member(bytes, member(bytes, at, b",")?, b"\"top_logprobs\":")?;
            if bytes.get(at) != Some(&b'[') {
                return None;
            }
            self.top.clear();
            loop {
                at += 1; // the bracket, or the comma
                at += usize::from(bytes.get(at) == Some(&b' '));
                let (_, own, list) = usual(text, at)?;
                at = integers(bytes, list)?;
                self.top.push(own);
                match bytes.get(at..at + 2)? {
                    b"}," => at += 1,
                    b"}]" => break,
                    _ => return None,
                }
            }
            (bytes.get(at + 2) == Some(&b'}')).then_some((token, own, at + 3))
        };
        let found = read();
        if found.is_none() {
            self.text.truncate(spelled);
        }
        found
    }

    /// Append a token, whose bytes are already part of the text if they are known, and those of the likeliest in `top`.
    #[expect(clippy::cast_possible_truncation, reason = "the columns are f32")]
    pub fn push(&mut self, token: &str, own: f64, options: &ReplyOptions) {
        let start = self.ends.last().copied().unwrap_or_default();
        // `--return-tokens-as-token-ids` of vLLM. Such a name spells nothing, even where it is given as bytes.
        let id = token.strip_prefix("token_id:").and_then(|id| id.parse::<u32>().ok());
        self.ids.extend(id);
        if id.is_none() && self.text.len() == start {
            self.text.extend_from_slice(token.as_bytes());
        } else if id.is_some() && self.text.get(start..) == Some(token.as_bytes()) {
            self.text.truncate(start);
        }
        self.ends.push(self.text.len());
        self.keep_likeliest(options.top);
        self.entropies.push(options.entropy.of(own, &self.top) as f32);
        self.logprobs.push(own as f32);
    }

    /// Drop all but the `width` likeliest tokens at this place.
    fn keep_likeliest(&mut self, width: usize) {
        if self.arpo.is_open() || self.top.len() > width {
            sort(&mut self.top);
        }
        if self.arpo.is_open() {
            self.arpo.push(&self.top);
        }
        self.top.truncate(width);
    }

    /// The columns, and figures of the whole.
    pub fn finish(self, options: &ReplyOptions) -> Listed {
        let regions = uncertainty(&self.text, &self.ends, &self.entropies, &options.think, &options.tool);
        let Self { logprobs, entropies, ids, by_entry, arpo, .. } = self;
        #[expect(clippy::cast_possible_truncation, reason = "the columns are f32")]
        let uncertainty = Uncertainty { opening: arpo.sum() as f32, ..regions };
        let ids = Some(ids).filter(|ids| !ids.is_empty() && ids.len() == logprobs.len());
        Listed { logprobs: Logprobs { logprobs, entropies, uncertainty, arpo }, ids, by_entry }
    }
}

/// One of the likeliest tokens. Where the server does not know its log-probability it does not count.
fn alternative(scan: &mut Scanner<'_>, top: &mut Vec<f64>) -> ReplyResult<()> {
    let start = scan.offset();
    if let Some((_, own, list)) = usual(scan.text, start)
        && let Some(end) = integers(scan.text.as_bytes(), list)
        && scan.text.as_bytes().get(end) == Some(&b'}')
    {
        top.push(own);
        scan.at = end + 1;
        return Ok(());
    }
    let mut own = None;
    scan.object(&["logprob"], |scan, _| {
        own = Some(logprob(scan)?);
        Ok(())
    })?;
    match own {
        Some(own) => top.extend(Some(own).filter(|own| !own.is_nan())),
        None => return fail(start, "the member \"logprob\" is missing"),
    }
    Ok(())
}

/// The token as it stands, the log-probability and the place of the list of `{"token":"a","logprob":-1.5,"bytes":[`, as most servers write
/// it: all of a long reply, for which looking at names one by one costs a quarter of the time. Whatever else it may be is None.
#[inline]
fn usual(text: &str, at: usize) -> Option<(&str, f64, usize)> {
    let bytes = text.as_bytes();
    let at = member(bytes, at, b"{\"token\":")?;
    if bytes.get(at) != Some(&b'"') {
        return None;
    }
    let end = closed(bytes, at + 1)?;
    let token = text.get(at..=end)?;
    let at = member(bytes, end, b"\",")?;
    let at = member(bytes, at, b"\"logprob\":")?;
    if !matches!(bytes.get(at), Some(b'-' | b'0'..=b'9')) {
        return None;
    }
    let (value, end) = fraction(bytes, at).or_else(|| {
        let number = Number::at(text, at)?;
        Some((number.value(), at + number.text.len()))
    })?;
    if value > ROUNDING {
        return None;
    }
    let at = member(bytes, end, b",")?;
    let at = member(bytes, at, b"\"bytes\":")?;
    (bytes.get(at) == Some(&b'[')).then(|| (token, value.clamp(FLOOR, 0.0), at))
}

/// Where the list that starts at `at` ends, if it is one of plain integers from 1 to 255, which are put behind `out`.
fn octets(bytes: &[u8], mut at: usize, out: &mut Vec<u8>) -> Option<usize> {
    loop {
        at += 1;
        at += usize::from(bytes.get(at) == Some(&b' '));
        let first = at;
        let mut value = 0u8;
        while let Some(digit) = bytes.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
            value = value.checked_mul(10)?.checked_add(digit)?;
            at += 1;
        }
        if at == first || bytes.get(first) == Some(&b'0') {
            return None;
        }
        out.push(value);
        match bytes.get(at) {
            Some(b',') => (),
            Some(b']') => return Some(at + 1),
            _ => return None,
        }
    }
}

/// Where the text behind these signs starts, if they stand here; servers put one space behind them, or none.
#[inline]
fn member<const N: usize>(bytes: &[u8], at: usize, signs: &[u8; N]) -> Option<usize> {
    if bytes.get(at..)?.first_chunk::<N>() != Some(signs) {
        return None;
    }
    let end = at + N;
    Some(end + usize::from(bytes.get(end) == Some(&b' ')))
}

/// A log-probability: at most 0. `null` and `NaN` are not known, all below [`FLOOR`] and `-Infinity` are [`FLOOR`].
pub fn logprob(scan: &mut Scanner<'_>) -> ReplyResult<f64> {
    match scan.peek() {
        b'n' => return scan.word("null").map(|()| f64::NAN),
        b'N' => return scan.word("NaN").map(|()| f64::NAN),
        b'-' if scan.sees("-Infinity") => return scan.word("-Infinity").map(|()| FLOOR),
        _ => (),
    }
    let start = scan.offset();
    let number = scan.number()?;
    let value = number.value();
    if value > ROUNDING {
        let shown = number.text.get(..20).unwrap_or(number.text);
        return fail(start, format!("a log-probability is {shown}; it must be at most 0"));
    }
    Ok(value.clamp(FLOOR, 0.0))
}

/// The `id` of an entry, as llama.cpp has it; what is no token id says nothing.
fn identity(scan: &mut Scanner<'_>) -> ReplyResult<Option<u32>> {
    match scan.peek() {
        b'-' | b'0'..=b'9' => scan.number().map(|number| number.below(1 << 32)),
        _ => scan.skip().map(|()| None),
    }
}

fn byte(scan: &mut Scanner<'_>) -> ReplyResult<u8> {
    let start = scan.offset();
    match scan.number()?.below(256).and_then(|value| u8::try_from(value).ok()) {
        Some(byte) => Ok(byte),
        None => fail(start, "a byte must be an integer from 0 to 255"),
    }
}

/// The lists, in any order; those that are missing or null are None.
#[derive(Default)]
pub struct Lists {
    tokens: Option<Vec<String>>,
    logprobs: Option<Vec<f64>>,
    tops: Option<Vec<Vec<f64>>>,
}

impl Lists {
    /// Read the list of this name.
    pub fn read(&mut self, scan: &mut Scanner<'_>, name: &str) -> ReplyResult<()> {
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
    pub fn into_reader(self, start: usize, options: &ReplyOptions) -> ReplyResult<Option<LogprobReader>> {
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
        let mut reader = LogprobReader::default();
        for own in logprobs {
            reader.top = tops.next().unwrap_or_default();
            reader.push(&tokens.next().unwrap_or_default(), own, options);
        }
        Ok(Some(reader))
    }
}

fn items<T>(scan: &mut Scanner<'_>, mut read: impl FnMut(&mut Scanner<'_>) -> ReplyResult<T>) -> ReplyResult<Vec<T>> {
    let mut found = Vec::new();
    scan.list(|scan| {
        found.push(read(scan)?);
        Ok(())
    })?;
    Ok(found)
}

/// The log-probabilities of the likeliest tokens at one place, by their text; null where there are none.
fn likeliest(scan: &mut Scanner<'_>) -> ReplyResult<Vec<f64>> {
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
    use proptest::prelude::*;

    use super::{Listed, LogprobReader, Scanner, alternative, logprobs, usual};
    use crate::reply::{ReplyError, ReplyOptions, ReplyResult};

    /// Ids and the bits of the columns of an entry with its text, or where it is wrong.
    fn column(json: &str, usually: bool) -> ReplyResult<[Vec<u32>; 4]> {
        let mut reader = LogprobReader { text: b"before".to_vec(), ends: vec![6], ..LogprobReader::default() };
        let mut scan = Scanner::new(json.as_bytes())?;
        let options = ReplyOptions::default();
        if usually { reader.entry(&mut scan, &options) } else { reader.other_entry(&mut scan, &options) }?;
        scan.end()?;
        let bits = |column: &[f32]| column.iter().map(|one| one.to_bits()).collect();
        let text = reader.text.iter().copied().map(u32::from).collect();
        Ok([reader.ids.clone(), bits(&reader.logprobs), bits(&reader.entropies), text])
    }

    fn said(space: bool) -> impl Strategy<Value = String> {
        let token = r#"( the|token_id:[0-9]{1,2}|\\[nu"x]|\\u00e9|\\ud83d|[a-zé{}\[\]]){0,4}"#;
        let space = if space { " " } else { "" };
        let some =
            prop::collection::vec(0u16..280, 0..4).prop_map(move |bytes| format!("{bytes:?}").replace(' ', space));
        let rare = prop::sample::select(&["[07]", "[7,07]", "null"][..]).prop_map(str::to_owned);
        let bytes = prop_oneof![9 => some, 1 => rare];
        let own = r"-(0|[1-9][0-9]?|0[1-9])([.][0-9]{1,18})?(e-[0-9])?|0[.]0|0|-9999[.]0|null";
        (token, own, bytes).prop_map(move |(token, own, bytes)| {
            format!(r#"{{"token":{space}"{token}",{space}"logprob":{space}{own},{space}"bytes":{space}{bytes}"#)
        })
    }

    proptest! {
        #[test]
        fn an_entry_in_the_usual_form_says_what_it_says_in_any_other(
            spaced: bool,
            (own, top) in any::<bool>().prop_flat_map(|space| (said(space), prop::collection::vec(said(space), 0..4))),
            damage in prop::option::of((any::<prop::sample::Index>(), prop::sample::select(b" \",:[]{}0-\\n\xff".as_slice()))),
        ) {
            let comma = if spaced { ", " } else { "," };
            let top = top.join(&format!("}}{comma}")) + if top.is_empty() { "" } else { "}" };
            let mut json = format!(r#"{own}{comma}"top_logprobs":[{top}]}}"#).into_bytes();
            if let Some((place, byte)) = damage {
                let place = place.index(json.len());
                json[place] = byte;
            }
            let Ok(json) = String::from_utf8(json) else { return Ok(()) };
            prop_assert_eq!(column(&json, true), column(&json, false), "{}", json);
        }
    }

    /// What an alternative says, or where it is wrong.
    fn read(json: &str) -> Result<Vec<f64>, usize> {
        let mut top = Vec::new();
        let mut scan = Scanner::new(json.as_bytes()).unwrap();
        let read = alternative(&mut scan, &mut top).and_then(|()| scan.end());
        read.map(|()| top).map_err(|error| error.offset)
    }

    #[test]
    fn the_usual_form_says_what_any_other_form_says() {
        let usually = [
            r#"{"token":"a","logprob":-1.5,"bytes":[97]}"#,
            r#"{"token": "a", "logprob": -1.5, "bytes": [97]}"#,
            r#"{"token":"{\"","logprob":-1.5,"bytes":[97]}"#,
            r#"{"token":"","logprob":-1.5,"bytes":null}"#,
            r#"{"bytes":[97],"logprob":-1.5,"token":"a"}"#,
            r#"{ "token":"a","logprob":-1.5,"bytes":[97],"id":3 }"#,
            r#"{"logprob":-15e-1}"#,
        ];
        for (place, json) in usually.into_iter().enumerate() {
            assert_eq!(read(json), Ok(vec![-1.5]), "{json}");
            assert_eq!(usual(json, 0).is_some(), place < 3, "{json}");
        }
        assert_eq!(read(r#"{"token":"a","logprob":-1e999,"bytes":[97]}"#), Ok(vec![-9999.0]));
        assert_eq!(read(r#"{"token":"a","logprob":0.000001,"bytes":[97]}"#), Ok(vec![0.0]));
    }

    #[test]
    fn what_is_wrong_in_the_usual_form_is_found_at_its_byte() {
        for (json, offset) in [
            (r#"{"token":"a","logprob":0.5,"bytes":[97]}"#, 23),
            (r#"{"token":"a","logprob":-01,"bytes":[97]}"#, 23),
            (r#"{"token":"a","logprob":-1.5,"bytes":[97}"#, 39),
            (r#"{"token":"a","logprob":-1.5,"bytes":[97]"#, 40),
            (r#"{"token":"a","logprob":-1.5,"bytes":[97]]"#, 40),
            (r#"{"token":"a","logprob":-1.5"#, 27),
            (r#"{"token":"a"#, 9),
            (r#"{"token":"a","logprob":-1.5,"bytes":[97],"logprob":-2}"#, 41),
        ] {
            assert_eq!(read(json), Err(offset), "{json}");
        }
    }

    fn columns(json: &str) -> Result<Option<Listed>, Box<ReplyError>> {
        logprobs(&mut Scanner::new(json.as_bytes()).unwrap(), &ReplyOptions::default())
    }

    #[test]
    fn lists_are_columns() {
        let json = r#"{"token_ids":[7,8,9],"text_offset":[0,7,8],"token_logprobs":[null,-0.5,-1e300],
            "tokens":["<think>","a","b"],"top_logprobs":[null,{"a":-1,"b":-1},{"c":null,"":0}]}"#;
        let Listed { logprobs, ids, .. } = columns(json).unwrap().unwrap();
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
            assert!(columns(none).unwrap().is_none(), "{none}");
        }
        let alone = columns(r#"{"token_logprobs":[-1,-2]}"#).unwrap().unwrap();
        assert_eq!((alone.logprobs.logprobs, alone.ids), (vec![-1.0, -2.0], None));
        let refused = |json: &str| columns(json).err().unwrap().to_string();
        let error = refused(r#"  {"token_logprobs":[-1,-2],"tokens":["a"]}"#);
        assert_eq!(error, "there are 1 tokens and 2 log-probabilities (byte 2)");
        assert!(refused(r#"{"token_logprobs":[-1],"tokens":["a","b"]}"#).contains("2 tokens and 1"));
        assert!(refused(r#"{"token_logprobs":[-1],"top_logprobs":[]}"#).contains("0 lists of likeliest tokens and 1"));
        assert!(refused(r#"{"token_logprobs":[1]}"#).contains("token_logprobs[0]: a log-probability is 1"));
        assert!(refused(r#"{"token_logprobs":[],"top_logprobs":[{"a" -1}]}"#).contains("a colon is needed"));
    }

    #[test]
    fn entries_come_before_lists() {
        let both = columns(r#"{"token_logprobs":[-1,-2],"content":[{"token":"a","logprob":-3}]}"#).unwrap().unwrap();
        assert_eq!(both.logprobs.logprobs, [-3.0]);
    }
}
