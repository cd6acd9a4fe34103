//! What the rows of a tree and of its rollouts are made of.

use crate::id::NodeId;
use crate::tree::Tree;
use crate::tree::nodes::Kind;
use crate::tree::read::RolloutView;

/// What the row of a rollout is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RolloutFacts<'t> {
    /// The rollout.
    pub view: RolloutView<'t>,
    /// Generated tokens on its path, shared ones included; nothing where a turn on it has neither ids nor usage.
    pub length: Option<u64>,
    /// The first turn on its path.
    pub first: Option<NodeId>,
}

impl Tree {
    /// What the rows of all rollouts are made of, in the order they were opened.
    #[must_use]
    pub fn rollout_facts(&self) -> Vec<RolloutFacts<'_>> {
        let mut paths: Vec<(Option<u64>, Option<NodeId>)> = Vec::with_capacity(self.nodes.count() as usize);
        for node in self.nodes.ids() {
            let (length, first) = paths.get(self.nodes.parent(node).index()).copied().unwrap_or((Some(0), None));
            paths.push(match self.nodes.kind(node) {
                Kind::Turn => (
                    length.zip(self.generated(node)).map(|(length, own)| length.saturating_add(own)),
                    first.or(Some(node)),
                ),
                _ => (length, first),
            });
        }
        let views = self.rollouts.ids().filter_map(|rollout| self.rollout(rollout).ok());
        views
            .map(|view| {
                let (length, first) = paths[view.leaf.index()];
                RolloutFacts { view, length, first }
            })
            .collect()
    }

    /// A turn's token ids, kept ones of a fork included, else its reported tokens.
    fn generated(&self, turn: NodeId) -> Option<u64> {
        let reported = || self.nodes.row(turn).and_then(|row| self.nodes.calls().figures(row).1.get()).map(u64::from);
        self.nodes.run(turn).map_or_else(reported, |run| Some(self.runs.len(run)))
    }
}
