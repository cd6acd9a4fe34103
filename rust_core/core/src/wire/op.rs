//! Operations: everything that can change a tree, as values that can be checked, written down and replayed.

use std::borrow::Cow;

use crate::id::{ContextId, FragmentId, NameId, NodeId, RolloutId, Tokens};
use crate::tree::fragments::Message;
use crate::tree::nodes::Kind;
use crate::tree::termination::Termination;
use crate::wire::codec::{self, Reader, Reason};

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
    pub prompt: Tokens,
    /// Of these, tokens the server had cached.
    pub cached: Tokens,
    /// Completion tokens.
    pub generated: Tokens,
    /// Attempts beyond the first.
    pub retries: u32,
    /// Wall time in microseconds.
    pub micros: u64,
    /// What was said and is not sent again.
    pub aside: Option<&'a str>,
    /// What was sent, where it is not the path.
    pub context: Option<ContextId>,
}

/// One change of a tree.
#[derive(Clone, Debug)]
pub(crate) enum Op<'a> {
    Name(&'a str),
    Fragment(Message<'a>),
    Context(Cow<'a, [u32]>),
    Append { parent: NodeId, kind: Kind, fragment: FragmentId, agent: NameId },
    Open { point: NodeId, path: Cow<'a, [u32]>, subgroup: u32 },
    Turn { rollout: RolloutId, fragment: FragmentId, call: Call<'a> },
    Observe { rollout: RolloutId, fragment: FragmentId, agent: NameId, micros: u64, failed: bool },
    Close { rollout: RolloutId, termination: Termination, answer: Option<&'a str>, error: Option<&'a str> },
    Score { rollout: RolloutId, reward: f64 },
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

impl<'a> Op<'a> {
    /// Write the operation down.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Name(text) => {
                out.push(NAME);
                codec::put_bytes(out, text.as_bytes());
            }
            Self::Fragment(message) => {
                out.push(FRAGMENT);
                codec::put_bytes(out, message.bytes);
            }
            Self::Context(fragments) => {
                out.push(CONTEXT);
                codec::put_words(out, fragments);
            }
            Self::Append { parent, kind, fragment, agent } => {
                out.push(APPEND);
                for word in [parent.get(), *kind as u32, fragment.get(), agent.get()] {
                    codec::put(out, word.into());
                }
            }
            Self::Open { point, path, subgroup } => {
                out.push(OPEN);
                codec::put(out, point.get().into());
                codec::put_words(out, path);
                codec::put(out, (*subgroup).into());
            }
            Self::Turn { rollout, fragment, call } => {
                out.push(TURN);
                codec::put(out, rollout.get().into());
                codec::put(out, fragment.get().into());
                encode_call(call, out);
            }
            Self::Observe { rollout, fragment, agent, micros, failed } => {
                out.push(OBSERVE);
                for word in [rollout.get(), fragment.get(), agent.get()] {
                    codec::put(out, word.into());
                }
                codec::put(out, *micros);
                out.push(u8::from(*failed));
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
        }
    }

    /// Read one operation. Whether it makes sense is for the rules to say.
    pub(crate) fn decode(reader: &mut Reader<'a>) -> Result<Self, Reason> {
        Ok(match reader.byte()? {
            NAME => Self::Name(std::str::from_utf8(reader.bytes()?).map_err(|_| "a name is not UTF-8")?),
            FRAGMENT => Self::Fragment(Message::new(reader.bytes()?)),
            CONTEXT => Self::Context(reader.words()?.into()),
            APPEND => Self::Append {
                parent: reader.word()?.into(),
                kind: Kind::loose(reader.word()?).map_err(|_| "its kind cannot be appended")?,
                fragment: reader.word()?.into(),
                agent: reader.word()?.into(),
            },
            OPEN => Self::Open { point: reader.word()?.into(), path: reader.words()?.into(), subgroup: reader.word()? },
            TURN => Self::Turn {
                rollout: reader.word()?.into(),
                fragment: reader.word()?.into(),
                call: decode_call(reader)?,
            },
            OBSERVE => Self::Observe {
                rollout: reader.word()?.into(),
                fragment: reader.word()?.into(),
                agent: reader.word()?.into(),
                micros: reader.number()?,
                failed: reader.flag()?,
            },
            CLOSE => Self::Close {
                rollout: reader.word()?.into(),
                termination: Termination::from_code(reader.byte()?).ok_or("its termination is unknown")?,
                answer: reader.text()?,
                error: reader.text()?,
            },
            SCORE => Self::Score { rollout: reader.word()?.into(), reward: reader.float()? },
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
}

fn decode_call<'a>(reader: &mut Reader<'a>) -> Result<Call<'a>, Reason> {
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
    })
}

fn tokens(reader: &mut Reader<'_>) -> Result<Tokens, Reason> {
    let value = reader.option()?.map_or(-1, i64::from);
    Tokens::new(value, "tokens").map_err(|_| "a token figure is out of range")
}
