//! Every reader of a tree that came from anyone: whatever the tree says, they refuse it or agree with each other.

use trunkline_core::advantage::{
    Batch, Estimator, NodeValues, Scope, Trained, group_advantages, step_returns, to_nodes, to_tokens,
};
use trunkline_core::pack::{
    Export, Fit, ForestTokens, Over, Oversize, Padded, Ragged, TokenValues, TreePacked, Unknown, Weighting,
};
use trunkline_core::select::{Formula, LogprobColumns, Scoring, Search, fork_points, surprising};
use trunkline_core::{
    ContextId, DriftOptions, DriftPolicy, Forest, Harvest, NodeId, RolloutId, SAMPLED, SYNTHETIC, Source, TokenBuffer,
    Tree,
};

/// Tokens of all paths together from which on flat rows are not made: a short delta can name a long run often.
const MOST: u64 = 1 << 18;

/// Nodes at which prompts are settled, each on a copy of the tree.
const SETTLED: u32 = 12;

/// Read a tree in every way.
pub fn read(tree: &Tree) {
    let tokens = tree.tokens();
    assert!(tokens.flat >= tokens.tree && tokens.tree >= tokens.longest, "{tokens:?}");
    read_nodes(tree);
    read_states(tree);
    for node in (0..tree.nodes().min(SETTLED)).map(NodeId::new) {
        settle(tree, node);
    }
    read_columns_of(tree);
}

/// Harvest a tree twice, and read its columns in every way.
pub fn read_columns_of(tree: &Tree) {
    let mut harvest = Harvest::new();
    if harvest.add(tree).is_ok() {
        harvest.add(tree).unwrap();
        read_columns(&harvest);
    }
}

