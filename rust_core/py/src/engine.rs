//! `TurnEngine`.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyBytesMethods, PyDict, PyMemoryView, PyString};
use trunkline_core as core;
use trunkline_core::engine::{
    AgentPlan, Faulted, FlightView, GivenUp, Handed, Landed, NotLanded, Outcome, SharedTree, TargetPlan, TurnsLanded,
    Unsent, is_ours,
};
use trunkline_core::http::{BufferPool, Micros};
use trunkline_core::reply::ParsedChoice;
use trunkline_core::{AppendedChoice, Result, Source, Tree};

use crate::guard::Guard;
use crate::http::{self, Answered, Deeds, ExchangeTable, Unanswered, micros, seconds};
use crate::input::{Data, Text, number};
use crate::reply::ReplyOptions;
use crate::tree::CoreTree;
use crate::turn::PendingReply;

struct Shared(Py<CoreTree>);

impl SharedTree for Shared {
    fn with<R>(&self, work: impl FnOnce(&mut Tree) -> Result<R>) -> Result<R> {
        self.0.get().within(work)
    }
}

/// Leaf, turns and seed of a request, and what waits for its draws.
type Taken = (u32, u32, i64, Vec<Py<PyAny>>);

/// What came of a request: the figures of its call, what was served, tokens that are estimated; each waiter with its turn or what
/// is wrong with it; and the reply, where it is on no tree yet.
type Turned = (Figures, String, u32, Vec<(Py<PyAny>, Py<PyAny>)>, Option<Py<PendingReply>>);

/// Draws; tokens of the prompt, of these cached, generated; attempts; microseconds queued, to the head of the answer and in all;
/// and when it was asked for.
type Figures = (usize, i64, i64, i64, u8, u64, i64, u64, u64);

/// What the answers of a target became; for each that was sent, the seconds from sending and the tokens of a draw; and headers,
/// where they are wanted.
type TurnedOf = (Vec<Turned>, Vec<(f64, u32)>, Vec<Py<PyDict>>);

/// What waited for a request that is given up, with its target and whether it was sent.
type Abandoned = (Vec<Py<PyAny>>, Option<(u32, bool)>);

/// A request that Python answers: its number, its tree's key, what it is for, and its body.
type HandedOut<'py> = (usize, u32, Taken, Bound<'py, PyBytes>);

/// What came of answers: turns, the requests whose answers are of no use, with the reason, and what shared others in vain.
type Read = (Vec<Turned>, Vec<(usize, String)>, Vec<(Taken, f64)>);

/// What a pass brought: answers and failures of requests that Python sent, turns, requests without turns, and what shared
/// such requests.
type Brought<'py> = (Vec<Answered<'py>>, Vec<Unanswered>, Vec<(u32, TurnedOf)>, Vec<Missed>, Vec<(Taken, f64)>);

/// A request that brought no turns: its target; what it was for, with what waits for its draws; seconds queued, to the head
/// of the answer, and from sending to the end; the answer as status, headers and body, or the fault with its detail.
type Missed = (u32, Taken, (f64, f64, f64), Option<(u16, Py<PyDict>, Py<PyBytes>)>, (&'static str, String));

/// Which rollouts want a turn of a model, and the requests that are on their way for them.
#[pyclass(frozen, module = "trunkline._core")]
pub struct TurnEngine {
    engine: Guard<core::engine::TurnEngine<Shared, Py<PyAny>>>,
    buffers: Arc<Mutex<BufferPool>>,
    choice: Py<PyAny>,
    call: Py<PyAny>,
    turn: Py<PyAny>,
    fault: Py<PyAny>,
}

/// Bytes from which on a request is made when it is written, in memory that other requests were in.
const LONG: usize = 16 << 10;

/// A long request, whose memory the next one gets when nothing reads it any more.
#[pyclass(frozen, module = "trunkline._core")]
struct LongRequest {
    bytes: Vec<u8>,
    buffers: Arc<Mutex<BufferPool>>,
}

impl Drop for LongRequest {
    fn drop(&mut self) {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).give(std::mem::take(&mut self.bytes));
    }
}

#[pymethods]
impl LongRequest {
    #[expect(unsafe_code, reason = "the protocol of buffers is one of pointers")]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = &slf.get().bytes;
        let len = isize::try_from(bytes.len())?;
        let start = bytes.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: The view is CPython's to fill. It holds this object, which is frozen: its bytes stay where and what they
        // are until it is dropped. They are exported as read-only.
        let status = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 1, flags) };
        if status == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

