//! Drifted prompts against a naive model: what a model is given, bodies of ids, alignment, deltas, accounts and samples.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use trunkline_core::{
    Call, ContextId, DriftPolicy, Error, Harvest, Keyword, Kind, NameId, NodeId, RolloutId, SAMPLED, TokenBuffer, Tree,
};

/// One turn and the observation after it.
#[derive(Clone, Debug)]
struct Step {
    rollout: usize,
    drift: Option<(DriftPolicy, u32, Vec<u32>)>,
    said: Vec<u32>,
    seen: Option<Vec<u32>>,
}

fn ids() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(prop_oneof![0u32..20, any::<u32>()], 1..8)
}

fn step() -> impl Strategy<Value = Step> {
    let policy = prop::sample::select(DriftPolicy::ALL.to_vec());
    let drift = prop::option::weighted(0.4, (policy, 0u32..40, ids()));
    (0usize..3, drift, ids(), prop::option::of(ids())).prop_map(|(rollout, drift, said, seen)| Step {
        rollout,
        drift,
        said,
        seen,
    })
}

/// What a model is given at a rollout's leaf, with what of it counts as sampled; and the samples that ended before.
#[derive(Clone, Debug, Default)]
struct Row {
    ids: Vec<u32>,
    sampled: Vec<bool>,
    counts: [u64; 3],
    ended: Vec<(Vec<u32>, Vec<bool>)>,
}

impl Row {
    fn extend(&mut self, ids: &[u32], sampled: bool) {
        self.ids.extend(ids);
        self.sampled.resize(self.ids.len(), sampled);
    }

    fn drift(&mut self, policy: DriftPolicy, keep: u32, given: &[u32]) {
        self.counts[policy as usize] += 1;
        if policy == DriftPolicy::Fork {
            self.ended.push((self.ids.clone(), self.sampled.clone()));
            self.sampled.fill(false);
        }
        if policy != DriftPolicy::Bridge {
            self.ids.truncate(keep as usize);
            self.sampled.truncate(keep as usize);
            self.extend(given, false);
        }
    }
}

/// Play a script on a tree with three rollouts, and on plain rows.
fn play(steps: &[Step]) -> (Tree, Vec<Row>) {
    let mut tree = Tree::new();
    let given = TokenBuffer::given(vec![1, 2, 3]);
    let prompt = tree.append(NodeId::ROOT, Kind::Prompt, b"{}", Some(given.as_slice()), NameId::EMPTY).unwrap();
    let mut row = Row::default();
    row.extend(&[1, 2, 3], false);
    let mut rows = vec![row; 3];
    for rollout in 0..3 {
        tree.open(prompt, &[0, rollout], 0).unwrap();
    }
    for (number, step) in steps.iter().enumerate() {
        let id = RolloutId::new(u32::try_from(step.rollout).unwrap());
        let row = &mut rows[step.rollout];
        let context = step.drift.as_ref().map(|(policy, keep, given)| {
            let tokens = TokenBuffer::given(given.clone());
            row.drift(*policy, *keep, given);
            tree.drift(*policy, *keep, (*policy != DriftPolicy::Bridge).then_some(tokens.as_slice())).unwrap()
        });
        let sampled = TokenBuffer::sampled(step.said.clone(), vec![-0.5; step.said.len()], 3).unwrap();
        row.extend(&step.said, true);
        tree.turn(id, b"{}", Some(sampled.as_slice()), Call { context, ..Call::default() }).unwrap();
        if let Some(seen) = &step.seen {
            let message = format!("{{\"{number}\":0}}");
            let tokens = TokenBuffer::given(seen.clone());
            tree.observe(id, message.as_bytes(), Some(tokens.as_slice()), NameId::EMPTY, 0, false).unwrap();
            row.extend(seen, false);
        }
    }
    (tree, rows)
}

fn leaf(tree: &Tree, rollout: usize) -> NodeId {
    tree.rollout(RolloutId::new(u32::try_from(rollout).unwrap())).unwrap().leaf
}

