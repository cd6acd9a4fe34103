//! Every invariant of a prefix index, walked. Slow on purpose: it trusts nothing that was kept incrementally.

use crate::error::{Error, Finding, Result};
use crate::id::PrefixId;
use crate::prefix::nodes::{RadixNode, sampled};
use crate::prefix::spaces::Space;
use crate::prefix::{Prefix, Reuse};

fn holds(fact: bool, what: impl FnOnce() -> String) -> Finding {
    if fact { Ok(()) } else { Err(what()) }
}

impl Prefix {
    /// Walk every invariant: every node found where its parent and first token say, so that no two children start alike;
    /// every run stored; every count of paths the sum of what ends at a node and what passes its children; every total
    /// the sum over nodes.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first that fails.
    pub fn check(&self) -> Result<()> {
        self.ids()
            .try_for_each(|id| self.check_node(id))
            .and_then(|()| self.check_edges())
            .and_then(|()| self.check_passes())
            .and_then(|()| self.check_spaces())
            .map_err(|text| Error::Invariant(format!("prefix index: {text}")))
    }

    fn ids(&self) -> impl Iterator<Item = PrefixId> {
        (0..self.nodes()).map(PrefixId::new)
    }

    fn check_node(&self, id: PrefixId) -> Finding {
        let node = &self.nodes[id.index()];
        let holds = |fact: bool, what: &str| holds(fact, || format!("node {} {what}", id.get()));
        holds(self.columns.holds(node.span), "lies outside the columns")?;
        let tokens = self.columns.get(node.span);
        holds(node.generated == sampled(tokens.flags), "has the wrong count of sampled tokens")?;
        let root = self.spaces.get(node.space).map(|space| space.root);
        holds(root.is_ok(), "is in a space that does not exist")?;
        if node.parent == id {
            holds(root == Ok(id), "is a root and not that of its space")?;
            return holds(node.depth == 0 && tokens.is_empty(), "is a root and has tokens");
        }
        holds(node.passes > 0, "is on no path")?;
        let Some(parent) = self.nodes.get(node.parent.index()) else {
            return holds(false, "has a parent that does not exist");
        };
        holds(parent.space == node.space, "is in another space than its parent")?;
        // Nodes are never empty and depths grow with them, so no node is above itself.
        let depth = u64::from(parent.depth) + tokens.len() as u64;
        holds(u64::from(node.depth) == depth, "is not as deep as its parent and its own tokens")?;
        let first = tokens.ids.first().map(|&token| self.children.get(node.parent, token));
        holds(first == Some(Some(id)), "is not the child that its first token finds")
    }

    fn check_edges(&self) -> Finding {
        let (edges, nodes) = (self.children.len(), self.nodes.len() - self.spaces.len());
        holds(edges == nodes, || format!("{edges} children are indexed, {nodes} exist"))?;
        let (own, stored) = (self.nodes.iter().map(|node| node.span.len()).sum::<usize>(), self.columns.len());
        holds(own == stored, || format!("nodes have {own} tokens, {stored} are stored"))
    }

    fn check_passes(&self) -> Finding {
        let mut passes: Vec<u64> = self.nodes.iter().map(|node| node.ends.into()).collect();
        for id in self.ids() {
            let RadixNode { parent, passes: own, .. } = self.nodes[id.index()];
            if parent != id {
                passes[parent.index()] += u64::from(own);
            }
        }
        let wrong = self.ids().find(|id| passes[id.index()] != u64::from(self.nodes[id.index()].passes));
        wrong.map_or(Ok(()), |id| Err(format!("node {} is passed by other than its own and its children's", id.get())))
    }

    fn check_spaces(&self) -> Finding {
        let mut counted = vec![Reuse::default(); self.spaces.len()];
        for node in &self.nodes {
            let (reuse, run, passes) = (&mut counted[node.space.index()], node.run(), u64::from(node.passes));
            reuse.paths += u64::from(node.ends);
            reuse.flat += passes * run.tokens;
            reuse.flat_generated += passes * run.generated;
            reuse.store(run);
            // The deepest node has nothing below it, so a path ends there.
            reuse.longest = reuse.longest.max(node.depth.into());
        }
        for ((id, Space { name, reuse, .. }), counted) in self.spaces.iter().zip(&counted) {
            holds(self.spaces.find(name) == Some(id), || format!("space {name:?} is not found under its name"))?;
            holds(reuse == counted, || format!("space {name:?} says {reuse:?} and holds {counted:?}"))?;
            let Reuse { flat, unique, longest, .. } = *reuse;
            holds(flat >= unique && unique >= longest, || format!("space {name:?}: {flat} >= {unique} >= {longest}"))?;
        }
        let total = counted.iter().fold(Reuse::default(), Reuse::plus);
        holds(self.total == total, || format!("all spaces say {:?} and hold {total:?}", self.total))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use crate::id::PrefixId;
    use crate::prefix::Prefix;
    use crate::storage::tokens::TokenBuffer;

    type Damage = fn(&mut Prefix);

    #[test]
    fn damage_is_found() {
        let mut whole = Prefix::default();
        let space = whole.space("model").unwrap();
        for ids in [vec![1, 2, 3, 4], vec![1, 2, 5], vec![7]] {
            whole.insert(space, &TokenBuffer::given(ids).as_slice()).unwrap();
        }
        assert_eq!(whole.check(), Ok(()));
        let damages: [(&str, Damage); 9] = [
            ("sampled tokens", |prefix| prefix.nodes[1].generated = 1),
            ("a space that does not exist", |prefix| prefix.nodes[1].space = 1.into()),
            ("not that of its space", |prefix| prefix.nodes[1].parent = 1.into()),
            ("on no path", |prefix| prefix.nodes[1].passes = 0),
            ("parent that does not exist", |prefix| prefix.nodes[1].parent = 99.into()),
            ("as deep as its parent", |prefix| prefix.nodes[2].depth = 1),
            ("its first token finds", |prefix| prefix.children.set(2.into(), 3, PrefixId::new(3))),
            ("passed by other than", |prefix| prefix.nodes[1].ends = 2),
            ("all spaces say", |prefix| prefix.total.flat += 1),
        ];
        for (text, damage) in damages {
            let mut prefix = whole.clone();
            damage(&mut prefix);
            let found = prefix.check().unwrap_err().to_string();
            assert!(found.contains(text), "{text}: {found}");
        }
    }
}
