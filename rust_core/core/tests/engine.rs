//! The turn engine over an exchange table, against lists: random wishes, queues, answers, failures and cancellations.

#![allow(missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

use proptest::prelude::*;
use serde_json::{Value, json};
use trunkline_core::engine::{
    AgentPlan, GivenUp, Outcome, Passed, SharedTree, TargetPlan, TurnEngine, Unsent, base_seed, is_ours, next_seed,
};
use trunkline_core::http::{ExchangeTable, HttpLimits};
use trunkline_core::reply::ReplyOptions;
use trunkline_core::{AppendedChoice, Kind, NameId, NodeId, Result, RolloutId, Termination, Tree};

#[derive(Clone)]
struct Shared(Rc<RefCell<Tree>>);

impl SharedTree for Shared {
    fn with<R>(&self, work: impl FnOnce(&mut Tree) -> Result<R>) -> Result<R> {
        work(&mut self.0.borrow_mut())
    }
}

const SECOND: u64 = 1_000_000;
const RUN: i64 = 11;
/// Model of each agent, whether its requests have seeds, and whether equal ones are sent once.
const AGENTS: [(u32, bool, bool); 4] = [(0, true, false), (0, false, false), (1, true, false), (0, true, true)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Asked,
    Waits,
    Over,
}

/// A rollout's wish for a turn; its number is what waits for it.
#[derive(Debug)]
struct Wish {
    key: usize,
    tree: usize,
    rollout: usize,
    agent: u32,
    leaf: u32,
    turns: u32,
    seed: i64,
    stage: Stage,
    given_up: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Model(u32),
    Target(u32),
    Sent(u32),
    /// Handed out under this number.
    Handed(usize),
}

/// A request: its wishes, those that share it, and where it is.
#[derive(Debug)]
struct Request {
    wishes: Vec<usize>,
    sharing: Vec<usize>,
    messages: String,
    place: Place,
    body: Vec<u8>,
    head: String,
}

struct Rollout {
    path: Vec<u32>,
    ended: bool,
    wish: Option<usize>,
}

struct Grove {
    tree: Shared,
    key: usize,
    rollouts: Vec<Rollout>,
    open: bool,
}

struct World {
    engine: TurnEngine<Shared, usize>,
    table: ExchangeTable,
    now: u64,
    groves: Vec<Grove>,
    wishes: Vec<Wish>,
    asked: Vec<usize>,
    siblings: [bool; 2],
    requests: BTreeMap<usize, Request>,
    models: [VecDeque<usize>; 2],
    targets: [VecDeque<usize>; 2],
    /// Connections that were made, with the request that was written there and how many draws it is for.
    slots: BTreeMap<u32, Option<(Vec<u8>, usize)>>,
    /// Answers that were given with all draws, by what they begin with, and what was asked.
    answers: HashMap<String, Vec<u8>>,
    serial: usize,
    /// Wishes whose request is over, and the answer to it where it brought turns.
    shared: HashMap<usize, Option<String>>,
}

fn agent_plan(model: u32, seeded: bool, greedy: bool, number: usize) -> AgentPlan {
    AgentPlan {
        model,
        head: format!("{{\"model\":\"m{number}\",\"messages\":[").into_bytes(),
        constant: b"],\"max_tokens\":9".to_vec(),
        reading: ReplyOptions::default(),
        name: format!("a{number}"),
        namespace: "space".to_owned(),
        seeded,
        greedy,
    }
}

impl World {
    fn new(size: usize) -> Self {
        let mut engine = TurnEngine::default();
        assert_eq!((engine.model(true), engine.model(false)), (0, 1));
        for (number, (model, seeded, greedy)) in AGENTS.into_iter().enumerate() {
            engine.agent(agent_plan(model, seeded, greedy, number)).unwrap();
        }
        assert!(engine.agent(agent_plan(7, true, false, 0)).is_err());
        let limits = HttpLimits {
            size,
            largest: 1 << 20,
            connect: 9 * SECOND,
            accepted: 9 * SECOND,
            keep: 9 * SECOND,
            idle: 9 * SECOND,
            patience: 9 * SECOND,
            crowded: 9 * SECOND,
        };
        let mut table = ExchangeTable::new(limits);
        let origin = table.add_origin(false).unwrap();
        for (number, session) in [Vec::new(), vec!["X-Session-ID".to_owned()]].into_iter().enumerate() {
            let headers = vec![("Number".to_owned(), number.to_string())];
            let plan = TargetPlan { origin, path: format!("/{number}"), host: "h".to_owned(), headers, session };
            engine.target(&plan).unwrap();
        }
        let mut world = Self {
            engine,
            table,
            now: SECOND,
            groves: Vec::new(),
            wishes: Vec::new(),
            asked: Vec::new(),
            siblings: [true, false],
            requests: BTreeMap::new(),
            models: [VecDeque::new(), VecDeque::new()],
            targets: [VecDeque::new(), VecDeque::new()],
            slots: BTreeMap::new(),
            answers: HashMap::new(),
            serial: 0,
            shared: HashMap::new(),
        };
        for _ in 0..2 {
            world.plant();
        }
        world
    }