#[pymethods]
impl TurnEngine {
    #[new]
    #[pyo3(signature = (choice, call, turn, fault, /))]
    fn new(choice: Py<PyAny>, call: Py<PyAny>, turn: Py<PyAny>, fault: Py<PyAny>) -> Self {
        let (engine, buffers) = (Guard::new(core::engine::TurnEngine::default()), Arc::default());
        Self { engine, buffers, choice, call, turn, fault }
    }

    /// Open the queue of a model.
    #[pyo3(signature = (siblings, /))]
    fn model(&self, py: Python<'_>, siblings: bool) -> PyResult<u32> {
        self.engine.with(py, |engine| Ok(engine.model(siblings)))
    }

    /// Ask a model's server for one draw a request from now on.
    #[pyo3(signature = (model, /))]
    fn one_draw_each(&self, py: Python<'_>, #[pyo3(from_py_with = number)] model: u32) -> PyResult<()> {
        self.engine.with(py, |engine| engine.one_draw_each(model))
    }

    /// Register an agent.
    #[pyo3(signature = (model, head, constant, reading, name, namespace, seeded, greedy, /))]
    #[expect(clippy::too_many_arguments, reason = "they are the fields of a plan")]
    fn agent(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] model: u32,
        head: Data<'_>,
        constant: Data<'_>,
        reading: &ReplyOptions,
        name: Text<'_>,
        namespace: Text<'_>,
        seeded: bool,
        greedy: bool,
    ) -> PyResult<u32> {
        let plan = AgentPlan {
            model,
            head: head.to_vec(),
            constant: constant.to_vec(),
            reading: reading.0.clone(),
            name: (*name).to_owned(),
            namespace: (*namespace).to_owned(),
            seeded,
            greedy,
        };
        self.engine.with(py, |engine| engine.agent(plan))
    }

    /// Forget an agent, unless a rollout waits for a turn of it; returns whether it is gone.
    #[pyo3(signature = (agent, /))]
    fn forget(&self, py: Python<'_>, #[pyo3(from_py_with = number)] agent: u32) -> PyResult<bool> {
        self.engine.with(py, |engine| Ok(engine.forget(agent)))
    }

    /// Register where requests can be sent.
    #[pyo3(signature = (origin, path, host, headers, session, /))]
    fn target(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] origin: u32,
        path: String,
        host: String,
        headers: Vec<(String, String)>,
        session: Vec<String>,
    ) -> PyResult<u32> {
        self.engine.with(py, |engine| engine.target(&TargetPlan { origin, path, host, headers, session }))
    }

    /// Register a tree of a run with a seed; `task` is its task's id in UTF-8, `key` what names it to servers.
    #[pyo3(signature = (tree, seed, task, key, /))]
    fn open(
        &self,
        py: Python<'_>,
        tree: Py<CoreTree>,
        seed: i64,
        task: Data<'_>,
        #[pyo3(from_py_with = number)] key: u32,
    ) -> PyResult<usize> {
        self.engine.with(py, |engine| Ok(engine.open(Shared(tree), seed, task.to_vec(), key)))
    }

    /// Forget a tree.
    #[pyo3(signature = (tree, /))]
    fn close(&self, py: Python<'_>, tree: usize) -> PyResult<()> {
        self.engine.with(py, |engine| engine.close(tree))
    }

    /// A rollout wants its next turn.
    #[pyo3(signature = (tree, rollout, agent, waiter, kept=None, /))]
    fn ask(
        &self,
        py: Python<'_>,
        tree: usize,
        #[pyo3(from_py_with = number)] rollout: u32,
        #[pyo3(from_py_with = number)] agent: u32,
        waiter: Py<PyAny>,
        kept: Option<(u32, u32)>,
    ) -> PyResult<usize> {
        let kept = kept.map(|(turn, tokens)| (turn.into(), tokens));
        self.engine.with(py, |engine| engine.ask(tree, rollout.into(), agent, kept, waiter))
    }

    /// The seed of a rollout's turn that has so many model turns before it.
    #[pyo3(signature = (tree, rollout, turns, /))]
    fn seed(
        &self,
        py: Python<'_>,
        tree: usize,
        #[pyo3(from_py_with = number)] rollout: u32,
        #[pyo3(from_py_with = number)] turns: u32,
    ) -> PyResult<i64> {
        self.engine.with(py, |engine| engine.seed(tree, rollout.into(), turns))
    }

    /// A program wants a reply to a path, a recorded context or a draft (`kind` 0, 1, 2), to be put on the tree later.
    #[pyo3(signature = (tree, rollout, place, kind, turns, agent, waiter, /))]
    #[expect(clippy::too_many_arguments, reason = "positional arguments cost less than an object per turn")]
    fn ask_pending(
        &self,
        py: Python<'_>,
        tree: usize,
        #[pyo3(from_py_with = number)] rollout: u32,
        #[pyo3(from_py_with = number)] place: u32,
        kind: u8,
        #[pyo3(from_py_with = number)] turns: u32,
        #[pyo3(from_py_with = number)] agent: u32,
        waiter: Py<PyAny>,
    ) -> PyResult<usize> {
        let source = match kind {
            0 => Source::Path(place.into()),
            1 => Source::Context(place.into()),
            _ => Source::Draft(place),
        };
        self.engine.with(py, |engine| engine.ask_pending(tree, rollout.into(), source, turns, agent, waiter))
    }

    /// A rollout does not wait for its turn any more; what waited for a request that is given up with it, its target, and
    /// whether it was sent.
    #[pyo3(signature = (ask, table, now, /))]
    fn abandon(&self, py: Python<'_>, ask: usize, table: &ExchangeTable, now: f64) -> PyResult<Abandoned> {
        self.engine.with(py, |engine| table.within(|table| engine.abandon(ask, table, micros(now))))
    }

    /// A rollout does not wait for its turn any more; what waited for a request that nothing waits for now and that was not
    /// handed out, or the request, if it was.
    #[pyo3(signature = (ask, /))]
    fn give_up(&self, py: Python<'_>, ask: usize) -> PyResult<(Vec<Py<PyAny>>, Option<usize>)> {
        self.engine.with(py, |engine| {
            Ok(match engine.give_up(ask)? {
                GivenUp::Alone => (Vec::new(), None),
                GivenUp::Unsent(waiters, _) => (waiters, None),
                GivenUp::Sent(flight) => (Vec::new(), Some(flight)),
            })
        })
    }

    /// Gather what was asked for; the keys of the trees whose requests wait in a model's queue.
    #[pyo3(signature = (model, now, /))]
    fn gather(&self, py: Python<'_>, #[pyo3(from_py_with = number)] model: u32, now: f64) -> PyResult<Vec<u32>> {
        self.engine.with(py, |engine| {
            engine.gather(micros(now));
            engine.waiting(model)
        })
    }

    /// Take all requests out of a model's queue, or out of a target's, each with the moment when it was asked for.
    #[pyo3(signature = (model, target=None, /))]
    fn take(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] model: u32,
        #[pyo3(from_py_with = number)] target: Option<u32>,
    ) -> PyResult<Vec<(Taken, f64)>> {
        self.engine.with(py, |engine| {
            let mut taken = Vec::new();
            loop {
                let next = match target {
                    Some(target) => engine.next_for(target)?,
                    None => engine.next(model)?,
                };
                let Some(flight) = next else { break };
                let (view, asked) = (engine.view(flight)?, engine.asked(flight)?);
                taken.push((waiting(view, engine.release(flight)?), seconds(asked)));
            }
            taken.extend(engine.take_unsent().into_iter().map(unsent));
            Ok(taken)
        })
    }

    /// Hand all requests that wait for a model to Python: flight, tree's key, what each is for, and its body.
    #[pyo3(signature = (model, now, /))]
    fn hand<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = number)] model: u32,
        now: f64,
    ) -> PyResult<Vec<HandedOut<'py>>> {
        self.engine.with(py, |engine| {
            engine.gather(micros(now));
            let handed = engine.hand(model)?.into_iter().map(|Handed { flight, view, key, body }| {
                let waiters = engine.waiters(flight)?.into_iter().map(|waiter| (waiter.clone_ref(py), false));
                Ok((flight, key, waiting(view, waiters.collect()), PyBytes::new(py, &body)))
            });
            handed.collect()
        })
    }

    /// Make the first draws of a request that was handed out one of its own.
    #[pyo3(signature = (flight, draws, /))]
    fn split(&self, py: Python<'_>, flight: usize, draws: usize) -> PyResult<usize> {
        self.engine.with(py, |engine| engine.split(flight, draws))
    }

    /// Let go of a request that was handed out, and of what shares it.
    #[pyo3(signature = (flight, /))]
    fn release(&self, py: Python<'_>, flight: usize) -> PyResult<Vec<(Taken, f64)>> {
        self.engine.with(py, |engine| {
            let (view, asked) = (engine.view(flight)?, engine.asked(flight)?);
            let mut taken = vec![(waiting(view, engine.release(flight)?), seconds(asked))];
            taken.extend(engine.take_unsent().into_iter().map(unsent));
            Ok(taken)
        })
    }

    /// Make turns of the bytes that answer requests, each with the moment when they were asked of a server; the requests
    /// whose bytes are of no use, with the reason.
    #[pyo3(signature = (answers, now, /))]
    fn answer(&self, py: Python<'_>, answers: Vec<(usize, Bound<'_, PyBytes>, f64)>, now: f64) -> PyResult<Read> {
        let (mut turned, mut refused) = (Vec::new(), Vec::new());
        let left = self.engine.with(py, |engine| {
            for (flight, body, sent) in answers {
                match engine.answer(flight, body.as_bytes(), micros(sent), micros(now)) {
                    Ok(mut turns) => turned.append(&mut turns),
                    Err(NotLanded::Unreadable(error)) => refused.push((flight, error.to_string())),
                    Err(NotLanded::Few(choices)) => refused.push((flight, format!("it has {choices} choices"))),
                    Err(NotLanded::Refused(error)) => refused.push((flight, error.to_string())),
                }
            }
            Ok(engine.take_unsent())
        })?;
        let turned = turned.into_iter().map(|turns| self.turned(py, turns, micros(now))).collect::<PyResult<_>>()?;
        Ok((turned, refused, left.into_iter().map(unsent).collect()))
    }

    /// Move requests of a model behind those that wait for a target.
    #[pyo3(signature = (model, target, most, /))]
    fn route(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] model: u32,
        #[pyo3(from_py_with = number)] target: u32,
        most: usize,
    ) -> PyResult<()> {
        self.engine.with(py, |engine| engine.route(model, target, most))
    }

    /// Send requests that wait for a target; how many were sent.
    #[pyo3(signature = (target, most, table, limit, now, /))]
    fn send(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] target: u32,
        most: usize,
        table: &ExchangeTable,
        limit: f64,
        now: f64,
    ) -> PyResult<usize> {
        let send = |engine: &mut core::engine::TurnEngine<_, _>| {
            table.within(|table| engine.send(target, most, table, micros(limit), micros(now)))
        };
        self.engine.with(py, send)
    }

    /// A request whose connection could not be made.
    #[pyo3(signature = (token, now, /))]
    fn refused(&self, py: Python<'_>, token: u64, now: f64) -> PyResult<Missed> {
        let faulted = self.engine.with(py, |engine| engine.refused(token, micros(now)))?;
        missed(py, faulted)
    }

    /// Take what has come out of a table: what Python asked for, and what this engine did.
    #[pyo3(signature = (table, now, watched, /))]
    fn land<'py>(&self, py: Python<'py>, table: &ExchangeTable, now: f64, watched: bool) -> PyResult<Brought<'py>> {
        let large = table.is_large(py)?;
        let land = |engine: &mut core::engine::TurnEngine<Shared, Py<PyAny>>| {
            table.within(|table| {
                table.settle(micros(now));
                let passed = engine.pass(table)?;
                Ok((table.take_landed(), table.take_failed(), passed))
            })
        };
        let (landed, failed, passed) = self.engine.with_long(py, |_| large, land)?;
        let mut turned = BTreeMap::<u32, TurnedOf>::new();
        for landed in passed.landed {
            let (turns, replies, headers) = turned.entry(landed.target).or_default();
            if landed.sent {
                let draws = u32::try_from(landed.landed.turns.len()).unwrap_or(u32::MAX).max(1);
                let tokens = landed.landed.reply.counts.generated.unwrap_or(0) / draws;
                replies.push((seconds(landed.took.saturating_sub(landed.queued)), tokens));
                if watched {
                    headers.push(http::headers(py, &landed.headers)?.unbind());
                }
            }
            turns.push(self.turned(py, landed, micros(now))?);
        }
        let turned = turned.into_iter().collect();
        let missed = passed.faulted.into_iter().map(|faulted| missed(py, faulted)).collect::<PyResult<_>>()?;
        let unsent = passed.unsent.into_iter().map(unsent).collect();
        Ok((http::answered(py, landed)?, failed.into_iter().map(http::unanswered).collect(), turned, missed, unsent))
    }

    /// Take what is to be done with sockets out of a table; requests of this engine are whole, or long.
    #[pyo3(signature = (table, now, /))]
    fn act<'py>(&self, py: Python<'py>, table: &ExchangeTable, now: f64) -> PyResult<Deeds<'py>> {
        table.take_actions(py, micros(now), |token, table, out| {
            if !is_ours(token) {
                table.head_onto(token, out);
            } else if table.room(token) > LONG {
                return Ok(false);
            } else {
                self.engine.within(|engine| engine.request(token, table, out))?;
            }
            Ok(true)
        })
    }

    /// The bytes of a long request.
    #[pyo3(signature = (token, table, /))]
    fn request<'py>(&self, py: Python<'py>, token: u64, table: &ExchangeTable) -> PyResult<Bound<'py, PyMemoryView>> {
        let make = |engine: &mut core::engine::TurnEngine<_, _>| {
            table.within(|table| {
                let mut bytes = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).take(table.room(token));
                engine.request(token, table, &mut bytes)?;
                Ok(bytes)
            })
        };
        let bytes = self.engine.with(py, make)?;
        let request = Bound::new(py, LongRequest { bytes, buffers: Arc::clone(&self.buffers) })?;
        PyMemoryView::from(&request)
    }

    /// Give up all requests of a model that were sent.
    #[pyo3(signature = (model, table, now, /))]
    fn recall(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] model: u32,
        table: &ExchangeTable,
        now: f64,
    ) -> PyResult<Vec<Missed>> {
        let recall = |engine: &mut core::engine::TurnEngine<_, _>| {
            table.within(|table| engine.recall(model, table, micros(now)))
        };
        self.engine.with(py, recall)?.into_iter().map(|faulted| missed(py, faulted)).collect()
    }

    /// How many requests are on their way, and when the oldest was sent.
    fn in_flight(&self, py: Python<'_>) -> PyResult<(usize, Option<f64>)> {
        self.engine.with(py, |engine| {
            let (count, first) = engine.in_flight();
            Ok((count, first.map(seconds)))
        })
    }
}

