//! Packing against a model.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
#![allow(clippy::cast_precision_loss, clippy::cast_sign_loss)]

mod model;
mod refusals;

use std::collections::{HashMap, HashSet};

use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use trunkline_core::pack::{
    Export, Fit, ForestTokens, Over, Oversize, Padded, Ragged, TokenValues, TreePacked, Weighting,
};
use trunkline_core::{Forest, SAMPLED, TokenBuffer};

use model::{Case, Expected, case, path};

/// A loss of a token, any function of it.
fn loss(at: usize) -> f64 {
    (at as f64 * 0.7).sin() + 2.0
}

fn near(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-5 * (1.0 + one.abs())
}

proptest! {
    #[test]
    fn ragged_rows_are_the_paths_end_to_end(case in case()) {
        let expected = case.expected();
        let packed = Ragged::new(&case.runs(), &case.export(), &Fit::default()).unwrap();
        prop_assert_eq!(packed.rows.rollouts.len(), expected.len());
        prop_assert_eq!(packed.offsets.len(), expected.len() + 1);
        for (row, want) in expected.iter().enumerate() {
            let range = packed.offsets[row]..packed.offsets[row + 1];
            prop_assert_eq!(range.len(), want.path.len());
            prop_assert_eq!(packed.rows.rows[want.rollout], row as i32);
            prop_assert_eq!(packed.rows.rollouts[row] as usize, want.rollout);
            prop_assert_eq!(packed.rows.prompt_lengths[row] as usize, want.prompt);
            for (place, (at, &token)) in range.zip(&want.path).enumerate() {
                prop_assert_eq!(packed.ids[at], case.tokens.ids[token]);
                prop_assert_eq!(packed.position_ids[at] as usize, place);
                prop_assert_eq!(packed.loss_mask[at] == 1, want.trained[place]);
                prop_assert_eq!(packed.logprobs[at].to_bits(), case.logprob(token).to_bits());
                prop_assert_eq!(packed.versions[at], case.tokens.versions[token]);
                prop_assert_eq!(packed.flags[at], case.tokens.flags[token]);
                prop_assert!(near(packed.advantages[at].into(), want.values[place]));
            }
            prop_assert!(case.same(&packed.unpack(row).unwrap(), &want.path));
        }
        prop_assert_eq!(packed.report.unknown as usize, Case::unknown(&expected));
        let chosen = case.rollouts.as_ref().map_or(case.forest.leaves().len(), Vec::len);
        prop_assert_eq!(packed.report.left_out as usize, chosen - expected.len());
        let absent = packed.rows.rows.iter().filter(|row| **row < 0).count();
        prop_assert_eq!(absent, case.forest.leaves().len() - expected.len());
    }

    #[test]
    fn padded_rows_are_the_ragged_ones_between_padding(
        case in case(),
        limits in any::<[bool; 2]>(),
        sizes in (0u32..6, 0u32..6),
        drop in any::<[bool; 2]>(),
    ) {
        let over = |drop| if drop { Over::Drop } else { Over::Cut };
        let fit = Fit {
            merge: false,
            max_prompt: limits[0].then_some(sizes.0),
            max_response: limits[1].then_some(sizes.1),
            long_prompt: over(drop[0]),
            long_response: over(drop[1]),
        };
        let packed = Padded::new(&case.runs(), &case.export(), &fit, 77).unwrap();
        let ragged = Ragged::new(&case.runs(), &case.export(), &fit).unwrap();
        let (max_prompt, max_response) = (fit.max_prompt.unwrap_or(99) as usize, fit.max_response.unwrap_or(99) as usize);
        let mut expected = case.expected();
        let all = expected.len();
        expected.retain(|row| {
            (!drop[0] || row.prompt <= max_prompt) && (!drop[1] || row.path.len() - row.prompt <= max_response)
        });
        prop_assert_eq!(packed.report.dropped as usize, all - expected.len());
        prop_assert_eq!((&packed.rows, packed.report), (&ragged.rows, ragged.report));
        prop_assert_eq!(packed.rows.lengths.len(), expected.len());
        let (prompts, responses) = (packed.prompts().unwrap(), packed.responses().unwrap());
        let (mut cut, mut widest, mut unknown) = (0, (0, 0), HashSet::new());
        for (row, want) in expected.iter().enumerate() {
            let kept = want.prompt.saturating_sub(max_prompt)..want.path.len().min(want.prompt + max_response);
            cut += want.path.len() - kept.len();
            unknown.extend(kept.clone().filter(|&place| want.unknown[place]).map(|place| want.path[place]));
            let (prompt, response) = (want.prompt - kept.start, kept.end - want.prompt);
            widest = (widest.0.max(prompt), widest.1.max(response));
            for place in 0..packed.width() {
                let (at, path) = (row * packed.width() + place, place + want.prompt);
                let token = path.checked_sub(packed.prompt_width).filter(|path| kept.contains(path));
                let before = (place + prompt).saturating_sub(packed.prompt_width).min(kept.len().saturating_sub(1));
                prop_assert_eq!(packed.position_ids[at] as usize, before);
                prop_assert_eq!(packed.attention_mask[at] == 1, token.is_some());
                let source = token.map(|token| want.path[token]);
                let id = source.map_or(77, |source| case.tokens.ids[source]);
                prop_assert_eq!(packed.input_ids[at], id);
                prop_assert_eq!(packed.flags[at], source.map_or(0, |source| case.tokens.flags[source]));
                let Some(place) = place.checked_sub(packed.prompt_width) else {
                    prop_assert_eq!(prompts[row * packed.prompt_width + place], id);
                    continue;
                };
                let at = row * packed.response_width + place;
                prop_assert_eq!(responses[at], id);
                prop_assert_eq!(packed.response_mask[at] == 1, token.is_some_and(|token| want.trained[token]));
                prop_assert_eq!(packed.logprobs[at].to_bits(), source.map_or(0.0, |token| case.logprob(token)).to_bits());
                prop_assert_eq!(packed.versions[at], source.map_or(-1, |source| case.tokens.versions[source]));
                prop_assert!(near(packed.advantages[at].into(), token.map_or(0.0, |token| want.values[token])));
            }
            prop_assert!(case.same(&packed.unpack(row).unwrap(), &want.path[kept.clone()]));
            prop_assert!(case.same(&ragged.unpack(row).unwrap(), &want.path[kept]));
        }
        prop_assert_eq!(packed.report.cut_tokens as usize, cut);
        prop_assert_eq!(packed.report.unknown as usize, unknown.len());
        let width = (fit.max_prompt.map_or(widest.0, |max| max as usize), fit.max_response.map_or(widest.1, |max| max as usize));
        prop_assert_eq!((packed.prompt_width, packed.response_width), width);
    }

    #[test]
    fn merged_rows_weigh_as_much_as_the_rollouts_they_stand_for(case in case()) {
        let fit = Fit { merge: true, ..Fit::default() };
        let packed = Ragged::new(&case.runs(), &case.export(), &fit).unwrap();
        let expected = case.expected();
        prop_assert_eq!(packed.rows.weights.iter().sum::<f32>() as usize, expected.len());
        prop_assert_eq!(packed.report.merged as usize, expected.len() - packed.rows.weights.len());
        let mut sums = vec![0.0; packed.ids.len()];
        for want in &expected {
            let row = packed.rows.rows[want.rollout] as usize;
            prop_assert!(case.same(&packed.unpack(row).unwrap(), &want.path));
            for (place, value) in want.values.iter().enumerate() {
                prop_assert_eq!(packed.loss_mask[packed.offsets[row] + place] == 1, want.trained[place]);
                sums[packed.offsets[row] + place] += value;
            }
        }
        for (row, &weight) in packed.rows.weights.iter().enumerate() {
            let range = packed.offsets[row]..packed.offsets[row + 1];
            for (&sum, &mean) in sums[range.clone()].iter().zip(&packed.advantages[range]) {
                prop_assert!(near(sum, f64::from(weight * mean)));
            }
        }
    }

    #[test]
    fn a_row_of_trees_shows_every_token_its_path_and_nothing_else(
        case in case(),
        more in option::of(0u32..9),
        weighting in select(vec![Weighting::Share, Weighting::Once, Weighting::Count]),
    ) {
        let expected = case.expected();
        let longest = expected.iter().map(|row| row.path.len()).max().unwrap_or(0) as u32;
        // Rows that hold little more than one path split most trees, some of them where a rollout ends.
        let max = more.map(|more| longest + more);
        let packed = TreePacked::new(&case.runs(), &case.export(), weighting, max, Oversize::Split).unwrap();
        let len = packed.ids.len();
        for column in [packed.position_ids.len(), packed.loss_mask.len(), packed.weights.len(), packed.advantages.len(),
            packed.logprobs.len(), packed.versions.len(), packed.flags.len(), packed.parents.len(), packed.subtree_ends.len()] {
            prop_assert_eq!(column, len);
        }
        let mut total = HashMap::<u32, f64>::new();
        for row in &expected {
            *total.entry(row.root).or_default() += 1.0;
            prop_assert!(case.same(&packed.unpack(row.rollout).unwrap(), &row.path));
        }
        let mut seen = HashMap::<usize, usize>::new();
        let mut repeated = 0;
        for row in packed.offsets.windows(2).enumerate() {
            let (row, start, len) = (row.0, row.1[0], row.1[1] - row.1[0]);
            prop_assert!(max.is_none_or(|max| len <= max as usize));
            let segments = packed.segments.offsets[row]..packed.segments.offsets[row + 1];
            let mut source = Vec::new();
            for segment in segments.clone() {
                let first = case.offsets[packed.segments.nodes[segment] as usize] as usize;
                let (from, to) = (packed.segments.starts[segment] as usize, packed.segments.ends[segment] as usize);
                prop_assert_eq!(from, source.len());
                source.extend((0..to - from).map(|place| (first + place, segment)));
            }
            prop_assert_eq!(source.len(), len);
            for (place, &(token, segment)) in source.iter().enumerate() {
                let at = start + place;
                // The way up, by the parents of tokens.
                let up: Vec<usize> = std::iter::successors(Some(place), |&at| usize::try_from(packed.parents[start + at]).ok()).collect();
                let sees = |other: usize| other <= place && place < packed.subtree_ends[start + other] as usize;
                prop_assert!((0..len).all(|other| sees(other) == up.contains(&other)));
                prop_assert_eq!(packed.position_ids[at] as usize, up.len() - 1);
                prop_assert_eq!(packed.subtree_ends[at], packed.segments.subtree_ends[segment]);
                let through: Vec<&Expected> = expected.iter().filter(|row| row.path.contains(&token)).collect();
                prop_assert!(!through.is_empty());
                for row in &through {
                    let want: Vec<usize> = row.path.iter().copied().take(up.len()).collect();
                    prop_assert_eq!(up.iter().rev().map(|&at| source[at].0).collect::<Vec<_>>(), want);
                }
                prop_assert_eq!(packed.segments.rollouts[segment] as usize, through.len());
                prop_assert_eq!(packed.ids[at], case.tokens.ids[token]);
                prop_assert_eq!(packed.logprobs[at].to_bits(), case.logprob(token).to_bits());
                if packed.segments.repeated[segment] == 1 {
                    repeated += 1;
                    prop_assert_eq!((packed.loss_mask[at], packed.weights[at], packed.advantages[at]), (0, 0.0, 0.0));
                    continue;
                }
                prop_assert!(seen.insert(token, at).is_none(), "a token stands twice");
                let place = up.len() - 1;
                let training: Vec<f64> = through.iter().filter(|row| row.trained[place]).map(|row| row.values[place]).collect();
                prop_assert_eq!(packed.loss_mask[at] == 1, !training.is_empty());
                let count = if training.is_empty() { through.len() } else { training.len() } as f64;
                let weight = match weighting {
                    Weighting::Share => count / total[&through[0].root],
                    Weighting::Once => 1.0,
                    Weighting::Count => count,
                };
                prop_assert!(near(weight, packed.weights[at].into()));
                let mean = training.iter().sum::<f64>() / training.len().max(1) as f64;
                prop_assert!(near(mean, packed.advantages[at].into()));
                let gains = training.iter().map(|value| value.max(0.0)).sum::<f64>() / training.len().max(1) as f64;
                prop_assert!(near(gains, packed.gains[at].into()));
            }
        }
        prop_assert_eq!(packed.report.repeated, repeated);
        prop_assert_eq!(packed.report.unknown as usize, Case::unknown(&expected));
        prop_assert!(expected.iter().flat_map(|row| &row.path).all(|token| seen.contains_key(token)));
    }

    #[test]
    fn one_pass_over_trees_has_the_loss_of_all_flat_rows(case in case(), max in 40u32..60) {
        let flat = Ragged::new(&case.runs(), &case.export(), &Fit { merge: true, ..Fit::default() }).unwrap();
        let packed =
            TreePacked::new(&case.runs(), &case.export(), Weighting::Count, Some(max), Oversize::Split).unwrap();
        let expected = case.expected();
        // Advantages of zero would hide a wrong sum.
        let landed = f64::from(u8::from(case.values.0 == 0));
        let mut flat_sum = 0.0;
        for (row, weight) in flat.rows.weights.iter().enumerate() {
            let want = expected.iter().find(|want| want.rollout == flat.rows.rollouts[row] as usize).unwrap();
            for (at, &token) in (flat.offsets[row]..flat.offsets[row + 1]).zip(&want.path) {
                let term = f64::from(flat.advantages[at]) + landed;
                flat_sum += f64::from(*weight) * f64::from(flat.loss_mask[at]) * term * loss(token);
            }
        }
        let mut tree_sum = 0.0;
        for row in 0..packed.offsets.len() - 1 {
            for segment in packed.segments.offsets[row]..packed.segments.offsets[row + 1] {
                let first = case.offsets[packed.segments.nodes[segment] as usize] as usize;
                let (from, to) = (packed.segments.starts[segment] as usize, packed.segments.ends[segment] as usize);
                for (place, at) in (packed.offsets[row] + from..packed.offsets[row] + to).enumerate() {
                    let term = f64::from(packed.advantages[at]) + landed;
                    let weight = f64::from(packed.weights[at]) * f64::from(packed.loss_mask[at]);
                    tree_sum += weight * term * loss(first + place);
                }
            }
        }
        prop_assert!((flat_sum - tree_sum).abs() < 1e-4 * (1.0 + flat_sum.abs()), "{} {}", flat_sum, tree_sum);
    }

    #[test]
    fn shares_of_a_tree_sum_to_the_mean_length_of_its_paths(case in case()) {
        let case = Case { masked: None, splits: None, ..case };
        let packed = TreePacked::new(&case.runs(), &case.export(), Weighting::Share, None, Oversize::Error).unwrap();
        let expected = case.expected();
        for row in packed.offsets.windows(2).enumerate() {
            let node = packed.segments.nodes[packed.segments.offsets[row.0]];
            let root = path(&case.forest, node)[0];
            let of_tree: Vec<usize> = expected.iter().filter(|row| row.root == root).map(|row| row.path.len()).collect();
            let mean = of_tree.iter().sum::<usize>() as f64 / of_tree.len() as f64;
            let sum: f64 = packed.weights[row.1[0]..row.1[1]].iter().map(|&weight| f64::from(weight)).sum();
            prop_assert!(near(mean, sum), "{} {}", mean, sum);
        }
    }
}

