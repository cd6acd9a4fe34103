//! Every invariant of a tree, walked. Slow on purpose: it trusts nothing that was kept incrementally.

use crate::error::{Error, Finding, Result};
use crate::id::{NameId, NodeId, RolloutId};
use crate::tree::nodes::{Kind, NodeKey};
use crate::tree::statistics::Totals;
use crate::tree::{Tree, digest};

impl Tree {
    /// Walk every invariant.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first that fails.
    pub fn check(&self) -> Result<()> {
        let stores = self.names.check().and_then(|()| self.fragments.check());
        stores
            .and_then(|()| self.runs.check())
            .and_then(|()| self.contexts.check(&self.fragments, &self.runs))
            .and_then(|()| self.nodes.calls().check(self.names.count(), self.contexts.count()))
            .and_then(|()| self.reports.check(self.nodes.count()))
            .and_then(|()| self.rollouts.check_paths())
            .and_then(|()| self.nodes.ids().try_for_each(|id| self.check_node(id)))
            .and_then(|()| self.check_links())
            .and_then(|()| self.check_sums())
            .and_then(|()| self.rollouts.ids().try_for_each(|id| self.check_rollout(id)))
            .and_then(|()| self.visits.check(&self.nodes, &self.rollouts))
            .and_then(|()| self.check_lanes())
            .and_then(|()| self.check_tokens())
            .map_err(Error::Invariant)
    }

    fn check_node(&self, id: NodeId) -> Finding {
        let nodes = &self.nodes;
        let at = id.get();
        let holds = |fact: bool, what: &str| if fact { Ok(()) } else { Err(format!("node {at}: {what}")) };
        let run = nodes.run(id);
        holds(run.is_none_or(|run| run.get() < self.runs.count()), "has tokens that do not exist")?;
        let row = nodes.row(id);
        holds(row.is_none_or(|row| row < nodes.calls().count()), "has a call that does not exist")?;
        let turn = nodes.kind(id) == Kind::Turn;
        holds(turn == row.is_some(), "has a call and is no model turn, or is one and has none")?;
        let key = nodes.key(id, &self.runs);
        if id == NodeId::ROOT {
            let empty = key == NodeKey::plain(id, Kind::Root, NameId::EMPTY) && run.is_none();
            holds(empty, "is not an empty root")?;
            holds(nodes.depth(id) == 0, "is the root and not at depth 0")?;
            holds(nodes.turns(id) == 0, "is the root and has turns")?;
            return holds(nodes.digest(id) == digest::root(), "has the wrong digest");
        }
        holds(key.parent < id, "has a parent that is not older")?;
        holds(key.kind != Kind::Root, "is a second root")?;
        holds(nodes.find(&key, &self.runs) == Some(id), "is not what its merge key finds")?;
        holds(nodes.depth(id) == nodes.depth(key.parent) + 1, "is not one deeper than its parent")?;
        let turns = nodes.turns(key.parent) + u32::from(turn);
        holds(nodes.turns(id) == turns, "has the wrong count of turns")?;
        holds(key.agent.get() < self.names.count(), "uses a name that does not exist")?;
        let fragment = nodes.fragment(id).is_some_and(|fragment| fragment.get() < self.fragments.count());
        holds(fragment, "has no message")?;
        let said = nodes.fragment(id).map_or(0, |fragment| self.fragments.get(fragment).len() as u64);
        holds(nodes.bytes(id) == nodes.bytes(key.parent) + said, "has the wrong count of bytes")?;
        let some = run.is_some_and(|run| self.runs.len(run) > 0);
        holds(some || !nodes.keyed(id), "is known by tokens that it does not have")?;
        holds(run.is_none() || nodes.keyed(id) || !turn, "is a model turn and was given its tokens later")?;
        holds(nodes.digest(id) == digest::node(&self.content(&key)), "has the wrong digest")
    }

    /// Every node but the root is listed by its parent exactly once, in order of age.
    fn check_links(&self) -> Finding {
        let mut listed = 0u32;
        for id in self.nodes.ids() {
            let mut last = None;
            for child in self.nodes.children(id) {
                if child.get() >= self.nodes.count() || self.nodes.parent(child) != id || last >= Some(child) {
                    return Err(format!("node {}: the list of its children is broken at {}", id.get(), child.get()));
                }
                last = Some(child);
                listed += 1;
            }
            if self.nodes.last_child(id) != last {
                return Err(format!("node {}: its last child is not the last of its children", id.get()));
            }
        }
        if listed + 1 == self.nodes.count() {
            Ok(())
        } else {
            Err(format!("{listed} children are listed, {} nodes exist", self.nodes.count()))
        }
    }

