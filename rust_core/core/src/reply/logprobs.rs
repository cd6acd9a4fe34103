//! The `logprobs` of a choice: one entry a token, straight into columns.

use super::Options;
use super::entropy::{Arpo, sort};
use super::error::{Result, fail};
use super::regions::uncertainty;
use super::scan::Scanner;
use crate::tokens::Uncertainty;

/// What stands for a probability of zero, as vLLM writes it.
const FLOOR: f64 = -9999.0;

/// How far above 0 rounding may put the logarithm of a probability of one.
const ROUNDING: f64 = 1e-5;

/// What a server says of the tokens of a choice: two columns of one length, and figures of the whole.
#[derive(Clone, Debug)]
pub struct Logprobs {
    /// Log-probabilities of the sampled tokens in nats, -9999 to 0; NaN where the server does not know one.
    pub logprobs: Vec<f32>,
    /// Their entropies in nats, as [`Options::entropy`] defines them; NaN where not known.
    pub entropies: Vec<f32>,
    /// Mean entropy and perplexity by region.
    pub uncertainty: Uncertainty,
    /// The uncertainty of ARPO.
    pub arpo: Arpo,
}

/// Read the value of `logprobs`; None where it holds no list of tokens.
pub fn logprobs(scan: &mut Scanner<'_>, options: &Options) -> Result<Option<Logprobs>> {
    let mut found = None;
    scan.object(&["content"], |scan, _| {
        found = scan.optional(|scan| entries(scan, options))?;
        Ok(())
    })?;
    Ok(found)
}

fn entries(scan: &mut Scanner<'_>, options: &Options) -> Result<Logprobs> {
    let mut reader = Reader::default();
    scan.list(|scan| reader.entry(scan, options))?;
    let Reader { logprobs, entropies, text, ends, arpo, .. } = reader;
    let uncertainty = uncertainty(&text, &ends, &entropies, &options.think, &options.tool);
    Ok(Logprobs { logprobs, entropies, uncertainty, arpo })
}

#[derive(Default)]
struct Reader {
    logprobs: Vec<f32>,
    entropies: Vec<f32>,
    /// The bytes of all tokens, and where each ends.
    text: Vec<u8>,
    ends: Vec<usize>,
    /// Log-probabilities of the likeliest tokens at one place.
    top: Vec<f64>,
    arpo: Arpo,
}

impl Reader {
    #[expect(clippy::cast_possible_truncation, reason = "the columns are f32")]
    fn entry(&mut self, scan: &mut Scanner<'_>, options: &Options) -> Result<()> {
        let start = scan.offset();
        let before = self.text.len();
        let mut token = None;
        let mut own = None;
        self.top.clear();
        scan.object(&["token", "logprob", "bytes", "top_logprobs"], |scan, name| {
            match name {
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
        if self.text.len() == before {
            self.text.extend_from_slice(token.as_deref().unwrap_or_default().as_bytes());
        }
        self.ends.push(self.text.len());
        self.keep_likeliest(options.top);
        self.entropies.push(options.entropy.of(own, &self.top) as f32);
        self.logprobs.push(own as f32);
        Ok(())
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
}

/// One of the likeliest tokens. Where the server does not know its log-probability it does not count.
fn alternative(scan: &mut Scanner<'_>, top: &mut Vec<f64>) -> Result<()> {
    let start = scan.offset();
    let mut own = None;
    scan.object(&["logprob"], |scan, _| {
        own = Some(logprob(scan)?);
        Ok(())
    })?;
    match own {
        Some(own) if own.is_nan() => (),
        Some(own) => top.push(own),
        None => return fail(start, "the member \"logprob\" is missing"),
    }
    Ok(())
}

/// A log-probability: at most 0. `null` and `NaN` are not known, all below [`FLOOR`] and `-Infinity` are [`FLOOR`].
fn logprob(scan: &mut Scanner<'_>) -> Result<f64> {
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

fn byte(scan: &mut Scanner<'_>) -> Result<u8> {
    let start = scan.offset();
    match scan.number()?.below(256).and_then(|value| u8::try_from(value).ok()) {
        Some(byte) => Ok(byte),
        None => fail(start, "a byte must be an integer from 0 to 255"),
    }
}
