//! Operations: everything that can change a tree, as values that can be checked, written down and replayed.

use std::borrow::Cow;

use crate::id::{ContextId, FragmentId, NameId, NodeId, RolloutId, RunId, TokenCount};
use crate::reply::Uncertainty;
use crate::tree::fragments::EncodedMessage;
use crate::tree::nodes::Kind;
use crate::tree::runs::TokenRun;
use crate::tree::termination::Termination;
use crate::wire::codec::{self, ByteReader, Reason};

/// What is known about a model call besides its message.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Who spoke.
    pub agent: NameId,
    /// Model, sampling parameters and weight version.
    pub namespace: NameId,
    /// Why the model stopped.
    pub finish: NameId,
    /// Prompt tokens, cached ones included.
    pub prompt: TokenCount,
    /// Of these, tokens the server had cached.
    pub cached: TokenCount,
    /// Completion tokens.
    pub generated: TokenCount,
    /// Attempts beyond the first.
    pub retries: u32,
    /// Wall time in microseconds.
    pub micros: u64,
    /// What was said and is not sent again.
    pub aside: Option<&'a str>,
    /// What was sent, where it is not the path.
    pub context: Option<ContextId>,
    /// How sure the model was.
    pub uncertainty: Uncertainty,
}

/// Nothing is known.
impl Default for Call<'_> {
    fn default() -> Self {
        Self {
            agent: NameId::EMPTY,
            namespace: NameId::EMPTY,
            finish: NameId::EMPTY,
            prompt: TokenCount::UNREPORTED,
            cached: TokenCount::UNREPORTED,
            generated: TokenCount::UNREPORTED,
            retries: 0,
            micros: 0,
            aside: None,
            context: None,
            uncertainty: Uncertainty::UNKNOWN,
        }
    }
}

