//! Every invariant of a tree, walked. Slow on purpose: it trusts nothing that was kept incrementally.

use crate::error::{Error, Result};
use crate::id::{NodeId, RolloutId};
use crate::tree::Tree;
use crate::tree::counts::Totals;
use crate::tree::digest;
use crate::tree::nodes::Kind;

type Finding = std::result::Result<(), String>;

impl Tree {
    /// Walk every invariant.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first that fails.
    pub fn check(&self) -> Result<()> {
        let stores = self.names.check().and_then(|()| self.fragments.check());
        stores
            .and_then(|()| self.contexts.check(&self.fragments))
            .and_then(|()| self.rollouts.check_paths())
            .and_then(|()| self.nodes.ids().try_for_each(|id| self.check_node(id)))
            .and_then(|()| self.check_links())
            .and_then(|()| self.check_sums())
            .and_then(|()| self.rollouts.ids().try_for_each(|id| self.check_rollout(id)))
            .and_then(|()| self.check_lanes())
            .and_then(|()| self.check_tokens())
            .map_err(Error::Invariant)
    }

    fn check_node(&self, id: NodeId) -> Finding {
        let nodes = &self.nodes;
        let key = nodes.key(id);
        let at = id.get();
        let holds = |fact: bool, what: &str| if fact { Ok(()) } else { Err(format!("node {at}: {what}")) };
        holds(nodes.find(key) == Some(id), "is not what its merge key finds")?;
        if id == NodeId::ROOT {
            holds(key.kind == Kind::Root && key.fragment.is_none(), "is not an empty root")?;
            holds(nodes.depth(id) == 0, "is the root and not at depth 0")?;
            holds(nodes.turns(id) == 0, "is the root and has turns")?;
            return holds(nodes.digest(id) == digest::root(), "has the wrong digest");
        }
        holds(key.parent < id, "has a parent that is not older")?;
        holds(key.kind != Kind::Root, "is a second root")?;
        holds(nodes.depth(id) == nodes.depth(key.parent) + 1, "is not one deeper than its parent")?;
        let turn = key.kind == Kind::Turn;
        let turns = nodes.turns(key.parent) + u32::from(turn);
        holds(nodes.turns(id) == turns, "has the wrong count of turns")?;
        let names = [key.agent, key.namespace, nodes.finish(id)];
        holds(names.iter().all(|name| name.get() < self.names.count()), "uses a name that does not exist")?;
        let fragment = key.fragment.is_some_and(|fragment| fragment.get() < self.fragments.count());
        holds(fragment, "has no message")?;
        let context = key.context.is_none_or(|context| context.get() < self.contexts.count());
        holds(context, "has a context that does not exist")?;
        holds(turn || key.context.is_none(), "has a context and is no model turn")?;
        holds(turn || nodes.aside(id).is_none(), "has an aside and is no model turn")?;
        let aside = nodes
            .aside(id)
            .is_none_or(|span| self.asides.holds(span) && std::str::from_utf8(self.asides.get(span)).is_ok());
        holds(aside, "has an aside that is not there or not UTF-8")?;
        holds(nodes.digest(id) == digest::node(&self.content(key)), "has the wrong digest")
    }

    /// Every node but the root is listed by its parent exactly once, in order of age.
    fn check_links(&self) -> Finding {
        let mut listed = 0u32;
        for id in self.nodes.ids() {
            let mut last = None;
            for child in self.nodes.children(id) {
                if child.get() >= self.nodes.count() || self.nodes.key(child).parent != id || last >= Some(child) {
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
        let sum = self.nodes.ids().fold(0u128, |sum, id| sum.wrapping_add(self.nodes.digest(id)));
        if sum != self.nodes.sum() {
            return Err("the sum of all digests is wrong".into());
        }
        if self.nodes.indexed() != self.nodes.count() as usize {
            return Err(format!("{} nodes are indexed, {} exist", self.nodes.indexed(), self.nodes.count()));
        }
        Ok(())
    }

    fn check_rollout(&self, id: RolloutId) -> Finding {
        let (point, leaf) = (self.rollouts.point(id), self.rollouts.leaf(id));
        let count = self.nodes.count();
        if point.get() >= count || leaf.get() >= count {
            return Err(format!("rollout {}: its point or leaf does not exist", id.get()));
        }
        if leaf != point && point != NodeId::ROOT && !self.nodes.upward(leaf).any(|node| node == point) {
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
mod tests {
    use super::*;
    use crate::id::{NameId, Tokens};
    use crate::tree::fragments::Message;
    use crate::tree::nodes::{Extra, Key};
    use crate::tree::rollouts::Usage;
    use crate::tree::termination::Termination;

    /// A prompt with two observations below it, and a rollout that ended at the first.
    fn tree() -> Tree {
        let mut tree = Tree::new();
        let prompt = tree.append(NodeId::ROOT, Kind::Prompt, b"{}", NameId::EMPTY).unwrap();
        for draw in 0..2u8 {
            let rollout = tree.open(prompt, &[draw.into()], 0).unwrap();
            tree.observe(rollout, format!("{{{draw}}}").as_bytes(), NameId::EMPTY, 0, draw == 1).unwrap();
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

    #[test]
    fn a_second_node_with_the_same_key_is_found() {
        let text = finding(|tree| {
            let key = *tree.nodes.key(NodeId::new(2));
            let digest = tree.nodes.digest(NodeId::new(2));
            tree.nodes.insert(key, Extra::NOTHING, digest).unwrap();
        });
        assert!(text.contains("is not what its merge key finds"), "{text}");
    }

    #[test]
    fn a_wrong_digest_is_found() {
        let text = finding(|tree| {
            let key = Key { kind: Kind::Message, ..*tree.nodes.key(NodeId::new(2)) };
            tree.nodes.insert(key, Extra::NOTHING, 1).unwrap();
        });
        assert_eq!(text, "tree is inconsistent: node 4: has the wrong digest");
    }

    #[test]
    fn a_missing_message_and_a_missing_name_are_found() {
        let key = *tree().nodes.key(NodeId::new(2));
        let text = finding(|tree| {
            tree.nodes.insert(Key { fragment: None, ..key }, Extra::NOTHING, 1).unwrap();
        });
        assert!(text.ends_with("has no message"), "{text}");
        let text = finding(|tree| {
            tree.nodes.insert(Key { agent: NameId::new(9), ..key }, Extra::NOTHING, 1).unwrap();
        });
        assert!(text.ends_with("uses a name that does not exist"), "{text}");
    }

    #[test]
    fn an_aside_of_no_turn_is_found() {
        let text = finding(|tree| {
            let aside = Some(tree.asides.push(b"hm").unwrap());
            let unreported = Tokens::UNREPORTED;
            let extra = Extra { finish: NameId::EMPTY, prompt: unreported, generated: unreported, aside };
            tree.nodes.fill(NodeId::new(1), &extra);
        });
        assert!(text.ends_with("has an aside and is no model turn"), "{text}");
    }

    #[test]
    fn a_leaf_beside_its_fork_point_is_found() {
        let text = finding(|tree| tree.rollouts.advance(RolloutId::new(1), NodeId::ROOT, &Usage::default()));
        assert!(text.ends_with("rollout 1: its leaf does not descend from its fork point"), "{text}");
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
            tree.fragments.insert(&Message::new(b"{}")).unwrap();
        });
        assert!(text.contains("fragment 3 is not found under its number"), "{text}");
        let text = finding(|tree| {
            tree.fragments.insert(&Message { bytes: b"{4}", hash: 4 }).unwrap();
        });
        assert!(text.contains("fragment 3 is not what was hashed"), "{text}");
    }
}
