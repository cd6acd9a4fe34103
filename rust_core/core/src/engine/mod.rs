//! The turn engine: which rollouts want a turn of a model, and the requests that are on their way for them.
//!
//! It does no input or output and knows no clock. A driver tells it who asks ([`TurnEngine::ask`]), has it gather what was
//! asked in one pass of an event loop into requests ([`TurnEngine::gather`]), sends as many of each model's queue as may be
//! sent ([`TurnEngine::next`], [`TurnEngine::body`]), and gives it the replies ([`TurnEngine::land`]), which become turns
//! on the trees in the same step. `docs/explanation/turn.md` has the table of stages.

mod answer;
mod exchange;
mod seed;
mod shared;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use slab::Slab;

use crate::error::{Error, Result};
use crate::http::Micros;
use crate::id::{NameId, NodeId, RolloutId};
use crate::reply::{self, ParsedReply, ReplyError, ReplyOptions};
use crate::tree::Tree;
use crate::turn::append::{AppendedChoice, RequestInfo};
use crate::turn::request::{Source, decimal};

pub use answer::Handed;
pub use exchange::{Abandoned, Faulted, Outcome, Passed, TargetKey, TargetPlan, TurnsLanded, is_ours};
pub use seed::{CallIds, ConversationKeys, base_seed, next_seed, parts_digest};
pub use shared::Unsent;

/// A tree that others use as well: each piece of work has it for itself.
pub trait SharedTree {
    /// Work on the tree.
    ///
    /// # Errors
    /// What the work returns, or [`Error::Broken`] if earlier work has left the tree unusable.
    fn with<R>(&self, work: impl FnOnce(&mut Tree) -> Result<R>) -> Result<R>;
}

/// What the requests of one agent have in common.
#[derive(Clone, Debug)]
pub struct AgentPlan {
    /// The queue of its model.
    pub model: u32,
    /// The body of a request up to its first message.
    pub head: Vec<u8>,
    /// The body behind the last message, up to what depends on the draws.
    pub constant: Vec<u8>,
    /// How replies are read.
    pub reading: ReplyOptions,
    /// What its turns are called.
    pub name: String,
    /// Model, sampling parameters and weight version, as its turns say them.
    pub namespace: String,
    /// Whether a request has a seed.
    pub seeded: bool,
    /// Whether its sampling makes draws equal, so that equal requests are sent once.
    pub greedy: bool,
}

/// How the requests of one model are sent.
#[derive(Debug, Default)]
struct ModelQueue {
    /// Whether draws of one state may go out as one request.
    siblings: bool,
    waiting: VecDeque<FlightKey>,
}

/// Number of an agent, until it is forgotten.
pub type AgentKey = u32;
/// Number of a tree, until it is closed.
pub type TreeKey = usize;
/// Number of a rollout's wish for a turn, until its outcome is told.
pub type AskKey = usize;
/// Number of a request, until its outcome is told.
pub type FlightKey = usize;

struct TreeEntry<T> {
    tree: T,
    run_seed: i64,
    task: Vec<u8>,
    /// What its requests have in common, for servers that keep what was computed for it.
    key: u32,
    /// Heads of its requests by target, where they name the tree.
    heads: Vec<(TargetKey, Arc<[u8]>)>,
    /// Ids of the agents' names and namespaces, as far as they have spoken here.
    names: Vec<(AgentKey, NameId, NameId)>,
}

/// What a rollout asked for.
#[derive(Clone, Copy, Debug)]
struct State {
    tree: TreeKey,
    agent: AgentKey,
    rollout: RolloutId,
    source: Source,
    turns: u32,
    seed: i64,
    kept: Option<(NodeId, u32)>,
    /// Whether the reply is read and put on no tree yet.
    parked: bool,
}

/// A rollout that waits for its turn.
struct Ask<W> {
    state: State,
    waiter: W,
    /// Its request, once it was gathered.
    flight: Option<FlightKey>,
    /// Whether the outcome is of no use any more.
    given_up: bool,
}

