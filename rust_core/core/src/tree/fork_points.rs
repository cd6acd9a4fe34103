//! States: nodes at which the model moves next, and what the draws taken there are called.

use crate::error::{Error, Result};
use crate::id::{NameId, NodeId, RolloutId};
use crate::tree::Tree;
use crate::tree::nodes::Kind;

/// A state of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForkPoint {
    /// Fork path of the rollout that came here first, in the order they were opened; empty before the first turn.
    pub path: Vec<u32>,
    /// Model turns on the path to it.
    pub turn: u32,
    /// The next free draw. The first one of a state after a turn belongs to the rollout that came here.
    pub draw: u32,
    /// Subgroup of that rollout; nothing before the first turn.
    pub subgroup: Option<u32>,
}

impl Tree {
    /// The state at a node, for a fork there.
    ///
    /// A node is a state if a model turn follows it on the path of a rollout, if it is where a rollout stands that grows
    /// or was cut off, or if it ends the prompt. What any other rollout ended with is none: nothing forks after that.
    ///
    /// So a turn is a state as well, where nothing was observed before the next one: programs have several ask in a row.
    /// Where a rollout that is no program's stands at a turn, the caller has to know that its calls have not been made.
    ///
    /// # Errors
    /// If the node does not exist or is no state.
    pub fn state(&self, id: NodeId) -> Result<ForkPoint> {
        self.known_node(id)?;
        if !self.is_state(id) {
            return Err(Error::NoState { node: id.get() });
        }
        let turn = self.nodes.turns(id);
        let first = self.first_through(id).filter(|_| turn > 0);
        let path = first.map_or(&[][..], |first| self.rollouts.path(first));
        let taken = self.rollouts.last_draw(&[path, &[turn]].concat());
        let draw = taken.map_or(0, |last| self.rollouts.draw(last).saturating_add(1)).max(u32::from(turn > 0));
        Ok(ForkPoint { path: path.into(), turn, draw, subgroup: first.map(|first| self.rollouts.subgroup(first)) })
    }

    /// Open rollouts at a state, its next draws, behind a message where there is one to put in; the id of the first.
    ///
    /// They belong to a subgroup, without one to that of the state, and before the first turn each to one of its own.
    ///
    /// # Errors
    /// As of `state`; if the bytes are no message; if no draw is left.
    pub fn fork(&mut self, id: NodeId, n: u32, message: Option<&[u8]>, subgroup: Option<u32>) -> Result<RolloutId> {
        let ForkPoint { mut path, turn, draw, subgroup: before } = self.state(id)?;
        let point = match message {
            Some(message) => self.append(id, Kind::Message, message, None, NameId::EMPTY)?,
            None => id,
        };
        let first = self.rollouts.count();
        path.extend([turn, draw]);
        for place in 0..n {
            let draw = draw.saturating_add(place);
            if let Some(last) = path.last_mut() {
                *last = draw;
            }
            self.open(point, &path, subgroup.or(before).unwrap_or(draw))?;
        }
        Ok(RolloutId::new(first))
    }

    fn is_state(&self, id: NodeId) -> bool {
        // Messages that were put in change nothing about the state that they follow.
        for id in self.nodes.to_root(id) {
            match self.nodes.kind(id) {
                Kind::Root => return false,
                Kind::Prompt | Kind::Message if self.nodes.turns(id) == 0 => {
                    return !self.nodes.has_child(id, Kind::Prompt);
                }
                _ if self.nodes.has_child(id, Kind::Turn) || self.visits.stands(id) => return true,
                Kind::Message => (),
                _ => return false,
            }
        }
        false
    }

    /// The rollout that passes a node and was opened first; where messages were put in that none has seen, before them.
    fn first_through(&self, id: NodeId) -> Option<RolloutId> {
        for id in self.nodes.to_root(id) {
            let first = self.visits.first(id);
            if first.is_some() || self.nodes.kind(id) != Kind::Message {
                return first;
            }
        }
        None
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]
mod tests {
    use super::*;
    use crate::tree::termination::Termination;
    use crate::wire::op::Call;

    fn call() -> Call<'static> {
        Call::default()
    }

    /// A prompt, and a rollout of two steps that ended with a third turn.
    fn chain() -> (Tree, NodeId, [NodeId; 5]) {
        let mut tree = Tree::new();
        let prompt = tree.append(NodeId::ROOT, Kind::Prompt, b"{\"p\":0}", None, NameId::EMPTY).unwrap();
        let rollout = tree.open(prompt, &[0, 0], 4).unwrap();
        let mut nodes = Vec::new();
        for step in 0..5 {
            let message = format!("{{\"m\":{step}}}");
            nodes.push(match step % 2 {
                0 => tree.turn(rollout, message.as_bytes(), None, call()).unwrap(),
                _ => tree.observe(rollout, message.as_bytes(), None, NameId::EMPTY, 0, false).unwrap(),
            });
        }
        tree.close(rollout, Termination::Answer, Some("a"), None).unwrap();
        (tree, prompt, nodes.try_into().unwrap())
    }

    #[test]
    fn a_state_is_named_by_the_first_rollout_there_and_counts_its_draws() {
        let (mut tree, prompt, nodes) = chain();
        let state = |path: &[u32], turn, draw, subgroup| ForkPoint { path: path.into(), turn, draw, subgroup };
        assert_eq!(tree.state(prompt).unwrap(), state(&[], 0, 1, None));
        assert_eq!(tree.state(nodes[1]).unwrap(), state(&[0, 0], 1, 1, Some(4)));
        assert_eq!(tree.state(nodes[3]).unwrap(), state(&[0, 0], 2, 1, Some(4)));
        tree.open(nodes[1], &[0, 0, 1, 1], 4).unwrap();
        tree.open(prompt, &[0, 1], 5).unwrap();
        assert_eq!(tree.state(prompt).unwrap().draw, 2);
        assert_eq!(tree.state(nodes[1]).unwrap().draw, 2);
    }