impl TurnEngine {
    fn turned(&self, py: Python<'_>, found: TurnsLanded<Py<PyAny>>, now: Micros) -> PyResult<Turned> {
        let TurnsLanded { sent, queued, first, took, landed, .. } = found;
        let Landed { reply, parked, turns, .. } = landed;
        let draws = turns.len();
        let mut outcomes = Vec::with_capacity(draws);
        for ((waiter, _, appended), choice) in turns.into_iter().zip(&reply.choices) {
            outcomes.push((waiter, self.outcome(py, choice, &appended)?));
        }
        let count = |count: Option<u32>| count.map_or(-1, i64::from);
        let counts = reply.counts;
        let (prompt, cached, generated) = (count(counts.prompt), count(counts.cached), count(counts.generated));
        let first = if sent { first.cast_signed() } else { -1 };
        let started = now.saturating_sub(took);
        let figures = (draws, prompt, cached, generated, u8::from(sent), queued, first, took, started);
        let (served, estimated) = (reply.served.clone(), reply.estimated);
        let parked = parked.then(|| Py::new(py, PendingReply(reply, None))).transpose()?;
        Ok((figures, served, estimated, outcomes, parked))
    }

    /// A turn as the rollout gets it, or an error that says what is wrong with its choice.
    fn outcome(&self, py: Python<'_>, choice: &ParsedChoice, appended: &AppendedChoice) -> PyResult<Py<PyAny>> {
        let (node, size) = match appended {
            AppendedChoice::Turn(node, size) => (node.get(), *size),
            AppendedChoice::Fault(fault) => return self.fault.call1(py, (fault,)),
        };
        let message = &choice.message;
        let calls =
            message.tool_calls.iter().map(|call| self.call.call1(py, (&*call.id, &*call.name, &*call.arguments)));
        let calls = calls.collect::<PyResult<Vec<_>>>()?;
        let choice = self.choice.call1(py, (message.text(), message.reasoning.as_deref(), calls, &*choice.finish))?;
        self.turn.call1(py, (choice, node, size))
    }
}