/// A request for consecutive draws of one state.
#[derive(Debug)]
struct Flight {
    asks: Vec<AskKey>,
    asked: Micros,
    place: Place,
    /// Wishes of equal requests, which get the same reply, and when they were asked for.
    sharing: Vec<(AskKey, Micros)>,
    /// By what equal requests are looked up; None where equal requests are sent all the same.
    print: Option<shared::Print>,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the queue of its model.
    Model(u32),
    /// In the queue of a target.
    Target(TargetKey),
    /// Sent to a target at this time.
    Sent(TargetKey, Micros),
    /// With the driver, which answers it or lets go of it.
    Taken,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlightView {
    /// The tree.
    pub tree: TreeKey,
    /// Who is asked.
    pub agent: AgentKey,
    /// What the conversation is.
    pub source: Source,
    /// Model turns before the one that is asked for.
    pub turns: u32,
    /// Seed of the first draw.
    pub seed: i64,
    /// Draws.
    pub n: u32,
    /// Whether the reply is read and put on no tree yet.
    pub parked: bool,
}

impl FlightView {
    fn of(State { tree, agent, source, turns, seed, parked, .. }: State, draws: usize) -> Self {
        Self { tree, agent, source, turns, seed, n: crate::id::count(draws), parked }
    }
}

/// What came of giving a wish up.
#[derive(Debug, PartialEq, Eq)]
pub enum GivenUp<W> {
    /// Others wait for other draws of the same request.
    Alone,
    /// These wait for nothing any more. Their request was not sent, and will not be, or goes on for equal ones; the target
    /// is that whose queue has lost one.
    Unsent(Vec<W>, Option<TargetKey>),
    /// Its request is on its way, and nothing waits for it any more: it must be given up too.
    Sent(FlightKey),
}

/// A reply whose choices are on the tree.
#[derive(Debug)]
pub struct Landed<W> {
    /// Whether its first choice is read and on no tree yet; its node is the root.
    pub parked: bool,
    /// The reply; its choices are those of `turns`, in order, and perhaps more.
    pub reply: ParsedReply,
    /// What became of each draw: who waits for it, whether that was given up, and its turn or a fault.
    pub turns: Vec<(W, bool, AppendedChoice)>,
    /// Wishes of equal requests, which the same reply is for, and when they were asked for.
    sharing: Vec<(AskKey, Micros)>,
}

/// Why a reply is not on the tree; its request is still there.
#[derive(Debug)]
pub enum NotLanded {
    /// It cannot be read.
    Unreadable(ReplyError),
    /// It has fewer choices than were asked for.
    Few(usize),
    /// The tree refused it.
    Refused(Error),
}

/// See the module.
pub struct TurnEngine<T, W> {
    agents: Slab<AgentPlan>,
    models: Vec<ModelQueue>,
    trees: Slab<TreeEntry<T>>,
    asks: Slab<Ask<W>>,
    flights: Slab<Flight>,
    /// Asked since requests were gathered last, in order.
    asked: Vec<AskKey>,
    targets: Vec<exchange::Target>,
    /// Requests whose draws are equal, by what is quick to compare.
    equal: HashMap<shared::Print, Vec<FlightKey>>,
    /// Wishes that shared a request which brought no turns.
    unsent: Vec<(AskKey, Micros)>,
}

impl<T, W> Default for TurnEngine<T, W> {
    fn default() -> Self {
        Self {
            agents: Slab::new(),
            models: Vec::new(),
            trees: Slab::new(),
            asks: Slab::new(),
            flights: Slab::new(),
            asked: Vec::new(),
            targets: Vec::new(),
            equal: HashMap::new(),
            unsent: Vec::new(),
        }
    }
}

impl<T: SharedTree, W> TurnEngine<T, W> {
    /// Open the queue of a model; `siblings` says whether draws of one state may go out as one request.
    pub fn model(&mut self, siblings: bool) -> u32 {
        self.models.push(ModelQueue { siblings, waiting: VecDeque::new() });
        crate::id::count(self.models.len() - 1)
    }