#[test]
fn a_rollout_that_ends_where_a_tree_is_split_is_found_where_it_is_trained() {
    // q -> A, B -> {B1, B2}, one token each; B ends a rollout and is repeated before B2.
    let tokens = TokenBuffer::sampled(vec![10, 11, 12, 13, 14], vec![-0.5; 5], 0).unwrap();
    let forest = Forest::new(vec![0, 0, 0, 2, 2], vec![1, 2, 3, 4]).unwrap();
    let runs = ForestTokens::new(&forest, &[0, 1, 2, 3, 4, 5], tokens.as_slice()).unwrap();
    let packed = TreePacked::new(&runs, &Export::default(), Weighting::Count, Some(4), Oversize::Split).unwrap();
    assert_eq!(
        (packed.offsets.as_slice(), packed.segments.nodes.as_slice()),
        (&[0, 4, 7][..], &[0, 1, 2, 3, 0, 2, 4][..])
    );
    assert_eq!((packed.rows.as_slice(), packed.last_segments.as_slice()), (&[0, 0, 0, 1][..], &[1, 2, 3, 2][..]));
    assert_eq!(packed.weights, [4.0, 1.0, 3.0, 1.0, 0.0, 0.0, 1.0]);
    assert_eq!(packed.unpack(1).unwrap().ids, [10, 12]);
}