fn body(tree: &Tree, node: NodeId, context: Option<ContextId>) -> String {
    let mut out = vec![0; tree.ids_len(node, context, b"{[", b"]}").unwrap()];
    tree.ids_into(node, context, b"{[", b"]}", &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn text(ids: &[u32]) -> String {
    format!("{{[{}]}}", ids.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
}

/// Ids and loss masks of rows, for rollouts that end at these nodes.
fn samples(harvest: &Harvest, leaves: &[u32]) -> Vec<(Vec<u32>, Vec<bool>)> {
    let path = |mut node: u32| {
        let mut path = vec![node];
        while harvest.parents[node as usize] != node {
            node = harvest.parents[node as usize];
            path.push(node);
        }
        path.reverse();
        path
    };
    let tokens = &harvest.tokens;
    leaves
        .iter()
        .map(|&leaf| {
            let spans = path(leaf).into_iter().flat_map(|node| {
                let at = node as usize;
                usize::try_from(harvest.offsets[at]).unwrap()..usize::try_from(harvest.offsets[at + 1]).unwrap()
            });
            spans.map(|at| (tokens.ids[at], tokens.flags[at] & SAMPLED != 0)).unzip()
        })
        .collect()
}

proptest! {
    #[test]
    fn what_a_model_is_given_is_that_of_plain_rows(steps in prop::collection::vec(step(), 0..12), other in ids()) {
        let (mut tree, rows) = play(&steps);
        prop_assert_eq!(tree.check(), Ok(()));
        for (rollout, row) in rows.iter().enumerate() {
            let leaf = leaf(&tree, rollout);
            prop_assert_eq!(tree.last_ids(leaf, usize::MAX).unwrap(), row.ids.clone());
            let some = row.ids.len().min(4);
            prop_assert_eq!(tree.last_ids(leaf, 4).unwrap(), &row.ids[row.ids.len() - some..]);
            prop_assert_eq!(body(&tree, leaf, None), text(&row.ids));
            for cut in 0..=row.ids.len() {
                let prompt = [&row.ids[..cut], &other].concat();
                let found = tree.align(leaf, &prompt).unwrap();
                let common = row.ids.iter().zip(&prompt).take_while(|(a, b)| a == b).count();
                prop_assert_eq!((found.common, found.known, found.pending.len()), (common, row.ids.len(), 0));
            }
            let usage = tree.rollout(RolloutId::new(u32::try_from(rollout).unwrap())).unwrap().usage;
            prop_assert_eq!([usage.bridged, usage.realigned, usage.forked], row.counts);
        }
        let context = tree.drift(DriftPolicy::Realign, 2, Some(TokenBuffer::given(other.clone()).as_slice())).unwrap();
        prop_assert_eq!(body(&tree, leaf(&tree, 0), Some(context)), text(&[&rows[0].ids[..2], &other].concat()));
    }

    #[test]
    fn every_sample_is_what_a_model_was_given(steps in prop::collection::vec(step(), 0..12)) {
        let (tree, rows) = play(&steps);
        let mut harvest = Harvest::new();
        harvest.add(&Tree::new()).unwrap();
        harvest.add(&tree).unwrap();
        harvest.forest().unwrap();
        let last: Vec<_> = rows.iter().map(|row| (row.ids.clone(), row.sampled.clone())).collect();
        prop_assert_eq!(samples(&harvest, &harvest.leaves), last);
        let ended: Vec<_> = rows.iter().flat_map(|row| row.ended.clone()).collect();
        prop_assert_eq!(samples(&harvest, &harvest.segment_leaves), ended);
        let of: Vec<u32> = (0u32..).zip(&rows).flat_map(|(at, row)| row.ended.iter().map(move |_| at)).collect();
        prop_assert_eq!(&harvest.segment_rollouts, &of);
        let totals = tree.tokens();
        prop_assert!(totals.exact && totals.flat >= totals.tree && totals.tree >= totals.longest);
    }

    #[test]
    fn a_delta_rebuilds_drifts(steps in prop::collection::vec(step(), 1..12)) {
        let (mut tree, rows) = play(&steps);
        let mut copy = Tree::new();
        copy.apply(&tree.delta().unwrap().unwrap()).unwrap();
        prop_assert_eq!(copy.check(), Ok(()));
        prop_assert_eq!((copy.digest(), copy.tokens()), (tree.digest(), tree.tokens()));
        for (rollout, row) in rows.iter().enumerate() {
            prop_assert_eq!(copy.last_ids(leaf(&copy, rollout), usize::MAX).unwrap(), row.ids.clone());
        }
    }
}

#[test]
fn a_drift_that_makes_no_sense_is_refused() {
    let (mut tree, _) = play(&[]);
    let given = TokenBuffer::given(vec![7]);
    let refused = |found: Result<ContextId, Error>| found.unwrap_err().to_string();
    assert!(refused(tree.drift(DriftPolicy::Bridge, 1, Some(given.as_slice()))).contains("a bridge with tokens"));
    assert!(refused(tree.drift(DriftPolicy::Fork, 1, None)).contains("a fork without tokens"));
    assert!(
        DriftPolicy::from_word("sail")
            .unwrap_err()
            .to_string()
            .contains("\"sail\"; it must be bridge, realign or fork")
    );
    let messages = tree.context(&[0]).unwrap();
    assert!(tree.ids_len(NodeId::new(1), Some(messages), b"", b"").unwrap_err().to_string().contains("is of messages"));
    let drift = tree.drift(DriftPolicy::Bridge, 1, None).unwrap();
    assert_eq!(tree.drift(DriftPolicy::Bridge, 1, None).unwrap(), drift);
    let source = trunkline_core::Source::Context(drift);
    assert!(tree.body(source, b"", b"").unwrap_err().to_string().contains("is a drift of token ids"));
    assert!(tree.context(&[u32::MAX, 7, 0, 0]).unwrap_err().to_string().contains("a list of messages or a drift"));
    assert!(tree.context(&[u32::MAX, 1, 0, 9]).unwrap_err().to_string().contains("run 9 does not exist"));
}

#[test]
fn a_prompt_of_other_messages_is_kept_with_its_turn() {
    let mut tree = Tree::new();
    let prompt = tree.append(NodeId::ROOT, Kind::Prompt, b"{\"q\":1}", None, NameId::EMPTY).unwrap();
    let rollout = tree.open(prompt, &[0, 0], 0).unwrap();
    let message = tree.fragment(b"{\"own\":1}").unwrap();
    let own = tree.context(&[message.get()]).unwrap();
    let mut say = |prompt: &[u32], said: u32| {
        let leaf = tree.rollout(rollout).unwrap().leaf;
        let context = tree.settle_messages(leaf, prompt, own).unwrap();
        assert!(tree.has_messages(context).unwrap());
        let sampled = TokenBuffer::sampled(vec![said], vec![-0.5], 3).unwrap();
        let call = Call { context: Some(context), ..Call::default() };
        let node = tree.turn(rollout, b"{}", Some(sampled.as_slice()), call).unwrap();
        assert_eq!(tree.last_ids(node, usize::MAX).unwrap(), [prompt, &[said]].concat());
        assert_eq!(tree.body(trunkline_core::Source::Context(context), b"[", b"]").unwrap(), b"[{\"own\":1}]");
        tree.observe(rollout, b"{\"seen\":1}", None, NameId::EMPTY, 0, false).unwrap();
        tree.drift_of(node).unwrap().unwrap().policy
    };
    // The first, one that goes on after it, another conversation, the first again, and the same without anything new.
    let policies = [say(&[1, 2], 9), say(&[1, 2, 9, 3], 8), say(&[5], 7), say(&[1, 2, 9], 6), say(&[1, 2, 9, 6], 4)];
    let (realign, fork) = (DriftPolicy::Realign, DriftPolicy::Fork);
    assert_eq!(policies, [realign, realign, fork, fork, realign]);
    assert!(tree.tokens_of(prompt).unwrap().is_none(), "no node is given ids");
    let totals = tree.tokens();
    assert_eq!((totals.exact, totals.flat_generated, totals.flat), (true, 5, 12));
    let mut harvest = Harvest::new();
    harvest.add(&tree).unwrap();
    let rows = |found: Vec<(Vec<u32>, Vec<bool>)>| found.into_iter().map(|(ids, _)| ids).collect::<Vec<_>>();
    assert_eq!(rows(samples(&harvest, &harvest.segment_leaves)), [vec![1, 2, 9, 3, 8], vec![5, 7]]);
    assert_eq!(rows(samples(&harvest, &harvest.leaves)), [[1, 2, 9, 6, 4]]);
    let mut copy = Tree::new();
    copy.apply(&tree.delta().unwrap().unwrap()).unwrap();
    assert_eq!((copy.check(), copy.digest(), copy.tokens()), (Ok(()), tree.digest(), totals));
    let missing = |tree: &mut Tree, words: &[u32]| tree.context(words).unwrap_err().to_string();
    assert!(missing(&mut tree, &[u32::MAX, 1, 0, 0, 99]).contains("context 99 does not exist"));
    assert!(missing(&mut tree, &[u32::MAX, 1, 0, 0, 0, 0]).contains("a list of messages or a drift"));
    // One that names a drift instead of messages has none.
    let drift = tree.drift(DriftPolicy::Fork, 0, Some(TokenBuffer::given(vec![1]).as_slice())).unwrap();
    let nested = tree.context(&[u32::MAX, 1, 0, 0, drift.get()]).unwrap();
    assert!(!tree.has_messages(nested).unwrap());
}

#[test]
fn a_node_without_ids_ends_what_is_known() {
    let (mut tree, _) = play(&[]);
    let rollout = RolloutId::new(0);
    let sampled = TokenBuffer::sampled(vec![5], vec![-0.5], 3).unwrap();
    tree.turn(rollout, b"{}", Some(sampled.as_slice()), Call::default()).unwrap();
    let first = tree.observe(rollout, b"{\"a\":1}", None, NameId::EMPTY, 0, false).unwrap();
    let second = tree.observe(rollout, b"{\"b\":1}", None, NameId::EMPTY, 0, false).unwrap();
    let found = tree.align(second, &[1, 2, 3, 5, 6]).unwrap();
    assert_eq!((found.common, found.known, found.pending), (4, 4, vec![first, second]));
    let text = tree.ids_len(second, None, b"", b"").unwrap_err().to_string();
    assert!(text.starts_with(&format!("node {} has no token ids", first.get())), "{text}");
    assert_eq!(tree.ids_len(NodeId::ROOT, None, b"[", b"]").unwrap(), 2);
}