    /// Ask a model's server for one draw a request from now on.
    ///
    /// # Errors
    /// If there is no such model.
    pub fn one_draw_each(&mut self, model: u32) -> Result<()> {
        self.queue(model)?.siblings = false;
        Ok(())
    }

    /// Register an agent.
    ///
    /// # Errors
    /// If its model does not exist.
    pub fn agent(&mut self, plan: AgentPlan) -> Result<AgentKey> {
        self.queue(plan.model)?;
        Ok(crate::id::count(self.agents.insert(plan)))
    }

    /// Forget an agent, unless a rollout waits for a turn of it; returns whether it is gone.
    pub fn forget(&mut self, agent: AgentKey) -> bool {
        if self.asks.iter().any(|(_, ask)| ask.state.agent == agent) {
            return false;
        }
        for (_, tree) in &mut self.trees {
            tree.names.retain(|&(known, ..)| known != agent);
        }
        self.agents.try_remove(agent as usize).is_some()
    }

    /// Register a tree of a run with this seed; `task` is the id of its task, `key` what names the tree to servers.
    pub fn open(&mut self, tree: T, run_seed: i64, task: Vec<u8>, key: u32) -> TreeKey {
        self.trees.insert(TreeEntry { tree, run_seed, task, key, heads: Vec::new(), names: Vec::new() })
    }

    /// Forget a tree; nothing may be asked for it any more.
    ///
    /// # Errors
    /// If there is no such tree.
    pub fn close(&mut self, tree: TreeKey) -> Result<()> {
        self.trees.try_remove(tree).map(drop).ok_or_else(|| unknown("tree", tree))
    }

    /// A rollout wants its next turn, which `waiter` waits for; `kept` is the turn whose first tokens it keeps, and how many.
    ///
    /// # Errors
    /// If the tree, the rollout or the agent does not exist, or the rollout has ended.
    pub fn ask(
        &mut self,
        tree: TreeKey,
        rollout: RolloutId,
        agent: AgentKey,
        kept: Option<(NodeId, u32)>,
        waiter: W,
    ) -> Result<AskKey> {
        self.plan(agent)?;
        let entry = self.entry(tree)?;
        let (leaf, turns, seed) = entry.tree.with(|tree| {
            let view = tree.rollout(rollout)?;
            if let Some(ended) = view.termination {
                return Err(Error::Ended { rollout: rollout.get(), termination: ended.as_str(), verb: "asked for" });
            }
            Ok((view.leaf, view.turns, next_seed(entry.run_seed, &entry.task, view.path, view.turns)))
        })?;
        let state = State { tree, agent, rollout, source: Source::Path(leaf), turns, seed, kept, parked: false };
        Ok(self.wish(state, waiter))
    }

    /// The seed of a rollout's turn that has so many model turns before it.
    ///
    /// # Errors
    /// If the tree or the rollout does not exist.
    pub fn seed(&self, tree: TreeKey, rollout: RolloutId, turns: u32) -> Result<i64> {
        let TreeEntry { tree, run_seed, task, .. } = self.entry(tree)?;
        tree.with(|tree| Ok(next_seed(*run_seed, task, tree.rollout(rollout)?.path, turns)))
    }

    /// The program of a rollout wants a reply to what it says, and decides where the turn goes.
    ///
    /// # Errors
    /// If the tree, the rollout or the agent does not exist.
    pub fn ask_pending(
        &mut self,
        tree: TreeKey,
        rollout: RolloutId,
        source: Source,
        turns: u32,
        agent: AgentKey,
        waiter: W,
    ) -> Result<AskKey> {
        self.plan(agent)?;
        let seed = self.seed(tree, rollout, turns)?;
        let state = State { tree, agent, rollout, source, turns, seed, kept: None, parked: true };
        Ok(self.wish(state, waiter))
    }

    fn wish(&mut self, state: State, waiter: W) -> AskKey {
        let key = self.asks.insert(Ask { state, waiter, flight: None, given_up: false });
        self.asked.push(key);
        key
    }