fn read_nodes(tree: &Tree) {
    for node in (0..tree.nodes()).map(NodeId::new) {
        let path = tree.path(node).unwrap();
        assert_eq!(path.len(), tree.node(node).unwrap().depth as usize);
        let body = tree.body(Source::Path(node), b"[", b"]").unwrap();
        assert_eq!(body.len(), tree.body_len(Source::Path(node), b"[", b"]").unwrap());
        if let (Ok(len), Ok(ids)) = (tree.ids_len(node, None, b"", b""), tree.last_ids(node, usize::MAX)) {
            let mut out = vec![0; len];
            tree.ids_into(node, None, b"", b"", &mut out).unwrap();
            assert_eq!(String::from_utf8_lossy(&out), ids.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
            assert_eq!(tree.align(node, &ids).unwrap().common, ids.len());
        }
        let _unknown = (tree.aside(node).unwrap(), tree.report_of(node).unwrap(), tree.drift_of(node).unwrap());
        if let Some(context) = tree.node(node).unwrap().context {
            let _drift = tree.body(Source::Context(context), b"[", b"]");
        }
    }
    // One that does not exist is refused.
    assert!(tree.body(Source::Context(ContextId::new(u32::MAX)), b"", b"").is_err());
}

/// A state names a draw that no rollout has, and a path that some rollout through the node has.
fn read_states(tree: &Tree) {
    let paths: std::collections::HashSet<_> =
        (0..tree.rollouts()).map(|id| tree.rollout(RolloutId::new(id)).unwrap().path).collect();
    for node in (0..tree.nodes()).map(NodeId::new) {
        let Ok(state) = tree.state(node) else { continue };
        assert_eq!(state.turn, tree.node(node).unwrap().turns);
        assert!(state.path.is_empty() || paths.contains(&*state.path));
        let next = [&*state.path, &[state.turn, state.draw]].concat();
        assert!(state.draw == u32::MAX || !paths.contains(&*next), "{state:?}");
    }
}

/// Settle a prompt that goes along with the path as far as it is known, one that parts from it, and one that does not begin
/// like it: the tree stays sound, and what changed travels.
fn settle(tree: &Tree, node: NodeId) {
    let known = tree.last_ids(node, 1 << 12).unwrap_or_default();
    let half = &known[..known.len() / 2];
    for policy in DriftPolicy::ALL {
        for prompt in [[&*known, &[7]].concat(), [half, &[9, 9]].concat(), vec![], vec![1, 0, 2]] {
            let mut copy = tree.clone();
            let settled = copy.settle(node, &prompt, DriftOptions { policy, limit: 3 });
            assert_eq!(copy.check(), Ok(()), "after {settled:?}");
            let mut follower = tree.clone();
            if let Ok(Some(delta)) = copy.delta() {
                assert_eq!(follower.apply(&delta), Ok(true));
            }
            assert_eq!(follower.digest(), copy.digest());
        }
    }
}

fn read_columns(harvest: &Harvest) {
    let forest = harvest.forest().unwrap();
    let nodes = forest.parents().len();
    let tokens = harvest.tokens.as_slice();
    let runs = ForestTokens::new(&forest, &harvest.offsets, tokens).unwrap();
    let _points = fork_points(&forest, &harvest.kinds).unwrap();
    let columns =
        LogprobColumns { offsets: &harvest.offsets, logprobs: tokens.logprobs, flags: tokens.flags, cuts: None };
    for diverse in [false, true] {
        let _refused = surprising(&forest, &columns, 5, u32::MAX, diverse);
    }
    let advantages = estimate(harvest, &forest);
    let scoring = Scoring { formula: Formula::Uct, c: 1.0, offset: 0.0, loss: 0.0 };
    let search = Search::new(forest.clone(), forest.passes(), advantages.clone(), vec![0; nodes], scoring);
    if let Ok(mut search) = search {
        let _refused = (search.scores().len(), search.descend(0, &vec![2; nodes], 3));
    }
    pack(&runs, &TokenValues::Node(&advantages), None, &bare(&forest, &harvest.offsets));
    // What ended where a prompt forked is a row as well.
    let leaves = [&*harvest.leaves, &harvest.segment_leaves].concat();
    let longer = Forest::new(harvest.parents.clone(), leaves).unwrap();
    let masked: Vec<u8> = (0..longer.leaves().len()).map(|at| u8::from(at % 3 == 2)).collect();
    let runs = ForestTokens::new(&longer, &harvest.offsets, tokens).unwrap();
    pack(&runs, &TokenValues::Nothing, Some(&masked), &bare(&longer, &harvest.offsets));
}

/// Every estimator; of nodes the values where there are any.
fn estimate(harvest: &Harvest, forest: &Forest) -> Vec<f64> {
    let rows = u32::try_from(harvest.leaves.len()).unwrap();
    let trajectory: Vec<u32> = (0..rows).collect();
    let masked: Vec<u8> = harvest.terminations.iter().map(|&code| u8::from(code > 100)).collect();
    let batch = Batch {
        rewards: &harvest.rewards,
        group: Some(&harvest.groups),
        subgroup: Some(&harvest.subgroups),
        agent: Some(&harvest.draws),
        anchor: Some(&harvest.leaves),
        trajectory: Some(&trajectory),
        step: Some(&harvest.draws),
        step_rewards: Some(&harvest.rewards),
        masked: Some(&masked),
        selected: Some(&masked),
        tokens: Some(&harvest.draws),
        forest: Some(forest),
    };
    let plain = Batch { trajectory: None, step: None, step_rewards: None, selected: None, tokens: None, ..batch };
    for preset in Estimator::PRESETS {
        let estimator = Estimator::preset(preset).unwrap();
        for batch in [&batch, &plain] {
            let Ok(found) = estimator.estimate(batch) else { continue };
            let size = if estimator.on_nodes() { forest.parents().len() } else { harvest.leaves.len() };
            assert_eq!((found.values.len(), found.kept.len()), (size, size), "{preset}");
            let kept = found.kept.iter().zip(&found.values).filter(|(kept, _)| **kept == 1);
            assert!(kept.clone().all(|(_, value)| value.is_finite()), "{preset}: {found:?}");
        }
    }
    let scopes = [Scope::Keys(vec![&harvest.groups]), Scope::Subtrees(forest)];
    let _refused = group_advantages(&plain, &scopes, Estimator::groups().options());
    let _refused = step_returns(&harvest.rewards, &trajectory, None, 0.9);
    let mut values = NodeValues::default();
    // A delta may hold rewards that no sum can be made of.
    if values.leaf_means(forest, &harvest.rewards).is_err() {
        return vec![0.0; forest.parents().len()];
    }
    let on_nodes = to_nodes(forest, &harvest.rewards, Some(&masked)).unwrap();
    let flags = Trained::Flags(&harvest.tokens.flags);
    let (landed, mask) = to_tokens(&on_nodes.values, Some(&on_nodes.kept), &harvest.offsets, flags).unwrap();
    assert!(landed.len() == harvest.tokens.ids.len() && landed.iter().all(|value| value.is_finite()), "{mask:?}");
    for backup in ["child_mean", "leaf_mean"] {
        values.named(backup, forest, &harvest.rewards, None, 0.9).unwrap();
        assert_eq!(values.values.len(), forest.parents().len());
    }
    // Layouts have 32-bit values.
    let known: Vec<f64> = values.values.iter().map(|value| if value.abs() < 1e30 { *value } else { 0.0 }).collect();
    values.named("discounted", forest, &known, Some(&forest.passes()), 0.9).unwrap();
    known
}

/// Per rollout whether its tree has no tokens at all.
fn bare(forest: &Forest, offsets: &[u64]) -> Vec<bool> {
    let roots = forest.roots();
    let mut known = vec![false; roots.len()];
    for (&root, span) in roots.iter().zip(offsets.windows(2)) {
        known[root as usize] |= span[0] < span[1];
    }
    forest.leaves().iter().map(|&leaf| !known[roots[leaf as usize] as usize]).collect()
}

/// Every layout: a tree without tokens is refused, and what is unpacked from one is what is unpacked from the others.
fn pack(runs: &ForestTokens<'_>, values: &TokenValues<'_>, masked: Option<&[u8]>, bare: &[bool]) {
    let rows = runs.forest().leaves().len();
    let tree_tokens = u64::try_from(runs.tokens().len()).unwrap();
    let export = Export { masked, values: *values, unknown: Unknown::Mask, ..Export::default() };
    let is_masked = |row: usize| masked.is_some_and(|masked| masked[row] == 1);
    let found = TreePacked::new(runs, &export, Weighting::Share, None, Oversize::Error);
    assert_eq!(found.is_err(), (0..rows).any(|row| bare[row] && !is_masked(row)));
    let masked: Vec<u8> = (0..rows).map(|row| u8::from(bare[row] || is_masked(row))).collect();
    let export = Export { masked: Some(&masked), ..export };
    let whole = TreePacked::new(runs, &export, Weighting::Share, None, Oversize::Error).unwrap();
    let split = TreePacked::new(runs, &export, Weighting::Once, Some(64), Oversize::Split);
    let _refused =
        TreePacked::new(runs, &Export { unknown: Unknown::Error, ..export }, Weighting::Count, None, Oversize::Split);
    assert!(whole.ids.len() as u64 <= tree_tokens);
    // Longer than any path can be, so that no limit is needed to know that the rows fit.
    if tree_tokens.saturating_mul(rows as u64) > MOST {
        return;
    }
    let flat = Ragged::new(runs, &export, &Fit::default()).unwrap();
    assert_eq!(flat.offsets.len(), rows + 1);
    for at in 0..flat.ids.len() {
        let sampled = flat.flags[at] & (SAMPLED | SYNTHETIC) == SAMPLED;
        assert!(flat.loss_mask[at] == 0 || sampled && flat.logprobs[at].is_finite(), "token {at}");
    }
    let padded = Padded::new(runs, &export, &Fit::default(), 0).unwrap();
    let same = |one: &TokenBuffer, other: &TokenBuffer| one.as_slice().same(&other.as_slice());
    for row in 0..rows {
        let tokens = flat.unpack(row).unwrap();
        assert!(same(&tokens, &padded.unpack(row).unwrap()), "row {row}");
        assert!(same(&tokens, &whole.unpack(row).unwrap()), "row {row}");
        if let Ok(split) = &split {
            assert!(same(&tokens, &split.unpack(row).unwrap()), "row {row}");
        }
    }
    let fit = Fit {
        merge: true,
        max_prompt: Some(3),
        max_response: Some(4),
        long_prompt: Over::Cut,
        long_response: Over::Drop,
    };
    let (flat, padded) = (Ragged::new(runs, &export, &fit).unwrap(), Padded::new(runs, &export, &fit, 0).unwrap());
    assert_eq!(flat.rows, padded.rows);
}