/// The node or the context that a request is for.
fn place(source: Source) -> u32 {
    match source {
        Source::Path(node) => node.get(),
        Source::Context(context) => context.get(),
        Source::Draft(draft) => draft,
    }
}

fn waiting(view: FlightView, waiters: Vec<(Py<PyAny>, bool)>) -> Taken {
    (place(view.source), view.turns, view.seed, waiters.into_iter().map(|(waiter, _)| waiter).collect())
}

fn unsent(found: Unsent<Py<PyAny>>) -> (Taken, f64) {
    let Unsent { view, waiter, asked } = found;
    (waiting(view, vec![(waiter, false)]), seconds(asked))
}

fn missed(py: Python<'_>, faulted: Faulted<Py<PyAny>>) -> PyResult<Missed> {
    let Faulted { view, target, queued, took, first, outcome, waiters } = faulted;
    let times = (seconds(queued), seconds(first), seconds(took));
    let (answer, fault) = match outcome {
        Outcome::Answer(answer) => {
            let headers = http::headers(py, &answer.headers)?.unbind();
            (Some((answer.status, headers, PyBytes::new(py, &answer.body).unbind())), ("", String::new()))
        }
        Outcome::Fault(fault) => (None, http::fault_words(&fault)),
    };
    Ok((target, waiting(view, waiters), times, answer, fault))
}