    /// Gather what was asked for since the last time into requests, behind those that wait: consecutive draws of one state
    /// are one request where their model takes that.
    pub fn gather(&mut self, now: Micros) {
        let asked = std::mem::take(&mut self.asked);
        if let [key] = *asked {
            self.file(vec![key], now);
            return;
        }
        let mut asked = asked.into_iter().enumerate().collect::<Vec<_>>();
        asked.sort_by_key(|&(_, key)| {
            let State { tree, agent, source, kept, parked, seed, .. } = self.asks[key].state;
            (tree, agent, source, kept, parked, seed)
        });
        let mut requests = Vec::<Range<usize>>::new();
        for (place, &(_, key)) in asked.iter().enumerate() {
            match requests.last_mut() {
                Some(request) if self.continues(&asked[request.clone()], key) => request.end += 1,
                _ => requests.push(place..place + 1),
            }
        }
        // First come, first served, whatever their seeds.
        requests.sort_by_key(|request| asked[request.clone()].iter().map(|&(order, _)| order).min());
        for request in requests {
            self.file(asked[request].iter().map(|&(_, key)| key).collect(), now);
        }
    }

    /// Whether a wish goes into the request of those before it: it is the next draw of their state.
    fn continues(&self, request: &[(usize, AskKey)], key: AskKey) -> bool {
        let (first, next) = (self.asks[request[0].1].state, self.asks[key].state);
        let Some(plan) = self.agents.get(first.agent as usize) else { return false };
        let siblings = !plan.greedy && self.models.get(plan.model as usize).is_some_and(|model| model.siblings);
        let alone = !siblings || first.parked || !matches!(first.source, Source::Path(_));
        let same = |state: State| (state.tree, state.agent, state.source, state.kept, state.parked);
        !alone && same(first) == same(next) && (first.seed..).nth(request.len()) == Some(next.seed)
    }

    fn file(&mut self, asks: Vec<AskKey>, now: Micros) {
        let Some(agent) = asks.first().and_then(|&key| self.asks.get(key)).map(|ask| ask.state.agent) else { return };
        let Some(model) = self.agents.get(agent as usize).map(|plan| plan.model as usize) else { return };
        let print = self.print(asks[0]);
        if print.is_some_and(|print| self.share(asks[0], print, now)) {
            return;
        }
        let flight = self.flights.vacant_key();
        for &key in &asks {
            self.asks[key].flight = Some(flight);
        }
        if let Some(print) = print {
            self.equal.entry(print).or_default().push(flight);
        }
        let place = Place::Model(crate::id::count(model));
        self.flights.insert(Flight { asks, asked: now, place, sharing: Vec::new(), print });
        self.models[model].waiting.push_back(flight);
    }

    /// The keys of the trees whose requests wait in a model's queue, in order.
    ///
    /// # Errors
    /// If there is no such model.
    pub fn waiting(&mut self, model: u32) -> Result<Vec<u32>> {
        let waiting = self.queue(model)?.waiting.iter().copied().collect::<Vec<_>>();
        waiting.into_iter().map(|flight| Ok(self.entry(self.view(flight)?.tree)?.key)).collect()
    }

    /// How many requests were sent or handed out and are not over, and when the first was, or was asked for.
    #[must_use]
    pub fn in_flight(&self) -> (usize, Option<Micros>) {
        let sent = self.flights.iter().filter_map(|(_, flight)| match flight.place {
            Place::Sent(_, at) => Some(at),
            Place::Taken => Some(flight.asked),
            Place::Model(_) | Place::Target(_) => None,
        });
        sent.fold((0, None), |(count, first), at| (count + 1, Some(first.map_or(at, |first: Micros| first.min(at)))))
    }

    /// Take the request that waits longest out of a model's queue.
    ///
    /// # Errors
    /// If there is no such model.
    pub fn next(&mut self, model: u32) -> Result<Option<FlightKey>> {
        let next = self.queue(model)?.waiting.pop_front();
        if let Some(flight) = next.and_then(|key| self.flights.get_mut(key)) {
            flight.place = Place::Taken;
        }
        Ok(next)
    }