/// One change of a tree.
#[derive(Clone, Debug)]
pub(crate) enum Op<'a> {
    Name(&'a str),
    Fragment(EncodedMessage<'a>),
    Run(TokenRun<'a>),
    Context(Cow<'a, [u32]>),
    Append { parent: NodeId, kind: Kind, fragment: FragmentId, run: Option<RunId>, agent: NameId },
    Open { point: NodeId, path: Cow<'a, [u32]>, subgroup: u32 },
    Turn { rollout: RolloutId, fragment: FragmentId, run: Option<RunId>, call: Call<'a> },
    Observe { rollout: RolloutId, fragment: FragmentId, run: Option<RunId>, agent: NameId, micros: u64, failed: bool },
    Tell { rollout: RolloutId, fragment: FragmentId, run: Option<RunId>, agent: NameId },
    Tokenise { node: NodeId, run: RunId },
    Close { rollout: RolloutId, termination: Termination, answer: Option<&'a str>, error: Option<&'a str> },
    Score { rollout: RolloutId, reward: f64 },
    Note { rollout: RolloutId, text: &'a str },
    Mark(&'a str),
    Report { node: NodeId, text: &'a str },
}

const NAME: u8 = 1;
const FRAGMENT: u8 = 2;
const CONTEXT: u8 = 3;
const APPEND: u8 = 4;
const OPEN: u8 = 5;
const TURN: u8 = 6;
const OBSERVE: u8 = 7;
const CLOSE: u8 = 8;
const SCORE: u8 = 9;
const RUN: u8 = 10;
const TOKENISE: u8 = 11;
const NOTE: u8 = 12;
const MARK: u8 = 13;
const TELL: u8 = 14;
const REPORT: u8 = 15;

impl<'a> Op<'a> {
    /// Write the operation down, all but the bytes of a message and the columns of a run, which follow what is written here.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Name(text) => {
                out.push(NAME);
                codec::put_bytes(out, text.as_bytes());
            }
            Self::Fragment(message) => {
                out.push(FRAGMENT);
                codec::put(out, message.bytes.len() as u64);
            }
            Self::Run(run) => {
                out.push(RUN);
                codec::put(out, run.tokens().len() as u64);
            }
            Self::Context(fragments) => {
                out.push(CONTEXT);
                codec::put_words(out, fragments);
            }
            Self::Append { parent, kind, fragment, run, agent } => {
                out.push(APPEND);
                for word in [parent.get(), *kind as u32, fragment.get(), agent.get()] {
                    codec::put(out, word.into());
                }
                codec::put_option(out, run.map(RunId::get));
            }
            Self::Open { point, path, subgroup } => {
                out.push(OPEN);
                codec::put(out, point.get().into());
                codec::put_words(out, path);
                codec::put(out, (*subgroup).into());
            }
            Self::Turn { rollout, fragment, run, call } => {
                out.push(TURN);
                codec::put(out, rollout.get().into());
                codec::put(out, fragment.get().into());
                codec::put_option(out, run.map(RunId::get));
                encode_call(call, out);
            }
            Self::Observe { rollout, fragment, run, agent, micros, failed } => {
                out.push(OBSERVE);
                for word in [rollout.get(), fragment.get(), agent.get()] {
                    codec::put(out, word.into());
                }
                codec::put_option(out, run.map(RunId::get));
                codec::put(out, *micros);
                out.push(u8::from(*failed));
            }
            Self::Tell { rollout, fragment, run, agent } => {
                out.push(TELL);
                for word in [rollout.get(), fragment.get(), agent.get()] {
                    codec::put(out, word.into());
                }
                codec::put_option(out, run.map(RunId::get));
            }
            Self::Tokenise { node, run } => {
                out.push(TOKENISE);
                codec::put(out, node.get().into());
                codec::put(out, run.get().into());
            }
            Self::Close { rollout, termination, answer, error } => {
                out.push(CLOSE);
                codec::put(out, rollout.get().into());
                out.push(termination.code());
                codec::put_text(out, *answer);
                codec::put_text(out, *error);
            }
            Self::Score { rollout, reward } => {
                out.push(SCORE);
                codec::put(out, rollout.get().into());
                out.extend_from_slice(&reward.to_le_bytes());
            }
            Self::Note { rollout, text } => {
                out.push(NOTE);
                codec::put(out, rollout.get().into());
                codec::put_bytes(out, text.as_bytes());
            }
            Self::Mark(text) => {
                out.push(MARK);
                codec::put_bytes(out, text.as_bytes());
            }
            Self::Report { node, text } => {
                out.push(REPORT);
                codec::put(out, node.get().into());
                codec::put_bytes(out, text.as_bytes());
            }
        }
    }

    /// Read one operation. Whether it makes sense is for the rules to say.
    pub(crate) fn decode(reader: &mut ByteReader<'a>) -> Result<Self, Reason> {
        Ok(match reader.byte()? {
            NAME => Self::Name(std::str::from_utf8(reader.bytes()?).map_err(|_| "a name is not UTF-8")?),
            FRAGMENT => Self::Fragment(EncodedMessage::new(reader.bytes()?)),
            RUN => Self::Run(TokenRun::owned(reader.tokens()?)),
            CONTEXT => Self::Context(reader.words()?.into()),
            APPEND => Self::Append {
                parent: reader.word()?.into(),
                kind: Kind::loose(reader.word()?).map_err(|_| "its kind cannot be appended")?,
                fragment: reader.word()?.into(),
                agent: reader.word()?.into(),
                run: reader.option()?.map(RunId::new),
            },
            OPEN => Self::Open { point: reader.word()?.into(), path: reader.words()?.into(), subgroup: reader.word()? },
            TURN => Self::Turn {
                rollout: reader.word()?.into(),
                fragment: reader.word()?.into(),
                run: reader.option()?.map(RunId::new),
                call: decode_call(reader)?,
            },
            OBSERVE => Self::Observe {
                rollout: reader.word()?.into(),
                fragment: reader.word()?.into(),
                agent: reader.word()?.into(),
                run: reader.option()?.map(RunId::new),
                micros: reader.number()?,
                failed: reader.flag()?,
            },
            TELL => Self::Tell {
                rollout: reader.word()?.into(),
                fragment: reader.word()?.into(),
                agent: reader.word()?.into(),
                run: reader.option()?.map(RunId::new),
            },
            TOKENISE => Self::Tokenise { node: reader.word()?.into(), run: reader.word()?.into() },
            CLOSE => Self::Close {
                rollout: reader.word()?.into(),
                termination: Termination::from_code(reader.byte()?).ok_or("its termination is unknown")?,
                answer: reader.text()?,
                error: reader.text()?,
            },
            SCORE => Self::Score { rollout: reader.word()?.into(), reward: reader.float()? },
            NOTE => Self::Note {
                rollout: reader.word()?.into(),
                text: std::str::from_utf8(reader.bytes()?).map_err(|_| "a note is not UTF-8")?,
            },
            MARK => Self::Mark(std::str::from_utf8(reader.bytes()?).map_err(|_| "a mark is not UTF-8")?),
            REPORT => Self::Report {
                node: reader.word()?.into(),
                text: std::str::from_utf8(reader.bytes()?).map_err(|_| "a report is not UTF-8")?,
            },
            _ => return Err("its kind is unknown"),
        })
    }
}

fn encode_call(call: &Call<'_>, out: &mut Vec<u8>) {
    for name in [call.agent, call.namespace, call.finish] {
        codec::put(out, name.get().into());
    }
    for figure in [call.prompt, call.cached, call.generated] {
        codec::put_option(out, figure.get());
    }
    codec::put(out, call.retries.into());
    codec::put(out, call.micros);
    codec::put_text(out, call.aside);
    codec::put_option(out, call.context.map(ContextId::get));
    out.push(u8::from(!call.uncertainty.is_unknown()));
    if !call.uncertainty.is_unknown() {
        let Uncertainty { entropy, perplexity, opening } = call.uncertainty;
        entropy
            .iter()
            .chain(&perplexity)
            .chain([&opening])
            .for_each(|figure| out.extend_from_slice(&figure.to_le_bytes()));
    }
}

fn decode_call<'a>(reader: &mut ByteReader<'a>) -> Result<Call<'a>, Reason> {
    Ok(Call {
        agent: reader.word()?.into(),
        namespace: reader.word()?.into(),
        finish: reader.word()?.into(),
        prompt: tokens(reader)?,
        cached: tokens(reader)?,
        generated: tokens(reader)?,
        retries: reader.word()?,
        micros: reader.number()?,
        aside: reader.text()?,
        context: reader.option()?.map(ContextId::new),
        uncertainty: if reader.flag()? { uncertainty(reader)? } else { Uncertainty::UNKNOWN },
    })
}

fn uncertainty(reader: &mut ByteReader<'_>) -> Result<Uncertainty, Reason> {
    let mut regions = || -> Result<_, Reason> { Ok([reader.single()?, reader.single()?, reader.single()?]) };
    Ok(Uncertainty { entropy: regions()?, perplexity: regions()?, opening: reader.single()? })
}

fn tokens(reader: &mut ByteReader<'_>) -> Result<TokenCount, Reason> {
    let value = reader.option()?.map_or(-1, i64::from);
    TokenCount::new(value, "tokens").map_err(|_| "a token figure is out of range")
}
