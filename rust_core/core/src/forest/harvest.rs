//! Many trees as columns side by side: what estimators, selection and packing are fed with.

use std::collections::HashMap;
use std::ops::Range;

use crate::error::Result;
use crate::forest::Forest;
use crate::forest::placement::Placement;
use crate::id::{self, NodeId};
use crate::storage::tokens::TokenBuffer;
use crate::tree::Tree;
use crate::turn::drift::{Drift, DriftPolicy};

/// The code that stands for a rollout that has not ended, where a termination is expected.
pub const GROWING: u8 = u8::MAX;

/// Trees side by side. Their nodes are numbered through, tree by tree in the order they were added, and so are their
/// rollouts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Harvest {
    /// Per node what its tokens come after: its parent, or where the prompt of a turn drifted, what is left of its path. A
    /// root's is itself.
    pub parents: Vec<u32>,
    /// Per node what it is: the codes of [`crate::Kind`].
    pub kinds: Vec<u8>,
    /// Per node its speaker, as a position in `names`.
    pub agents: Vec<u32>,
    /// Names of agents, common to all trees; the first is empty.
    pub names: Vec<String>,
    /// Per node where its tokens start in `tokens`, and at the end where the last ones end.
    pub offsets: Vec<u64>,
    /// The tokens of all nodes, one after the other. A node without any has none here; a turn whose prompt drifted has before
    /// its own what the model was given in the place of its path.
    pub tokens: TokenBuffer,
    /// Per rollout the node it ends at.
    pub leaves: Vec<u32>,
    /// Per rollout its reward; NaN while unscored.
    pub rewards: Vec<f64>,
    /// Per rollout the number of its tree.
    pub groups: Vec<u32>,
    /// Per rollout the initial chain it was expanded for, as its tree numbers them.
    pub subgroups: Vec<u32>,
    /// Per rollout which sample of its fork point it is.
    pub draws: Vec<u32>,
    /// Per rollout the code of its termination, or [`GROWING`].
    pub terminations: Vec<u8>,
    /// Samples of rollouts that end before the rollout does, because a drifted prompt forked there: the node where.
    pub segment_leaves: Vec<u32>,
    /// Per such sample its rollout.
    pub segment_rollouts: Vec<u32>,
    trees: usize,
    positions: HashMap<String, u32>,
}

impl Harvest {
    /// No trees yet.
    #[must_use]
    pub fn new() -> Self {
        let positions = HashMap::from_iter([(String::new(), 0)]);
        Self { names: vec![String::new()], positions, offsets: vec![0], ..Self::default() }
    }

    /// Put a tree beside the others.
    ///
    /// # Errors
    /// [`crate::Error::Full`] if there are more nodes, rollouts or trees than ids, [`crate::Error::Value`] if the tree repeats
    /// its tokens or the samples of its rollouts too often. Nothing is added then.
    pub fn add(&mut self, tree: &Tree) -> Result<()> {
        let group = id::next(self.trees, "tree")?;
        let base = id::next(self.parents.len(), "node")?;
        id::next(self.parents.len() + tree.nodes() as usize, "node")?;
        id::next(self.leaves.len() + tree.rollouts() as usize, "rollout")?;
        let places = Placement::new(tree, group)?;
        self.add_nodes(tree, &places, base);
        self.add_rollouts(tree, &places, base, group);
        self.trees += 1;
        Ok(())
    }

    fn add_nodes(&mut self, tree: &Tree, places: &Placement, base: u32) {
        let nodes = &tree.nodes;
        // Names are few and nodes are many: each name is looked up once.
        let mut known = vec![None; tree.names.count() as usize];
        for node in nodes.ids() {
            self.parents.push(base + places.parents[node.index()]);
            let name = nodes.agent(node);
            let agent = *known[name.index()].get_or_insert_with(|| self.agent(tree.names.get(name)));
            self.agents.push(agent);
            self.kinds.push(nodes.kind(node) as u8);
            self.add_given(tree, places, base, node);
            if let Some(run) = nodes.run(node) {
                self.tokens.extend(&tree.runs.get(run));
            }
            self.offsets.push(self.tokens.ids.len() as u64);
        }
    }