/// A quadratic way would take minutes.
#[test]
fn rollouts_that_end_along_a_long_chain_are_one_walk() {
    let len = 200_000u32;
    let tokens = TokenBuffer { flags: vec![SAMPLED; len as usize], ..TokenBuffer::given((0..len).collect()) };
    let forest = Forest::new((0..len).map(|node| node.saturating_sub(1)).collect(), (0..len).collect()).unwrap();
    let offsets: Vec<u64> = (0..=u64::from(len)).collect();
    let values: Vec<f64> = (0..len).map(f64::from).collect();
    let splits = vec![0; len as usize];
    let export = Export { splits: Some(&splits), values: TokenValues::Rollout(&values), ..Export::default() };
    let runs = ForestTokens::new(&forest, &offsets, tokens.as_slice()).unwrap();
    let packed = TreePacked::new(&runs, &export, Weighting::Count, None, Oversize::Error).unwrap();
    assert_eq!(packed.loss_mask.iter().map(|&mask| u32::from(mask)).sum::<u32>(), len - 1);
    for node in [1, 7, len - 1] {
        let below = f64::from(len - node);
        let mean = f64::from(node + len - 1) / 2.0;
        assert!(near(below, packed.weights[node as usize].into()));
        assert!(near(mean, packed.advantages[node as usize].into()));
    }
    // Nodes without tokens are not walked for every rollout either.
    let offsets: Vec<u64> = (0..=len).map(|node| u64::from(node == len)).collect();
    let one = TokenBuffer { flags: vec![SAMPLED], ..TokenBuffer::given(vec![7]) };
    let runs = ForestTokens::new(&forest, &offsets, one.as_slice()).unwrap();
    assert_eq!(Ragged::new(&runs, &Export::default(), &Fit::default()).unwrap().ids, [7]);
}