    /// What a request is for.
    ///
    /// # Errors
    /// If there is no such request.
    pub fn view(&self, flight: FlightKey) -> Result<FlightView> {
        let asks = &self.flight(flight)?.asks;
        let first = asks.first().and_then(|&key| self.asks.get(key)).ok_or_else(|| unknown("request", flight))?;
        Ok(FlightView::of(first.state, asks.len()))
    }

    /// When a request was asked for.
    ///
    /// # Errors
    /// If there is no such request.
    pub fn asked(&self, flight: FlightKey) -> Result<Micros> {
        Ok(self.flight(flight)?.asked)
    }

    /// Write the body of a request behind what `out` has.
    ///
    /// # Errors
    /// If there is no such request.
    pub fn body(&self, flight: FlightKey, out: &mut Vec<u8>) -> Result<()> {
        let FlightView { tree, agent, source, seed, n, .. } = self.view(flight)?;
        let plan = self.plan(agent)?;
        self.entry(tree)?.tree.with(|tree| tree.body_onto(source, &plan.head, &plan.constant, out))?;
        end(plan.seeded, n, seed, out);
        Ok(())
    }

    /// The size of a request's body.
    fn size(&self, FlightView { tree, agent, source, seed, n, .. }: FlightView) -> Result<usize> {
        let plan = self.plan(agent)?;
        let size = self.entry(tree)?.tree.with(|tree| tree.body_len(source, &plan.head, &plan.constant))?;
        let mut ending = Vec::with_capacity(64);
        end(plan.seeded, n, seed, &mut ending);
        Ok(size + ending.len())
    }

    /// Put the choices of a reply on the tree as the next turns of the rollouts that asked. The request is over.
    ///
    /// # Errors
    /// If the reply has no use as it is. The request is still there, for [`TurnEngine::release`].
    pub fn land(
        &mut self,
        flight: FlightKey,
        body: &[u8],
        retries: u32,
        micros: u64,
    ) -> std::result::Result<Landed<W>, NotLanded> {
        let asks = self.flight(flight).map_err(NotLanded::Refused)?.asks.clone();
        let (reply, appended) = self.append(&asks, body, retries, micros)?;
        let Flight { sharing, .. } = self.remove(flight);
        Ok(Landed { sharing, ..self.landed(reply, asks, appended) })
    }

    /// Read a reply, and put its choices on the tree for wishes of one state.
    fn append(
        &mut self,
        asks: &[AskKey],
        body: &[u8],
        retries: u32,
        micros: u64,
    ) -> std::result::Result<(ParsedReply, Vec<AppendedChoice>), NotLanded> {
        let State { tree, agent, turns, parked, .. } = self.asks[asks[0]].state;
        let plan = self.plan(agent).map_err(NotLanded::Refused)?;
        let reply = reply::read(body, &plan.reading).map_err(NotLanded::Unreadable)?;
        if reply.choices.len() < asks.len() {
            return Err(NotLanded::Few(reply.choices.len()));
        }
        if parked {
            let size = reply.choices[0].size(turns, false);
            let found = size.map_or_else(AppendedChoice::Fault, |size| AppendedChoice::Turn(NodeId::ROOT, size));
            return Ok((reply, vec![found]));
        }
        let rollouts = asks.iter().map(|&key| self.asks[key].state.rollout).collect::<Vec<_>>();
        let entry = self.trees.get_mut(tree).ok_or_else(|| NotLanded::Refused(unknown("tree", tree)))?;
        let TreeEntry { tree, names, .. } = entry;
        let plan = &self.agents[agent as usize];
        let append = |tree: &mut Tree| {
            if !names.iter().any(|&(known, ..)| known == agent) {
                names.push((agent, tree.name(&plan.name)?, tree.name(&plan.namespace)?));
            }
            let known = names.iter().find(|&&(known, ..)| known == agent);
            let (name, namespace) = known.map_or((NameId::EMPTY, NameId::EMPTY), |&(_, name, space)| (name, space));
            let request =
                RequestInfo { agent: name, namespace, turn: turns, retries, micros, ..RequestInfo::default() };
            tree.append_reply(&rollouts, &reply, request)
        };
        let appended = tree.with(append).map_err(NotLanded::Refused)?;
        Ok((reply, appended))
    }