    fn check_sums(&self) -> Finding {
        let given = |id: NodeId| {
            let run = self.nodes.run(id).filter(|_| !self.nodes.keyed(id));
            run.map_or(0, |run| digest::tokens(self.nodes.digest(id), self.runs.hash(run)))
        };
        let both = |id: NodeId| self.nodes.digest(id).wrapping_add(given(id));
        let sum = self.nodes.ids().fold(0u128, |sum, id| sum.wrapping_add(both(id)));
        if sum != self.nodes.sum() {
            return Err("the sum of all digests is wrong".into());
        }
        if self.nodes.indexed() + 1 != self.nodes.count() as usize {
            return Err(format!("{} nodes are indexed, {} exist", self.nodes.indexed() + 1, self.nodes.count()));
        }
        Ok(())
    }

    fn check_rollout(&self, id: RolloutId) -> Finding {
        let (point, leaf) = (self.rollouts.point(id), self.rollouts.leaf(id));
        let count = self.nodes.count();
        if point.get() >= count || leaf.get() >= count {
            return Err(format!("rollout {}: its point or leaf does not exist", id.get()));
        }
        // No further up than the fork point can be, which is no further than the rollout itself has grown.
        let grown = self.nodes.depth(leaf).checked_sub(self.nodes.depth(point));
        if grown.and_then(|steps| self.nodes.to_root(leaf).nth(steps as usize)) != Some(point) {
            return Err(format!("rollout {}: its leaf does not descend from its fork point", id.get()));
        }
        let growing = self.rollouts.termination(id).is_none();
        if growing && !self.rollouts.reward(id).is_nan() {
            return Err(format!("rollout {}: it is scored and has not ended", id.get()));
        }
        if self.rollouts.growing().active(id.index()) != Ok(growing) {
            return Err(format!("rollout {}: its lane does not say whether it grows", id.get()));
        }
        if self.rollouts.reward(id).is_infinite() {
            return Err(format!("rollout {}: its reward is infinite", id.get()));
        }
        let usage = self.rollouts.usage(id);
        if usage.tool_errors > usage.tools {
            return Err(format!("rollout {}: it counts more failed tool calls than tool calls", id.get()));
        }
        Ok(())
    }

    fn check_lanes(&self) -> Finding {
        let (lanes, rollouts) = (self.rollouts.growing().len(), self.rollouts.count());
        if lanes == rollouts as usize { Ok(()) } else { Err(format!("{lanes} lanes for {rollouts} rollouts")) }
    }