    fn add_rollouts(&mut self, tree: &Tree, places: &Placement, base: u32, group: u32) {
        let rollouts = &tree.rollouts;
        for rollout in rollouts.ids() {
            let start = self.segment_leaves.len();
            for fork in places.forks(tree, rollouts.leaf(rollout)) {
                self.segment_leaves.push(base + tree.nodes.parent(fork).get());
                self.segment_rollouts.push(id::count(self.leaves.len()));
            }
            self.segment_leaves[start..].reverse();
            self.leaves.push(base + rollouts.leaf(rollout).get());
            self.rewards.push(rollouts.reward(rollout));
            self.groups.push(group);
            self.subgroups.push(rollouts.subgroup(rollout));
            self.draws.push(rollouts.draw(rollout));
            self.terminations.push(rollouts.termination(rollout).map_or(GROWING, crate::Termination::code));
        }
    }

    /// The position of a name in `names`, which takes it in if it is new.
    fn agent(&mut self, name: &str) -> u32 {
        if let Some(&known) = self.positions.get(name) {
            return known;
        }
        let position = id::count(self.names.len());
        self.names.push(name.to_owned());
        self.positions.insert(name.to_owned(), position);
        position
    }

    /// How many trees were added.
    #[must_use]
    pub const fn trees(&self) -> usize {
        self.trees
    }

    /// The shape of all trees together.
    ///
    /// # Errors
    /// Never for what was made by [`Harvest::add`] alone.
    pub fn forest(&self) -> Result<Forest> {
        Forest::new(self.parents.clone(), self.leaves.clone())
    }
}

impl Harvest {
    /// Put down what a drifted turn was given in the place of its path, as the first of its tokens.
    fn add_given(&mut self, tree: &Tree, places: &Placement, base: u32, node: NodeId) {
        let Some(Drift { policy, keep, run: Some(run), .. }) = tree.drifted(node) else { return };
        let (above, part) = places.kept(tree.nodes.parent(node).get(), keep);
        let part = part.map(|(node, tokens)| {
            let start = self.span(base + node).start;
            start..start + tokens
        });
        if policy == DriftPolicy::Fork {
            // All that is kept is repeated below the root, and trained where it was sampled, not here.
            let mut whole: Vec<u32> = places.up(above).collect();
            whole.reverse();
            let spans = whole.into_iter().map(|node| self.span(base + node)).collect::<Vec<_>>();
            for span in spans.into_iter().chain(part) {
                let ids = self.tokens.ids[span].to_vec();
                self.tokens.extend(&TokenBuffer::given(ids).as_slice());
            }
        } else if let Some(span) = part {
            self.repeat(span);
        }
        // Even where it was sampled, here it is only what the model was given.
        self.tokens.extend(&TokenBuffer::given(tree.runs.get(run).ids.to_vec()).as_slice());
    }

    /// Where a node's tokens are.
    #[expect(clippy::cast_possible_truncation, reason = "offsets into a vector")]
    fn span(&self, node: u32) -> Range<usize> {
        let node = node as usize;
        self.offsets[node] as usize..self.offsets[node + 1] as usize
    }