/// How a draw of an agent's call is known: its key in hexadecimal digits, the turn that its seed is made of, and what the ids
/// of its reply are made of.
#[pyfunction]
#[pyo3(signature = (key, number, /))]
pub fn call_ids(key: &Bound<'_, PyBytes>, #[pyo3(from_py_with = number)] number: u32) -> (String, u32, String) {
    let core::engine::CallIds { key, turn, reply } = core::engine::CallIds::new(key.as_bytes(), number);
    (key, turn, reply)
}

/// The hashes that the beginnings of a conversation are known by.
#[pyclass(frozen, module = "trunkline._core")]
pub struct ConversationKeys(Guard<core::engine::ConversationKeys>);

#[pymethods]
impl ConversationKeys {
    #[new]
    fn new() -> Self {
        Self(Guard::new(core::engine::ConversationKeys::default()))
    }

    /// Add a message by its form, and by the same without masks; and the hash up to it, if that is known.
    #[pyo3(signature = (form, raw, key=None, /))]
    fn add(
        &self,
        py: Python<'_>,
        form: &Bound<'_, PyBytes>,
        raw: &Bound<'_, PyBytes>,
        key: Option<&Bound<'_, PyBytes>>,
    ) -> PyResult<()> {
        let key = key.map(|key| key.as_bytes().try_into());
        let key = key.transpose().map_err(|_| PyValueError::new_err("a key has 16 bytes"))?;
        self.0.with(py, |keys| {
            keys.add(form.as_bytes(), raw.as_bytes(), key);
            Ok(())
        })
    }

