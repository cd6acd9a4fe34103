//! Calls of models and tools: the first operation of a delta. They are in no digest, and no tree keeps them.

use crate::error::{Error, Result};
use crate::wire::codec::{self, ByteReader, Reason};

/// The kind of the operation.
pub(crate) const CALLS: u8 = 16;

/// The least bytes of a call of a model or of a tool.
const LEAST: u64 = 5;

/// One request to a model, and what it brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelCall<'a> {
    /// The endpoint that answered, or was asked last.
    pub endpoint: &'a str,
    /// Completions it brought; 0 if it failed for good.
    pub draws: u32,
    /// Prompt tokens, cached ones included; missing figures are those that the server did not report.
    pub prompt: Option<u64>,
    /// Of these, cached ones.
    pub cached: Option<u64>,
    /// Completion tokens of all draws together.
    pub generated: Option<u64>,
    /// Requests that were sent; 0 for a reply from a cache.
    pub attempts: u64,
    /// Microseconds that it waited for a slot or a limit.
    pub queue: u64,
    /// Microseconds from the last attempt to the first byte of its answer.
    pub first: Option<u64>,
    /// Microseconds of the whole call.
    pub micros: u64,
    /// When it began, in microseconds of a clock that all processes of a machine share.
    pub started: u64,
    /// Who asked.
    pub agent: &'a str,
}

/// One call of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolCall<'a> {
    /// The number of the rollout that made it.
    pub rollout: u32,
    /// The tool's name.
    pub tool: &'a str,
    /// Whether it failed.
    pub failed: bool,
    /// Microseconds that it took.
    pub micros: u64,
    /// When it began, as of a model call.
    pub started: u64,
}

/// The calls that travel with a delta.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallLog<'a> {
    /// Calls of models.
    pub models: Vec<ModelCall<'a>>,
    /// Calls of tools.
    pub tools: Vec<ToolCall<'a>>,
}

impl<'a> CallLog<'a> {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.models.is_empty() && self.tools.is_empty()
    }

    /// The operation: names, each once, then the calls. Nothing for no calls.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        if self.is_empty() {
            return Ok(Vec::new());
        }
        let mut names = Vec::new();
        let mut body = Vec::with_capacity(64 * (self.models.len() + self.tools.len()));
        codec::put(&mut body, self.models.len() as u64);
        for call in &self.models {
            put_name(&mut body, &mut names, call.endpoint);
            put_name(&mut body, &mut names, call.agent);
            codec::put(&mut body, call.draws.into());
            for figure in [call.prompt, call.cached, call.generated, call.first] {
                codec::put(&mut body, figure.map_or(Ok(0), |figure| fits(figure).map(|figure| figure + 1))?);
            }
            for figure in [call.attempts, call.queue, call.micros, call.started] {
                codec::put(&mut body, fits(figure)?);
            }
        }
        codec::put(&mut body, self.tools.len() as u64);
        for call in &self.tools {
            codec::put(&mut body, call.rollout.into());
            put_name(&mut body, &mut names, call.tool);
            body.push(call.failed.into());
            codec::put(&mut body, fits(call.micros)?);
            codec::put(&mut body, fits(call.started)?);
        }
        let text = names.iter().map(|name| name.len() + 2).sum::<usize>();
        let mut out = Vec::with_capacity(4 + text + body.len());
        out.push(CALLS);
        codec::put(&mut out, names.len() as u64);
        for name in names {
            codec::put_bytes(&mut out, name.as_bytes());
        }
        out.extend_from_slice(&body);
        Ok(out)
    }

    /// Read the operation behind its kind.
    pub(crate) fn decode(reader: &mut ByteReader<'a>) -> std::result::Result<Self, Reason> {
        let mut names = Vec::new();
        for _ in 0..count(reader, 1)? {
            names.push(std::str::from_utf8(reader.bytes()?).map_err(|_| "a name is not UTF-8")?);
        }
        let name = |reader: &mut ByteReader<'a>| -> std::result::Result<&'a str, Reason> {
            names.get(reader.word()? as usize).copied().ok_or("a call has a name that is not there")
        };
        let mut found = Self::default();
        for _ in 0..count(reader, 2 * LEAST)? {
            let (endpoint, agent, draws) = (name(reader)?, name(reader)?, reader.word()?);
            let (prompt, cached, generated, first) = (known(reader)?, known(reader)?, known(reader)?, known(reader)?);
            let (attempts, queue, micros, started) =
                (figure(reader)?, figure(reader)?, figure(reader)?, figure(reader)?);
            let call = ModelCall {
                endpoint,
                draws,
                prompt,
                cached,
                generated,
                attempts,
                queue,
                first,
                micros,
                started,
                agent,
            };
            found.models.push(call);
        }
        for _ in 0..count(reader, LEAST)? {
            found.tools.push(ToolCall {
                rollout: reader.word()?,
                tool: name(reader)?,
                failed: reader.flag()?,
                micros: figure(reader)?,
                started: figure(reader)?,
            });
        }
        if found.is_empty() {
            return Err("it has no calls");
        }
        Ok(found)
    }
}

fn put_name<'a>(out: &mut Vec<u8>, names: &mut Vec<&'a str>, name: &'a str) {
    let place = names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    });
    codec::put(out, place as u64);
}

/// How many follow, each of so many bytes at least: a count beyond what is left is a lie.
fn count(reader: &mut ByteReader<'_>, least: u64) -> std::result::Result<u64, Reason> {
    let count = reader.number()?;
    if count.saturating_mul(least) > reader.left() as u64 {
        return Err("it ends too early");
    }
    Ok(count)
}

/// The most that a figure can be, so that a signed number of 64 bits holds it.
const MOST: u64 = i64::MAX as u64 - 1;

fn fits(figure: u64) -> Result<u64> {
    if figure <= MOST {
        return Ok(figure);
    }
    Err(Error::conflict(format!("a figure of a call is {figure}"), "one of 63 bits"))
}

fn figure(reader: &mut ByteReader<'_>) -> std::result::Result<u64, Reason> {
    reader.number().and_then(|figure| if figure <= MOST { Ok(figure) } else { Err("a figure of a call is too large") })
}

fn known(reader: &mut ByteReader<'_>) -> std::result::Result<Option<u64>, Reason> {
    let figure = reader.number()?.checked_sub(1);
    if figure.is_some_and(|figure| figure > MOST) { Err("a figure of a call is too large") } else { Ok(figure) }
}