    /// Put tokens down a second time.
    fn repeat(&mut self, span: Range<usize>) {
        self.tokens.ids.extend_from_within(span.clone());
        self.tokens.logprobs.extend_from_within(span.clone());
        self.tokens.versions.extend_from_within(span.clone());
        self.tokens.flags.extend_from_within(span);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{GROWING, Harvest};
    use crate::{Call, DriftPolicy, Kind, NodeId, Termination, TokenBuffer, Tree};

    /// A prompt of some tokens said by `agent`, and two rollouts below it of which the first has ended.
    fn tree(agent: &str, tokens: u32, reward: f64) -> Tree {
        let mut tree = Tree::new();
        let agent = tree.name(agent).unwrap();
        let tokens = TokenBuffer::given((0..tokens).collect());
        let prompt = tree.append(NodeId::ROOT, Kind::Prompt, b"{}", Some(tokens.as_slice()), agent).unwrap();
        for draw in 0..2u8 {
            let rollout = tree.open(prompt, &[0, draw.into()], 7).unwrap();
            let sampled = TokenBuffer::sampled(vec![50, draw.into()], vec![-0.5; 2], 3).unwrap();
            tree.turn(rollout, b"{}", Some(sampled.as_slice()), Call { agent, ..Call::default() }).unwrap();
        }
        tree.close(0.into(), Termination::MaxTurns, None, None).unwrap();
        tree.score(0.into(), reward).unwrap();
        tree
    }

    #[test]
    fn a_tree_that_repeats_its_tokens_too_often_is_refused_and_nothing_of_it_added() {
        let mut tree = tree("solver", 4000, 0.5);
        let given = TokenBuffer::given(vec![1]);
        for number in 0..1200u32 {
            let context = tree.drift(DriftPolicy::Fork, 4000 + number % 7, Some(given.as_slice())).unwrap();
            let sampled = TokenBuffer::sampled(vec![number], vec![-0.5], 3).unwrap();
            let call = Call { context: Some(context), ..Call::default() };
            tree.turn(1.into(), b"{}", Some(sampled.as_slice()), call).unwrap();
        }
        let mut harvest = Harvest::new();
        harvest.add(&Tree::new()).unwrap();
        let before = harvest.clone();
        let text = harvest.add(&tree).unwrap_err().to_string();
        assert!(text.starts_with("tree 1 has 48") && text.contains(" tokens side by side, and stores 52"), "{text}");
        assert_eq!(harvest, before);
        let mut tree = self::tree("solver", 1, 0.5);
        for number in 0..2200u32 {
            let context = tree.drift(DriftPolicy::Fork, 0, Some(given.as_slice())).unwrap();
            let call = Call { context: Some(context), ..Call::default() };
            let leaf = tree.turn(1.into(), b"{}", Some(given.as_slice()), call).unwrap();
            tree.open(leaf, &[1, number], 0).unwrap();
        }
        for number in 0..2200u32 {
            tree.open(tree.rollout(1.into()).unwrap().leaf, &[2, number], 0).unwrap();
        }
        let text = harvest.add(&tree).unwrap_err().to_string();
        assert!(text.starts_with("the rollouts of tree 1 end 7263300 times where a prompt forked"), "{text}");
        assert_eq!(harvest, before);
    }

    #[test]
    fn trees_stand_side_by_side() {
        let mut harvest = Harvest::new();
        harvest.add(&tree("solver", 3, 0.5)).unwrap();
        harvest.add(&Tree::new()).unwrap();
        harvest.add(&tree("critic", 1, 1.0)).unwrap();
        assert_eq!(harvest.trees(), 3);
        assert_eq!(harvest.parents, [0, 0, 1, 1, 4, 5, 5, 6, 6]);
        assert_eq!(harvest.kinds, [0, 1, 2, 2, 0, 0, 1, 2, 2]);
        assert_eq!(harvest.names, ["", "solver", "critic"]);
        assert_eq!(harvest.agents, [0, 1, 1, 1, 0, 0, 2, 2, 2]);
        assert_eq!(harvest.offsets, [0, 0, 3, 5, 7, 7, 7, 8, 10, 12]);
        assert_eq!(harvest.tokens.ids, [0, 1, 2, 50, 0, 50, 1, 0, 50, 0, 50, 1]);
        assert_eq!(harvest.tokens.versions, [-1, -1, -1, 3, 3, 3, 3, -1, 3, 3, 3, 3]);
        assert_eq!(harvest.leaves, [2, 3, 7, 8]);
        assert_eq!(harvest.groups, [0, 0, 2, 2]);
        assert_eq!((harvest.subgroups.as_slice(), harvest.draws.as_slice()), (&[7; 4][..], &[0, 1, 0, 1][..]));
        assert_eq!(
            harvest.terminations,
            [Termination::MaxTurns.code(), GROWING, Termination::MaxTurns.code(), GROWING]
        );
        assert!(harvest.rewards[1].is_nan() && harvest.rewards[3].is_nan());
        assert_eq!((harvest.rewards[0].to_bits(), harvest.rewards[2].to_bits()), (0.5f64.to_bits(), 1.0f64.to_bits()));
        let forest = harvest.forest().unwrap();
        assert_eq!(forest.passes(), [2, 2, 1, 1, 0, 2, 2, 1, 1]);
        assert_eq!(forest.depths(), [0, 1, 2, 2, 0, 0, 1, 2, 2]);
    }
}