    /// The hash of the first so many messages.
    #[pyo3(signature = (messages, /))]
    fn key<'py>(&self, py: Python<'py>, #[pyo3(from_py_with = number)] messages: u32) -> PyResult<Bound<'py, PyBytes>> {
        self.0.with(py, |keys| Ok(PyBytes::new(py, keys.key(messages as usize))))
    }

    /// The hash of all forms without masks.
    fn raw<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.0.with(py, |keys| Ok(PyBytes::new(py, &keys.raw())))
    }
}

/// The hash of some byte strings in their order, each behind its length: 16 bytes of `BLAKE2b`.
#[pyfunction]
#[pyo3(signature = (parts, /))]
pub fn parts_digest<'py>(py: Python<'py>, parts: Vec<Bound<'py, PyBytes>>) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &core::engine::parts_digest(parts.iter().map(PyBytesMethods::as_bytes)))
}

/// The base seed of a fork point: draw i of it is sent with base + i. `path` is the fork path of the rollout whose state it
/// is, `turn` counts the model turns before it.
#[pyfunction]
#[pyo3(signature = (seed, task, path, turn, /))]
pub fn base_seed(
    seed: i64,
    task: &Bound<'_, PyString>,
    path: Vec<u32>,
    #[pyo3(from_py_with = number)] turn: u32,
) -> PyResult<i64> {
    let task = task.call_method1("encode", ("utf-8", "surrogatepass"))?;
    Ok(core::engine::base_seed(seed, task.cast::<PyBytes>()?.as_bytes(), &path, turn))
}