    fn landed(&mut self, reply: ParsedReply, asks: Vec<AskKey>, appended: Vec<AppendedChoice>) -> Landed<W> {
        let parked = self.asks[asks[0]].state.parked;
        let turns = asks.into_iter().zip(appended).map(|(key, appended)| {
            let Ask { waiter, given_up, .. } = self.asks.remove(key);
            (waiter, given_up, appended)
        });
        Landed { reply, parked, turns: turns.collect(), sharing: Vec::new() }
    }

    /// Let go of a request that the engine does not land: who waits for its draws, in order, and whether that was given up.
    /// Those that share it are taken by [`TurnEngine::take_unsent`].
    ///
    /// # Errors
    /// If there is no such request.
    pub fn release(&mut self, flight: FlightKey) -> Result<Vec<(W, bool)>> {
        self.flight(flight)?;
        let Flight { asks, sharing, .. } = self.remove(flight);
        for (key, asked) in sharing {
            self.leave(key, asked);
        }
        let asks = asks.into_iter().map(|key| self.asks.remove(key));
        Ok(asks.map(|ask| (ask.waiter, ask.given_up)).collect())
    }

    /// A rollout does not wait for its turn any more. Its wish is over where its request is not sent.
    ///
    /// # Errors
    /// If there is no such wish.
    pub fn give_up(&mut self, key: AskKey) -> Result<GivenUp<W>> {
        let ask = self.asks.get_mut(key).ok_or_else(|| unknown("wish", key))?;
        ask.given_up = true;
        let Some(flight) = ask.flight else {
            self.asked.retain(|&other| other != key);
            self.unsent.retain(|&(other, _)| other != key);
            return Ok(GivenUp::Unsent(vec![self.asks.remove(key).waiter], None));
        };
        if !self.flights[flight].sharing.is_empty() {
            self.withdraw(key, flight);
            return Ok(GivenUp::Unsent(vec![self.asks.remove(key).waiter], None));
        }
        let Flight { asks, place, .. } = &self.flights[flight];
        if !asks.iter().all(|&other| self.asks[other].given_up) {
            return Ok(GivenUp::Alone);
        }
        let target = match *place {
            Place::Sent(..) | Place::Taken => return Ok(GivenUp::Sent(flight)),
            Place::Model(model) => {
                self.queue(model)?.waiting.retain(|&other| other != flight);
                None
            }
            Place::Target(target) => {
                self.aim(target)?.waiting.retain(|&other| other != flight);
                Some(target)
            }
        };
        let Flight { asks, .. } = self.remove(flight);
        Ok(GivenUp::Unsent(asks.into_iter().map(|key| self.asks.remove(key).waiter).collect(), target))
    }

    fn entry(&self, tree: TreeKey) -> Result<&TreeEntry<T>> {
        self.trees.get(tree).ok_or_else(|| unknown("tree", tree))
    }

    fn flight(&self, flight: FlightKey) -> Result<&Flight> {
        self.flights.get(flight).ok_or_else(|| unknown("request", flight))
    }

    fn plan(&self, agent: AgentKey) -> Result<&AgentPlan> {
        self.agents.get(agent as usize).ok_or_else(|| unknown("agent", agent as usize))
    }

    fn queue(&mut self, model: u32) -> Result<&mut ModelQueue> {
        self.models.get_mut(model as usize).ok_or_else(|| unknown("model", model as usize))
    }
}

/// Write the end of a body: how many draws, and the seed of the first.
fn end(seeded: bool, n: u32, seed: i64, out: &mut Vec<u8>) {
    if n != 1 {
        out.extend_from_slice(b",\"n\":");
        decimal(out, n.into());
    }
    if seeded {
        out.extend_from_slice(b",\"seed\":");
        decimal(out, seed);
    }
    out.push(b'}');
}

fn unknown(what: &'static str, key: usize) -> Error {
    Error::Unknown { what, id: crate::id::count(key), count: 0 }
}