    /// Sharing never costs anything, and a tree holds its longest path.
    fn check_tokens(&self) -> Finding {
        let Totals { flat, tree, longest, flat_generated, tree_generated, .. } = self.tokens();
        if flat < tree || tree < longest || flat_generated < tree_generated {
            return Err(format!(
                "{flat} flat tokens, {tree} of the tree and {longest} of the longest path are not in this order"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
pub(super) mod tests {
    use super::*;
    use crate::id::FragmentId;
    use crate::storage::tokens::TokenBuffer;
    use crate::tree::fragments::EncodedMessage;
    use crate::tree::nodes::ContentKey;
    use crate::tree::rollouts::Usage;
    use crate::tree::termination::Termination;

    /// A prompt with two observations below it, and a rollout that ended at the first.
    pub(in crate::tree) fn tree() -> Tree {
        let mut tree = Tree::new();
        let prompt = tree.append(NodeId::ROOT, Kind::Prompt, b"{}", None, NameId::EMPTY).unwrap();
        for draw in 0..2u8 {
            let rollout = tree.open(prompt, &[draw.into()], 0).unwrap();
            tree.observe(rollout, format!("{{{draw}}}").as_bytes(), None, NameId::EMPTY, 0, draw == 1).unwrap();
        }
        tree.close(RolloutId::new(0), Termination::Answer, None, None).unwrap();
        assert_eq!(tree.check(), Ok(()));
        tree
    }

    fn finding(break_it: impl FnOnce(&mut Tree)) -> String {
        let mut tree = tree();
        break_it(&mut tree);
        tree.check().unwrap_err().to_string()
    }

    /// Put a node into the columns behind the tree's back.
    fn smuggle(tree: &mut Tree, key: NodeKey, fragment: u32, digest: u128) {
        tree.nodes.insert(key, (FragmentId::new(fragment), 3, None), None, (digest, &tree.runs)).unwrap();
    }

    /// The key of the first observation.
    fn key() -> NodeKey {
        let said = ContentKey::Message(FragmentId::new(1));
        NodeKey::plain(NodeId::new(1), Kind::Observation, NameId::EMPTY).saying(said)
    }

    #[test]
    fn a_second_node_with_the_same_key_is_found() {
        let text = finding(|tree| {
            assert_eq!(tree.nodes.key(NodeId::new(2), &tree.runs), key());
            let digest = tree.nodes.digest(NodeId::new(2));
            smuggle(tree, key(), 1, digest);
        });
        assert!(text.contains("is not what its merge key finds"), "{text}");
    }

    #[test]
    fn a_wrong_digest_is_found() {
        let text = finding(|tree| smuggle(tree, NodeKey { kind: Kind::Message, ..key() }, 1, 1));
        assert_eq!(text, "tree is inconsistent: node 4: has the wrong digest");
    }

    #[test]
    fn a_missing_message_and_a_missing_name_are_found() {
        let text = finding(|tree| smuggle(tree, key().saying(ContentKey::Message(FragmentId::new(9))), 9, 1));
        assert!(text.ends_with("has no message"), "{text}");
        let text = finding(|tree| smuggle(tree, NodeKey { agent: NameId::new(9), ..key() }, 1, 1));
        assert!(text.ends_with("uses a name that does not exist"), "{text}");
    }

    #[test]
    fn tokens_given_behind_the_digests_back_are_found() {
        let tokens = TokenBuffer::given(vec![1, 2]);
        let text = finding(|tree| {
            tree.tokenise(NodeId::new(1), tokens.as_slice()).unwrap();
            assert_eq!(tree.check(), Ok(()));
            let run = tree.nodes.run(NodeId::new(1)).unwrap();
            tree.nodes.tokenise(NodeId::new(1), run, 0);
        });
        assert!(text.ends_with("the sum of all digests is wrong"), "{text}");
    }

    #[test]
    fn a_leaf_beside_its_fork_point_is_found() {
        let beside = |tree: &mut Tree, leaf| tree.rollouts.advance(RolloutId::new(1), leaf, &Usage::default());
        let above = finding(|tree| beside(tree, NodeId::ROOT));
        assert!(above.ends_with("rollout 1: its leaf does not descend from its fork point"), "{above}");
        let elsewhere = finding(|tree| {
            let other = tree.append(NodeId::ROOT, Kind::Prompt, b"{7}", None, NameId::EMPTY).unwrap();
            let below = tree.append(other, Kind::Message, b"{8}", None, NameId::EMPTY).unwrap();
            beside(tree, below);
        });
        assert_eq!(elsewhere, above);
    }

    #[test]
    fn a_reward_before_the_end_is_found() {
        let text = finding(|tree| tree.rollouts.score(RolloutId::new(1), 1.0));
        assert!(text.ends_with("rollout 1: it is scored and has not ended"), "{text}");
    }

    #[test]
    fn a_failure_of_no_call_is_found() {
        let text = finding(|tree| {
            let (id, cost) = (RolloutId::new(1), Usage { tool_errors: 1, ..Usage::default() });
            tree.rollouts.advance(id, tree.rollouts.leaf(id), &cost);
        });
        assert!(text.ends_with("rollout 1: it counts more failed tool calls than tool calls"), "{text}");
    }

    #[test]
    fn a_message_stored_twice_or_under_a_wrong_hash_is_found() {
        let text = finding(|tree| {
            tree.fragments.insert(&EncodedMessage::new(b"{}")).unwrap();
        });
        assert!(text.contains("fragment 3 is not found under its number"), "{text}");
        let text = finding(|tree| {
            tree.fragments.insert(&EncodedMessage { bytes: b"{4}", hash: 4 }).unwrap();
        });
        assert!(text.contains("fragment 3 is not what was hashed"), "{text}");
    }
}