    /// Open a tree with four rollouts.
    fn plant(&mut self) {
        let mut tree = Tree::new();
        let root = NodeId::ROOT;
        tree.append(root, Kind::Prompt, br#"{"role":"user","content":"q"}"#, None, NameId::EMPTY).unwrap();
        let point = NodeId::new(tree.nodes() - 1);
        let mut rollouts = Vec::new();
        for draw in 0..4 {
            tree.open(point, &[0, draw], draw).unwrap();
            rollouts.push(Rollout { path: vec![0, draw], ended: false, wish: None });
        }
        let tree = Shared(Rc::new(RefCell::new(tree)));
        let number = u32::try_from(self.groves.len()).unwrap();
        let key = self.engine.open(tree.clone(), RUN, format!("t{number}").into_bytes(), number);
        self.groves.push(Grove { tree, key, rollouts, open: true });
    }

    fn ask(&mut self, tree: usize, rollout: usize, agent: u32) {
        let number = self.wishes.len();
        let grove = &mut self.groves[tree];
        let id = RolloutId::new(u32::try_from(rollout).unwrap());
        if !grove.open {
            return;
        }
        if rollout >= grove.rollouts.len() {
            assert!(self.engine.ask(grove.key, id, agent, None, number).is_err());
            return;
        }
        let one = &mut grove.rollouts[rollout];
        if one.wish.is_some() {
            return;
        }
        let found = self.engine.ask(grove.key, id, agent, None, number);
        if one.ended {
            assert!(found.is_err());
            return;
        }
        let (leaf, turns) = {
            let tree = grove.tree.0.borrow();
            let view = tree.rollout(id).unwrap();
            let path = tree.path(view.leaf).unwrap();
            let turns = path.iter().filter(|&&node| tree.node(node).unwrap().kind == Kind::Turn).count();
            (view.leaf.get(), u32::try_from(turns).unwrap())
        };
        let task = format!("t{tree}");
        // The draw that a rollout was opened for is the draw of the state in which it was opened alone.
        let (last, trunk) = (one.path[one.path.len() - 1], &one.path[..one.path.len() - 2]);
        let seed = if one.path[one.path.len() - 2] == turns {
            base_seed(RUN, task.as_bytes(), trunk, turns) + i64::from(last)
        } else {
            base_seed(RUN, task.as_bytes(), &one.path, turns)
        };
        one.wish = Some(number);
        let key = found.unwrap();
        let stage = Stage::Asked;
        self.wishes.push(Wish { key, tree, rollout, agent, leaf, turns, seed, stage, given_up: false });
        self.asked.push(number);
    }

    fn gather(&mut self) {
        self.engine.gather(self.now);
        let mut groups = Vec::<Vec<usize>>::new();
        for wish in std::mem::take(&mut self.asked) {
            let state = |&one: &usize| (self.wishes[one].tree, self.wishes[one].agent, self.wishes[one].leaf);
            match groups.iter_mut().find(|group| state(&group[0]) == state(&wish)) {
                Some(group) => group.push(wish),
                None => groups.push(vec![wish]),
            }
        }
        let mut all = Vec::<Vec<usize>>::new();
        for mut group in groups {
            group.sort_by_key(|&one| self.wishes[one].seed);
            let mut requests = Vec::<Vec<usize>>::new();
            for wish in group {
                let Wish { seed, agent, .. } = self.wishes[wish];
                let joins = |request: &Vec<usize>| self.wishes[request[request.len() - 1]].seed + 1 == seed;
                let (model, _, greedy) = AGENTS[agent as usize];
                match requests.last_mut() {
                    Some(last) if self.siblings[model as usize] && !greedy && joins(last) => last.push(wish),
                    _ => requests.push(vec![wish]),
                }
            }
            all.append(&mut requests);
        }
        // Wishes are numbered as they are asked for.
        all.sort_by_key(|request| request.iter().min().copied());
        for wishes in all {
            self.file(wishes);
        }
    }

    fn file(&mut self, wishes: Vec<usize>) {
        let Wish { tree, agent, leaf, seed, .. } = self.wishes[wishes[0]];
        let (model, seeded, greedy) = AGENTS[agent as usize];
        let tree = self.groves[tree].tree.0.borrow();
        let messages = tree.path(NodeId::new(leaf)).unwrap().into_iter().map(|node| tree.message(node).unwrap());
        let messages = messages.map(|message| String::from_utf8(message.to_vec()).unwrap()).collect::<Vec<_>>();
        let n = if wishes.len() > 1 { format!(",\"n\":{}", wishes.len()) } else { String::new() };
        let seed = if seeded { format!(",\"seed\":{seed}") } else { String::new() };
        let messages = messages.join(",");
        if greedy {
            let wish = wishes[0];
            let equal = self
                .requests
                .values_mut()
                .find(|request| self.wishes[request.wishes[0]].agent == agent && request.messages == messages);
            if let Some(request) = equal {
                request.sharing.push(wish);
                self.wishes[wish].stage = Stage::Waits;
                return;
            }
        }
        let body = format!("{{\"model\":\"m{agent}\",\"messages\":[{messages}],\"max_tokens\":9{n}{seed}}}");
        let number = self.serial;
        self.serial += 1;
        for &wish in &wishes {
            self.wishes[wish].stage = Stage::Waits;
        }
        drop(tree);
        let place = Place::Model(model);
        let (body, head) = (body.into_bytes(), String::new());
        let request = Request { wishes, sharing: Vec::new(), messages, place, body, head };
        self.requests.insert(number, request);
        self.models[model as usize].push_back(number);
    }

    fn waiting(&mut self, model: u32) {
        let keys = self.engine.waiting(model).unwrap();
        let trees = self.models[model as usize].iter().map(|one| self.wishes[self.requests[one].wishes[0]].tree);
        assert_eq!(keys, trees.map(|tree| u32::try_from(tree).unwrap()).collect::<Vec<_>>());
    }

    fn route(&mut self, model: u32, target: u32, most: usize) {
        self.engine.route(model, target, most).unwrap();
        for _ in 0..most {
            let Some(number) = self.models[model as usize].pop_front() else { break };
            self.requests.get_mut(&number).unwrap().place = Place::Target(target);
            self.targets[target as usize].push_back(number);
        }
    }

    fn send(&mut self, target: u32, most: usize) {
        let expected = most.min(self.targets[target as usize].len());
        let sent = self.engine.send(target, most, &mut self.table, 99 * SECOND, self.now).unwrap();
        assert_eq!(sent, expected);
        for number in self.targets[target as usize].drain(..sent) {
            let request = self.requests.get_mut(&number).unwrap();
            request.place = Place::Sent(target);
            let session = if target == 1 {
                format!("X-Session-ID: {:08x}\r\n", self.wishes[request.wishes[0]].tree)
            } else {
                String::new()
            };
            let length = request.body.len();
            request.head = format!(
                "POST /{target} HTTP/1.1\r\nHost: h\r\nUser-Agent: trunkline\r\n{session}Number: {target}\r\nContent-Length: {length}\r\n\r\n"
            );
        }
    }

    /// Take what waits for a model or a target out, as a driver does that sends otherwise.
    fn take(&mut self, place: Place) {
        loop {
            let (next, first) = match place {
                Place::Model(model) => (self.engine.next(model), self.models[model as usize].pop_front()),
                Place::Target(target) => (self.engine.next_for(target), self.targets[target as usize].pop_front()),
                Place::Sent(_) | Place::Handed(_) => unreachable!("what waits is taken"),
            };
            let next = next.unwrap();
            let (Some(flight), Some(number)) = (next, first) else {
                assert_eq!((next, first), (None, None));
                break;
            };
            let view = self.engine.view(flight).unwrap();
            let request = &self.requests[&number];
            let Wish { turns, seed, agent, .. } = self.wishes[request.wishes[0]];
            assert_eq!((view.turns, view.seed, view.agent), (turns, seed, agent));
            assert_eq!(view.n as usize, request.wishes.len());
            assert!(self.engine.asked(flight).unwrap() <= self.now);
            let waiters = self.engine.release(flight).unwrap();
            self.over(number, &waiters);
            assert!(self.engine.view(flight).is_err());
        }
        let unsent = self.engine.take_unsent();
        self.unsent(unsent);
    }

    /// Wishes that shared requests without turns are told, once.
    fn unsent(&mut self, unsent: Vec<Unsent<usize>>) {
        for Unsent { view, waiter, asked } in unsent {
            assert_eq!(self.shared.remove(&waiter), Some(None));
            let Wish { turns, seed, agent, .. } = self.wishes[waiter];
            assert_eq!((view.turns, view.seed, view.agent, view.n), (turns, seed, agent, 1));
            assert!(!self.wishes[waiter].given_up);
            assert!(asked <= self.now);
            self.end(waiter);
        }
    }

    /// Have what waits for a model handed out.
    fn hand(&mut self, model: u32) {
        let handed = self.engine.hand(model).unwrap();
        assert_eq!(handed.len(), self.models[model as usize].len());
        for (one, number) in handed.into_iter().zip(std::mem::take(&mut self.models[model as usize])) {
            let request = self.requests.get_mut(&number).unwrap();
            assert_eq!(one.body, request.body);
            let first = &self.wishes[request.wishes[0]];
            assert_eq!((one.key as usize, one.view.turns, one.view.seed), (first.tree, first.turns, first.seed));
            assert_eq!(self.engine.waiters(one.flight).unwrap(), request.wishes.iter().collect::<Vec<_>>());
            request.place = Place::Handed(one.flight);
        }
    }

    /// Answer, split or let go of a request that was handed out.
    fn answer(&mut self, which: usize, what: u8) {
        let handed = |(&number, request): (&usize, &Request)| match request.place {
            Place::Handed(flight) => Some((number, flight)),
            _ => None,
        };
        let handed = self.requests.iter().filter_map(handed).collect::<Vec<_>>();
        let Some(&(number, flight)) = handed.get(which % handed.len().max(1)) else { return };
        let draws = self.requests[&number].wishes.len();
        assert!(self.engine.split(flight, 0).is_err());
        assert!(self.engine.split(flight, draws).is_err());
        self.now += 1000;
        self.serial += 1;
        match what {
            0 if draws > 1 => {
                let first = self.engine.split(flight, 1).unwrap();
                let mut request = self.requests.remove(&number).unwrap();
                let rest = request.wishes.split_off(1);
                let messages = request.messages.clone();
                let (place, head, body) = (Place::Handed(flight), String::new(), Vec::new());
                let rest = Request { wishes: rest, sharing: Vec::new(), messages, place, body, head };
                request.place = Place::Handed(first);
                self.requests.insert(number, request);
                self.requests.insert(self.serial, rest);
                self.serial += 1;
            }
            1 => {
                assert!(self.engine.answer(flight, b"{}", self.now, self.now).is_err());
                let waiters = self.engine.release(flight).unwrap();
                self.over(number, &waiters);
                let unsent = self.engine.take_unsent();
                self.unsent(unsent);
            }
            _ => {
                let serial = self.serial;
                let said = |place: usize| json!({"role": "assistant", "content": format!("{serial}-{place}")});
                let choice = |place| json!({"index": place, "message": said(place), "finish_reason": "stop"});
                let body = json!({"choices": (0..draws).map(choice).collect::<Vec<_>>()}).to_string();
                for turns in self.engine.answer(flight, body.as_bytes(), self.now, self.now).unwrap() {
                    self.answered(turns.sent, serial, turns.landed.turns);
                }
            }
        }
    }

    /// What was answered is on the tree.
    fn answered(&mut self, sent: bool, serial: usize, turns: Vec<(usize, bool, AppendedChoice)>) {
        if !sent {
            return self.landed_shared(&turns);
        }
        let waiters = turns.iter().map(|&(waiter, given_up, _)| (waiter, given_up)).collect::<Vec<_>>();
        let number = self.of(&waiters);
        for (place, (waiter, given_up, appended)) in turns.into_iter().enumerate() {
            let Wish { tree, rollout, .. } = self.wishes[waiter];
            match appended {
                AppendedChoice::Turn(node, _) => {
                    let core = self.groves[tree].tree.0.borrow();
                    let message: Value = serde_json::from_slice(core.message(node).unwrap()).unwrap();
                    assert_eq!(message["content"], format!("{serial}-{place}"));
                }
                AppendedChoice::Fault(_) => assert!(given_up && self.groves[tree].rollouts[rollout].ended),
            }
        }
        let sharing = self.requests[&number].sharing.clone();
        self.over(number, &waiters);
        for wish in sharing {
            self.shared.insert(wish, Some(serial.to_string()));
        }
    }

    /// Everyone who waits for a request is told, once.
    fn over(&mut self, number: usize, waiters: &[(usize, bool)]) {
        let request = self.requests.remove(&number).unwrap();
        for &wish in &request.sharing {
            self.shared.insert(wish, None);
        }
        let expected = request.wishes.iter().map(|&wish| (wish, self.wishes[wish].given_up)).collect::<Vec<_>>();
        assert_eq!(waiters, expected);
        for wish in request.wishes {
            self.end(wish);
        }
    }

    fn end(&mut self, wish: usize) {
        let Wish { tree, rollout, .. } = self.wishes[wish];
        assert_ne!(self.wishes[wish].stage, Stage::Over);
        self.wishes[wish].stage = Stage::Over;
        self.groves[tree].rollouts[rollout].wish = None;
    }

    fn abandon(&mut self, wish: usize) {
        let Wish { key, stage, given_up, .. } = self.wishes[wish];
        if stage == Stage::Over || given_up {
            return;
        }
        let held = |request: &&mut Request| request.wishes.contains(&wish) || request.sharing.contains(&wish);
        if let Some(request) = self.requests.values_mut().find(held) {
            if !request.sharing.is_empty() {
                // The request goes on for equal ones.
                if let Some(place) = request.sharing.iter().position(|&one| one == wish) {
                    request.sharing.remove(place);
                } else {
                    let next = request.sharing.remove(0);
                    request.wishes[0] = next;
                    if matches!(request.place, Place::Sent(_) | Place::Handed(_)) {
                        self.wishes[next].seed = self.wishes[wish].seed;
                    } else {
                        let [old, new] = [wish, next].map(|one| format!("\"seed\":{}}}", self.wishes[one].seed));
                        let body = String::from_utf8(std::mem::take(&mut request.body)).unwrap();
                        request.body = body.replace(&old, &new).into_bytes();
                    }
                }
                let given_up = self.engine.give_up(key).unwrap();
                assert_eq!(given_up, GivenUp::Unsent(vec![wish], None));
                self.wishes[wish].given_up = true;
                return self.end(wish);
            }
            if let Place::Handed(flight) = request.place {
                return self.give_up_handed(wish, flight);
            }
        }
        let (waiters, target) = self.engine.abandon(key, &mut self.table, self.now).unwrap();
        self.wishes[wish].given_up = true;
        // One that shared a request without turns, and has not been told so, waits alone.
        let told_later = self.shared.remove(&wish).is_some();
        if stage == Stage::Asked || told_later {
            self.asked.retain(|&one| one != wish);
            self.end(wish);
            assert_eq!((waiters, target), (vec![wish], None));
            return;
        }
        let of = |request: &Request| request.wishes.contains(&wish);
        let Some((&number, request)) = self.requests.iter().find(|(_, request)| of(request)) else {
            unreachable!("a wish that waits has a request");
        };
        if !request.wishes.iter().all(|&one| self.wishes[one].given_up) {
            assert_eq!((waiters, target), (Vec::new(), None));
            return;
        }
        let expected = match request.place {
            Place::Model(model) => {
                self.models[model as usize].retain(|&one| one != number);
                None
            }
            Place::Target(target) => {
                self.targets[target as usize].retain(|&one| one != number);
                Some((target, false))
            }
            Place::Sent(target) => Some((target, true)),
            Place::Handed(_) => unreachable!("it is given up otherwise"),
        };
        assert_eq!(target, expected);
        let asked = waiters.iter().map(|&waiter| (waiter, true)).collect::<Vec<_>>();
        self.over(number, &asked);
    }

    /// A wish whose request was handed out is given up; the request is let go of once nothing waits for it.
    fn give_up_handed(&mut self, wish: usize, flight: usize) {
        let given_up = self.engine.give_up(self.wishes[wish].key).unwrap();
        self.wishes[wish].given_up = true;
        let of = |(_, request): &(&usize, &Request)| request.place == Place::Handed(flight);
        let (&number, request) = self.requests.iter().find(of).unwrap();
        if !request.wishes.iter().all(|&one| self.wishes[one].given_up) {
            assert_eq!(given_up, GivenUp::Alone);
            return;
        }
        assert_eq!(given_up, GivenUp::Sent(flight));
        let waiters = self.engine.release(flight).unwrap();
        self.over(number, &waiters);
    }

    fn recall(&mut self, model: u32) {
        let recalled = self.engine.recall(model, &mut self.table, self.now).unwrap();
        let sent = self.requests.iter().filter(|(_, request)| {
            let agent = self.wishes[request.wishes[0]].agent;
            matches!(request.place, Place::Sent(_)) && AGENTS[agent as usize].0 == model
        });
        assert_eq!(recalled.len(), sent.count());
        for one in recalled {
            let number = self.of(&one.waiters);
            assert_eq!(self.requests[&number].place, Place::Sent(one.target));
            self.over(number, &one.waiters);
        }
    }

    fn of(&self, waiters: &[(usize, bool)]) -> usize {
        let found = self.requests.iter().find(|(_, request)| request.wishes.contains(&waiters[0].0));
        *found.expect("a request that is there").0
    }

    /// Let a connection with a request bring something, or break.
    fn bring(&mut self, slot: usize, what: u8) {
        let busy = self.slots.iter().filter_map(|(&slot, last)| Some((slot, last.clone()?))).collect::<Vec<_>>();
        let Some((slot, (sent, n))) = busy.get(slot % busy.len().max(1)).cloned() else { return };
        self.serial += 1;
        let serial = self.serial;
        let choices = match what {
            0..=5 => n + usize::from(what == 0),
            6 => n - 1,
            _ => n,
        };
        let said = |place: usize| json!({"role": "assistant", "content": format!("{serial}-{place}")});
        let choice = |place| json!({"index": place, "message": said(place), "finish_reason": "stop"});
        let drawn = (0..choices).map(choice).collect::<Vec<_>>();
        let mut body = json!({"choices": drawn, "usage": {"prompt_tokens": 9, "completion_tokens": n}}).to_string();
        let status = if what == 7 { 500 } else { 200 };
        match what {
            8 => body.truncate(7),
            9 => {
                self.table.lost(slot, Some("ResetError"), self.now);
                self.slots.remove(&slot);
                return;
            }
            10 => {
                self.table.feed(slot, b"SSH-2.0-x\r\n\r\n", self.now);
                return;
            }
            _ => {}
        }
        if what <= 5 {
            self.answers.insert(serial.to_string(), sent);
        }
        let length = body.len();
        let data = format!("HTTP/1.1 {status} x\r\nContent-Length: {length}\r\n\r\n{body}");
        let cut = if what == 5 { data.len() / 2 } else { 0 };
        self.table.feed(slot, &data.as_bytes()[..cut], self.now);
        self.table.feed(slot, &data.as_bytes()[cut..], self.now);
        *self.slots.get_mut(&slot).unwrap() = None;
    }

    /// Do what a driver does in a pass, until nothing follows.
    fn pass(&mut self, refuse: bool) {
        for _ in 0..64 {
            self.now += 1000;
            self.table.settle(self.now);
            let Passed { landed, faulted, unsent } = self.engine.pass(&mut self.table).unwrap();
            let moved = !(landed.is_empty() && faulted.is_empty());
            for one in landed {
                self.landed(one.target, one.sent, one.landed.turns);
            }
            for one in faulted {
                if let Outcome::Answer(answer) = &one.outcome {
                    let body = serde_json::from_slice::<Value>(&answer.body).unwrap_or_default();
                    let choices = body["choices"].as_array().map_or(0, Vec::len);
                    assert!(answer.status == 500 || choices < one.waiters.len());
                }
                let number = self.of(&one.waiters);
                assert_eq!(self.requests[&number].place, Place::Sent(one.target));
                self.over(number, &one.waiters);
            }
            self.unsent(unsent);
            let actions = self.table.take_actions();
            let acted = !actions.is_empty();
            for write in actions.writes {
                assert!(is_ours(write.token));
                let mut out = Vec::new();
                self.engine.request(write.token, &self.table, &mut out).unwrap();
                let sent = self.requests.values().find(|request| {
                    matches!(request.place, Place::Sent(_)) && out == [request.head.as_bytes(), &request.body].concat()
                });
                let n = sent.expect("a request that was sent").wishes.len();
                self.slots.insert(write.slot, Some((out, n)));
            }
            let (opens, mut closes) = (actions.opens, actions.closes);
            for (slot, _) in opens {
                let unwanted = closes.iter().position(|&one| one == slot);
                if let Some(place) = unwanted {
                    closes.remove(place);
                }
                if refuse || unwanted.is_some() {
                    if let Some(token) = self.table.unopened(slot, self.now) {
                        let faulted = self.engine.refused(token, self.now).unwrap();
                        let number = self.of(&faulted.waiters);
                        self.over(number, &faulted.waiters);
                    }
                } else {
                    self.table.opened(slot, self.now);
                    self.slots.insert(slot, None);
                }
            }
            for slot in closes {
                self.slots.remove(&slot);
                self.table.lost(slot, None, self.now);
            }
            if !moved && !acted {
                return;
            }
        }
        panic!("passes without end");
    }

    fn landed(&mut self, target: u32, sent: bool, turns: Vec<(usize, bool, AppendedChoice)>) {
        if !sent {
            return self.landed_shared(&turns);
        }
        let waiters = turns.iter().map(|&(waiter, given_up, _)| (waiter, given_up)).collect::<Vec<_>>();
        let number = self.of(&waiters);
        let request = &self.requests[&number];
        assert_eq!(request.place, Place::Sent(target));
        let written = [request.head.as_bytes(), &request.body].concat();
        let mut serial = None;
        for (place, (waiter, given_up, appended)) in turns.into_iter().enumerate() {
            let Wish { tree, rollout, leaf, .. } = self.wishes[waiter];
            let grove = &self.groves[tree];
            let core = grove.tree.0.borrow();
            match appended {
                AppendedChoice::Turn(node, _) => {
                    let message: Value = serde_json::from_slice(core.message(node).unwrap()).unwrap();
                    let (answer, choice) = message["content"].as_str().unwrap().split_once('-').unwrap();
                    assert_eq!(choice, place.to_string());
                    assert_eq!(serial.get_or_insert(answer.to_owned()), answer);
                    assert_eq!(core.node(node).unwrap().parent.get(), leaf);
                    let id = RolloutId::new(u32::try_from(rollout).unwrap());
                    assert_eq!(core.rollout(id).unwrap().leaf, node);
                }
                AppendedChoice::Fault(_) => assert!(given_up && grove.rollouts[rollout].ended),
            }
        }
        if let Some(serial) = &serial {
            assert_eq!(self.answers.remove(serial), Some(written), "an answer is sent once, for what it was for");
        }
        let sharing = self.requests[&number].sharing.clone();
        self.over(number, &waiters);
        for wish in sharing {
            self.shared.insert(wish, Some(serial.clone().unwrap_or_default()));
        }
    }

    /// The reply to an equal request is a turn.
    fn landed_shared(&mut self, turns: &[(usize, bool, AppendedChoice)]) {
        let [(wish, given_up, appended)] = turns else { panic!("one draw") };
        let serial = self.shared.remove(wish).expect("a request that was shared").expect("one that brought turns");
        let Wish { tree, rollout, leaf, .. } = self.wishes[*wish];
        let grove = &self.groves[tree];
        match appended {
            AppendedChoice::Turn(node, _) => {
                let core = grove.tree.0.borrow();
                let message: Value = serde_json::from_slice(core.message(*node).unwrap()).unwrap();
                let said = message["content"].as_str().unwrap();
                // Where the turn of the first is a fault, as its rollout has ended, its text is not known.
                assert!(serial.is_empty() || said == format!("{serial}-0"));
                assert_eq!(core.node(*node).unwrap().parent.get(), leaf);
            }
            AppendedChoice::Fault(_) => assert!(*given_up && grove.rollouts[rollout].ended),
        }
        assert_eq!(*given_up, self.wishes[*wish].given_up);
        self.end(*wish);
    }

    /// End a rollout that waits for nothing any more.
    fn finish(&mut self, tree: usize, rollout: usize) {
        let grove = &mut self.groves[tree];
        let Some(one) = grove.rollouts.get_mut(rollout) else { return };
        if one.ended || one.wish.is_some_and(|wish| !self.wishes[wish].given_up) {
            return;
        }
        one.ended = true;
        let id = RolloutId::new(u32::try_from(rollout).unwrap());
        grove.tree.0.borrow_mut().close(id, Termination::Cancelled, None, None).unwrap();
    }

    /// Open one more draw where a rollout is.
    fn fork(&mut self, tree: usize, rollout: usize) {
        let grove = &mut self.groves[tree];
        let Some(one) = grove.rollouts.get(rollout) else { return };
        if one.wish.is_some() {
            return;
        }
        let mut core = grove.tree.0.borrow_mut();
        let view = core.rollout(RolloutId::new(u32::try_from(rollout).unwrap())).unwrap();
        let (leaf, turns) = (view.leaf, view.turns);
        if one.path[one.path.len() - 2] == turns {
            return;
        }
        let draw = u32::try_from(grove.rollouts.len()).unwrap();
        let path = [&*one.path, &[turns, draw]].concat();
        if core.open(leaf, &path, 0).is_ok() {
            grove.rollouts.push(Rollout { path, ended: false, wish: None });
        }
    }

    /// Close a tree for which nothing waits.
    fn close(&mut self, tree: usize) {
        let grove = &mut self.groves[tree];
        if !grove.open || grove.rollouts.iter().any(|rollout| rollout.wish.is_some()) {
            return;
        }
        grove.open = false;
        self.engine.close(grove.key).unwrap();
        assert!(self.engine.close(grove.key).is_err());
        self.plant();
    }

    /// The engine knows what the lists know.
    fn check(&self) {
        let count = |is: fn(&Place) -> bool| self.requests.values().filter(|request| is(&request.place)).count();
        let sent = count(|place| matches!(place, Place::Sent(_)));
        assert_eq!(self.engine.in_flight().0, sent + count(|place| matches!(place, Place::Handed(_))));
        assert!(self.table.len() <= sent, "an answer that has come is not there any more");
        let waits = self.wishes.iter().enumerate().filter(|(_, wish)| wish.stage == Stage::Waits);
        let held = self.requests.values().map(|request| request.wishes.len() + request.sharing.len()).sum::<usize>();
        assert_eq!(waits.count(), held + self.shared.len());
    }

    /// Answer everything, so that no wish is left.
    fn drain(&mut self) {
        self.gather();
        for model in 0..2 {
            self.waiting(model);
            self.route(model, model, usize::MAX);
        }
        for target in 0..2 {
            self.send(target, usize::MAX);
        }
        for _ in 0..4 * self.wishes.len() + 4 {
            self.pass(false);
            self.bring(0, 1);
            self.answer(0, 2);
        }
        self.pass(false);
        assert!(self.wishes.iter().all(|wish| wish.stage == Stage::Over), "a wish is lost");
        assert!(self.requests.is_empty());
        assert!(self.shared.is_empty());
        assert_eq!(self.engine.in_flight(), (0, None));
        for grove in &self.groves {
            grove.tree.0.borrow().check().unwrap();
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Ask(usize, usize, u32),
    Gather,
    Waiting(u32),
    Route(u32, u32, usize),
    Send(u32, usize),
    Take(Place),
    Abandon(usize),
    Recall(u32),
    Bring(usize, u8),
    Pass(bool),
    Finish(usize, usize),
    Fork(usize, usize),
    Close(usize),
    OneDrawEach(u32),
    Hand(u32),
    Answer(usize, u8),
}

fn step() -> impl Strategy<Value = Step> {
    let (two, trees, rollouts) = (0..2_u32, any::<usize>(), 0..6_usize);
    prop_oneof![
        9 => (trees, rollouts.clone(), 0..4_u32).prop_map(|(tree, rollout, agent)| Step::Ask(tree, rollout, agent)),
        4 => Just(Step::Gather),
        1 => two.clone().prop_map(Step::Waiting),
        5 => (two.clone(), two.clone(), 0..4_usize).prop_map(|(model, target, most)| Step::Route(model, target, most)),
        5 => (two.clone(), 0..4_usize).prop_map(|(target, most)| Step::Send(target, most)),
        1 => (two.clone(), any::<bool>()).prop_map(|(key, model)| {
            Step::Take(if model { Place::Model(key) } else { Place::Target(key) })
        }),
        4 => any::<usize>().prop_map(Step::Abandon),
        1 => two.clone().prop_map(Step::Recall),
        8 => (any::<usize>(), 0..11_u8).prop_map(|(slot, what)| Step::Bring(slot, what)),
        8 => prop::bool::weighted(0.1).prop_map(Step::Pass),
        1 => (trees, rollouts.clone()).prop_map(|(tree, rollout)| Step::Finish(tree, rollout)),
        2 => (trees, rollouts).prop_map(|(tree, rollout)| Step::Fork(tree, rollout)),
        1 => two.clone().prop_map(Step::Hand),
        3 => (any::<usize>(), 0..6_u8).prop_map(|(which, what)| Step::Answer(which, what)),
        1 => trees.prop_map(Step::Close),
        1 => (0..40_u32).prop_map(Step::OneDrawEach),
    ]
}

proptest! {
    #[test]
    fn no_wish_is_lost_or_answered_twice(size in 1..4_usize, steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new(size);
        for step in steps {
            let trees = world.groves.len();
            match step {
                Step::Ask(tree, rollout, agent) => world.ask(tree % trees, rollout, agent),
                Step::Gather => world.gather(),
                Step::Waiting(model) => world.waiting(model),
                Step::Route(model, target, most) => world.route(model, target, most),
                Step::Send(target, most) => world.send(target, most),
                Step::Take(place) => world.take(place),
                Step::Abandon(wish) => if !world.wishes.is_empty() { world.abandon(wish % world.wishes.len()) },
                Step::Recall(model) => world.recall(model),
                Step::Hand(model) => world.hand(model),
                Step::Answer(which, what) => world.answer(which, what),
                Step::Bring(slot, what) => world.bring(slot, what),
                Step::Pass(refuse) => world.pass(refuse),
                Step::Finish(tree, rollout) => world.finish(tree % trees, rollout),
                Step::Fork(tree, rollout) => world.fork(tree % trees, rollout),
                Step::Close(tree) => world.close(tree % trees),
                Step::OneDrawEach(model) => match world.siblings.get_mut(model as usize) {
                    Some(siblings) => {
                        *siblings = false;
                        world.engine.one_draw_each(model).unwrap();
                    }
                    None => prop_assert!(world.engine.one_draw_each(model).is_err()),
                },
            }
            world.check();
        }
        world.drain();
    }
}

#[test]
fn seeds_are_those_of_every_earlier_version() {
    assert_eq!(base_seed(1, b"q0", &[], 0), 169_785_039);
    assert_eq!(base_seed(-5, "täsk".as_bytes(), &[0, 3, 2, 1], 4), 1_569_783_599);
    assert_eq!(next_seed(1, b"q0", &[0, 7], 0), 169_785_039 + 7);
    assert_eq!(next_seed(1, b"q0", &[0, 7], 1), base_seed(1, b"q0", &[0, 7], 1));
    assert_eq!(next_seed(-5, "täsk".as_bytes(), &[0, 3, 2, 1, 4, 6], 4), 1_569_783_599 + 6);
}

#[test]
fn what_does_not_exist_is_refused() {
    let mut world = World::new(1);
    assert!(world.engine.ask(99, RolloutId::new(0), 0, None, 0).is_err());
    assert!(world.engine.ask(world.groves[0].key, RolloutId::new(0), 9, None, 0).is_err());
    assert!(world.engine.waiting(9).is_err());
    assert!(world.engine.next(9).is_err());
    assert!(world.engine.next_for(9).is_err());
    assert!(world.engine.route(0, 9, 1).is_err());
    assert!(world.engine.send(9, 1, &mut world.table, SECOND, 0).is_err());
    assert!(world.engine.view(9).is_err());
    assert!(world.engine.release(9).is_err());
    assert!(world.engine.give_up(9).is_err());
    assert!(world.engine.refused(9, 0).is_err());
    assert!(world.engine.abandon(9, &mut world.table, 0).is_err());
    assert!(world.engine.body(9, &mut Vec::new()).is_err());
    assert!(world.engine.recall(9, &mut world.table, 0).unwrap().is_empty());
    assert!(!world.engine.forget(9));
}

#[test]
fn an_agent_is_forgotten_once_nothing_waits_for_it_and_its_number_is_anothers() {
    let mut world = World::new(1);
    let (tree, rollout) = (world.groves[0].key, RolloutId::new(0));
    let reply = br#"{"choices":[{"message":{"content":"a"}}]}"#;
    for space in ["one", "two"] {
        let plan = AgentPlan { namespace: space.to_owned(), ..agent_plan(1, true, false, 9) };
        let agent = world.engine.agent(plan).unwrap();
        assert_eq!(agent as usize, AGENTS.len());
        world.engine.ask(tree, rollout, agent, None, 0).unwrap();
        world.engine.gather(0);
        assert!(!world.engine.forget(agent));
        let flight = world.engine.next(1).unwrap().unwrap();
        world.engine.land(flight, reply, 0, 0).unwrap();
        let grown = world.groves[0].tree.0.borrow();
        let node = grown.node(grown.rollout(rollout).unwrap().leaf).unwrap();
        assert_eq!(node.namespace, space);
        drop(grown);
        assert!(world.engine.forget(agent));
        assert!(world.engine.ask(tree, rollout, agent, None, 0).is_err());
    }
}