    #[test]
    fn a_fork_opens_the_next_draws_of_a_state() {
        let (mut tree, prompt, nodes) = chain();
        assert_eq!(tree.fork(prompt, 2, None, None).unwrap(), RolloutId::new(1));
        assert_eq!(tree.fork(nodes[1], 1, Some(b"{\"say\":1}"), None).unwrap(), RolloutId::new(3));
        assert_eq!(tree.fork(nodes[1], 2, None, Some(9)).unwrap(), RolloutId::new(4));
        let found: Vec<_> = (1..6)
            .map(RolloutId::new)
            .map(|one| (tree.rollouts.path(one).to_vec(), tree.rollouts.subgroup(one)))
            .collect();
        let wanted: [(&[u32], u32); 5] =
            [(&[0, 1], 1), (&[0, 2], 2), (&[0, 0, 1, 1], 4), (&[0, 0, 1, 2], 9), (&[0, 0, 1, 3], 9)];
        assert_eq!(found, wanted.map(|(path, group)| (path.to_vec(), group)));
        assert!(tree.fork(nodes[4], 1, Some(b"{}"), None).is_err(), "it is no state, and nothing was put in");
        assert_eq!(tree.nodes.count(), 8);
        tree.check().unwrap();
    }

    #[test]
    fn nothing_forks_after_what_ended_a_rollout() {
        let (mut tree, prompt, nodes) = chain();
        for node in [NodeId::ROOT, nodes[0], nodes[4]] {
            assert!(tree.state(node).is_err(), "{node:?}");
        }
        for (draw, termination, goes_on) in
            [(1, Termination::MaxTurns, false), (2, Termination::Censored, true), (3, Termination::Cancelled, true)]
        {
            let rollout = tree.open(prompt, &[0, draw], 0).unwrap();
            tree.turn(rollout, format!("{{\"t\":{draw}}}").as_bytes(), None, call()).unwrap();
            let seen = tree.observe(rollout, b"{\"o\":1}", None, NameId::EMPTY, 0, false).unwrap();
            assert!(tree.state(seen).is_ok(), "a rollout that grows stands there");
            tree.close(rollout, termination, None, None).unwrap();
            assert_eq!(tree.state(seen).is_ok(), goes_on, "{termination:?}");
        }
    }

    #[test]
    fn a_turn_is_a_state_where_another_one_follows_it_or_a_rollout_was_cut_off() {
        let mut tree = Tree::new();
        let prompt = tree.append(NodeId::ROOT, Kind::Prompt, b"{\"p\":0}", None, NameId::EMPTY).unwrap();
        let rollout = tree.open(prompt, &[0, 0], 4).unwrap();
        let one = tree.turn(rollout, b"{\"t\":1}", None, call()).unwrap();
        let two = tree.turn(rollout, b"{\"t\":2}", None, call()).unwrap();
        assert!(tree.state(two).is_ok(), "a rollout that grows stands there");
        tree.close(rollout, Termination::Answer, Some("a"), None).unwrap();
        let state = |turn, draw| ForkPoint { path: vec![0, 0], turn, draw, subgroup: Some(4) };
        assert_eq!(tree.state(one).unwrap(), state(1, 1));
        assert!(tree.state(two).is_err(), "it ended a rollout");
        let fork = tree.open(one, &[0, 0, 1, 1], 4).unwrap();
        let seen = tree.observe(fork, b"{\"o\":1}", None, NameId::EMPTY, 0, false).unwrap();
        assert_eq!((tree.state(one).unwrap(), tree.state(seen).unwrap().turn), (state(1, 2), 1));
        let cut = tree.open(one, &[0, 0, 1, 2], 4).unwrap();
        let last = tree.turn(cut, b"{\"t\":3}", None, call()).unwrap();
        tree.close(cut, Termination::Censored, None, None).unwrap();
        assert_eq!(tree.state(last).unwrap().path, [0, 0, 1, 2]);
    }

    #[test]
    fn draws_after_a_message_to_the_model_are_draws_of_the_prompt() {
        let (mut tree, prompt, nodes) = chain();
        let hint = tree.append(prompt, Kind::Message, b"{\"h\":1}", None, NameId::EMPTY).unwrap();
        assert_eq!(tree.state(hint).unwrap(), ForkPoint { path: Vec::new(), turn: 0, draw: 1, subgroup: None });
        assert!(tree.state(prompt).is_ok());
        let later = tree.append(nodes[1], Kind::Message, b"{\"h\":2}", None, NameId::EMPTY).unwrap();
        assert_eq!(tree.state(later).unwrap(), ForkPoint { path: vec![0, 0], turn: 1, draw: 1, subgroup: Some(4) });
        let deep = (0..200_000)
            .fold(later, |above, _| tree.append(above, Kind::Message, b"{\"h\":4}", None, NameId::EMPTY).unwrap());
        assert_eq!(tree.state(deep), tree.state(later), "however many messages follow one another");
        let never = tree.append(nodes[4], Kind::Message, b"{\"h\":3}", None, NameId::EMPTY).unwrap();
        assert!(tree.state(never).is_err(), "a message changes nothing about what ended");
    }
}
