//! What cannot be packed is refused by name.

use trunkline_core::pack::{
    Export, Fit, ForestTokens, Over, Oversize, Padded, Ragged, TokenValues, TreePacked, Unknown, Weighting,
};
use trunkline_core::{Forest, Result, SAMPLED, TokenBuffer};

use super::model::Case;

fn refusal(change: impl Fn(&mut Case)) -> String {
    let tokens = TokenBuffer::sampled(vec![1, 2, 3], vec![-0.5, f32::NAN, -0.5], 0).unwrap();
    let forest = Forest::new(vec![0, 0, 0], vec![1, 2]).unwrap();
    let mut case = Case {
        forest,
        offsets: vec![0, 1, 2, 3],
        tokens,
        rollouts: None,
        masked: None,
        leave_out: false,
        splits: None,
        values: (0, Vec::new()),
    };
    change(&mut case);
    let tokens = case.tokens.as_slice();
    let runs = match ForestTokens::new(&case.forest, &case.offsets, tokens) {
        Ok(runs) => runs,
        Err(error) => return error.to_string(),
    };
    let export = Export { unknown: Unknown::Error, ..case.export() };
    Ragged::new(&runs, &export, &Fit::default()).unwrap_err().to_string()
}

#[test]
fn what_cannot_be_packed_is_refused_by_name() {
    type Change = fn(&mut Case);
    let cases: [(Change, &str); 15] = [
        (|_| (), "the log-probability of sampled token 0 of node 1 is NaN"),
        (|case| case.offsets = vec![0, 1, 2], "3 offsets where 4 are needed"),
        (|case| case.offsets = vec![1, 1, 2, 3], "offset 0 of the runs is 1"),
        (|case| case.offsets = vec![0, 2, 1, 3], "offset 2 of the runs is 1"),
        (|case| case.offsets = vec![0, 1, 2, 4], "offset 3 of the runs is 4"),
        (|case| case.offsets = vec![0, 1, 2, 2], "offset 3 of the runs is 2"),
        (|case| case.rollouts = Some(vec![1, 2]), "rollout 2 of those to export"),
        (|case| case.rollouts = Some(vec![1, 1]), "is there twice"),
        (|case| case.masked = Some(vec![0]), "1 masks of rollouts where 2 are needed"),
        (|case| case.masked = Some(vec![1, 2]), "the mask of rollout 1 is 2"),
        (|case| case.splits = Some(vec![2, 2]), "the split node of rollout 0 is 2"),
        (|case| case.splits = Some(vec![0, 9]), "the split node of rollout 1 is 9"),
        (|case| case.values = (1, vec![f64::NAN, 0.0]), "the value of rollout 0 is NaN"),
        (|case| case.values = (2, vec![0.0; 2]), "2 values of nodes where 3 are needed"),
        (|case| case.values = (1, vec![0.0, 1e300]), "the value of rollout 1 is 1000000"),
    ];
    for (change, text) in cases {
        let refused = refusal(change);
        assert!(refused.contains(text), "{refused} instead of {text}");
    }
}

#[test]
fn a_tree_without_token_ids_is_refused_by_every_layout_unless_nothing_of_it_is_trained() {
    // Two trees, and tokens in the first: rollout 0 has some, 1 has none, 2 is of the tree that has none.
    let forest = Forest::new(vec![0, 0, 0, 3, 3], vec![1, 2, 4]).unwrap();
    let tokens = TokenBuffer::sampled(vec![5], vec![-0.5], 0).unwrap();
    let runs = ForestTokens::new(&forest, &[0, 0, 1, 1, 1, 1], tokens.as_slice()).unwrap();
    let pack = |export: &Export<'_>| {
        let rows = Ragged::new(&runs, export, &Fit::default()).map(|packed| packed.rows.lengths);
        let padded = Padded::new(&runs, export, &Fit::default(), 0).map(|packed| packed.rows.lengths);
        let tree =
            TreePacked::new(&runs, export, Weighting::Once, None, Oversize::Error).map(|packed| packed.ids.len());
        assert_eq!(rows, padded);
        assert_eq!(tree.as_ref().err(), rows.as_ref().err());
        rows.map_err(|error| error.to_string())
    };
    let refused = pack(&Export::default()).unwrap_err();
    assert!(refused.starts_with("the tree of rollout 2 has no token ids; it must be grown with"), "{refused}");
    assert!(refused.contains("TokenMode()"), "{refused}");
    let masked = Export { masked: Some(&[0, 0, 1]), ..Export::default() };
    assert_eq!(pack(&masked), Ok(vec![1, 0, 0]));
    assert_eq!(pack(&Export { leave_out: true, ..masked }), Ok(vec![1, 0]));
    assert_eq!(pack(&Export { rollouts: Some(&[0, 1]), ..Export::default() }), Ok(vec![1, 0]));
}

fn land<'a>(runs: &ForestTokens<'a>, values: TokenValues<'a>, masked: Option<&'a [u8]>) -> Result<Vec<f32>> {
    let export = Export { values, masked, ..Export::default() };
    Ragged::new(runs, &export, &Fit::default()).map(|packed| packed.advantages)
}

#[test]
fn values_must_be_finite_only_where_something_is_trained() {
    let tokens = TokenBuffer { flags: vec![0, SAMPLED], ..TokenBuffer::given(vec![1, 2]) };
    let forest = Forest::new(vec![0, 0], vec![1, 1]).unwrap();
    let runs = ForestTokens::new(&forest, &[0, 1, 2], tokens.as_slice()).unwrap();
    let nan = f64::NAN;
    assert_eq!(land(&runs, TokenValues::Node(&[nan, 2.0]), None), Ok(vec![0.0, 2.0, 0.0, 2.0]));
    assert_eq!(land(&runs, TokenValues::Token(&[nan, 2.0]), None), Ok(vec![0.0, 2.0, 0.0, 2.0]));
    assert_eq!(land(&runs, TokenValues::Rollout(&[nan, 2.0]), Some(&[1, 0])), Ok(vec![0.0, 0.0, 0.0, 2.0]));
    assert_eq!(land(&runs, TokenValues::Node(&[0.0, nan]), Some(&[1, 1])), Ok(vec![0.0; 4]));
    let refused = land(&runs, TokenValues::Node(&[0.0, nan]), None).unwrap_err().to_string();
    assert!(refused.starts_with("the value of node 1 is NaN"), "{refused}");
    let refused = land(&runs, TokenValues::Token(&[0.0, nan]), None).unwrap_err().to_string();
    assert!(refused.starts_with("the value of token 1 is NaN"), "{refused}");
}

#[test]
fn what_is_cut_off_is_not_asked_for_log_probabilities_or_values() {
    let tokens = TokenBuffer::sampled(vec![1, 2], vec![-0.5, f32::NAN], 0).unwrap();
    let forest = Forest::new(vec![0, 0], vec![1]).unwrap();
    let runs = ForestTokens::new(&forest, &[0, 0, 2], tokens.as_slice()).unwrap();
    let cut = |max| Fit { max_response: Some(max), long_response: Over::Cut, ..Fit::default() };
    let packed = Ragged::new(&runs, &Export::default(), &cut(1)).unwrap();
    assert_eq!((packed.loss_mask, packed.report.unknown), (vec![1], 0));
    let refused = Ragged::new(&runs, &Export::default(), &cut(2)).unwrap_err().to_string();
    assert!(refused.starts_with("the log-probability of sampled token 1 of node 1 is NaN"), "{refused}");

    let known = TokenBuffer { logprobs: vec![-0.5; 2], ..tokens };
    let runs = ForestTokens::new(&forest, &[0, 0, 2], known.as_slice()).unwrap();
    let export = Export { values: TokenValues::Token(&[2.0, f64::INFINITY]), ..Export::default() };
    assert_eq!(Padded::new(&runs, &export, &cut(1), 0).unwrap().advantages, [2.0]);
    let refused = Padded::new(&runs, &export, &cut(2), 0).unwrap_err().to_string();
    assert!(refused.starts_with("the value of token 1 is inf"), "{refused}");
}

#[test]
fn rectangles_beyond_memory_are_refused() {
    let tokens = TokenBuffer::given(vec![1]);
    let forest = Forest::new(vec![0], vec![0; 100_000]).unwrap();
    let runs = ForestTokens::new(&forest, &[0, 1], tokens.as_slice()).unwrap();
    for (max_prompt, max_response) in [(u32::MAX, 1), (1, u32::MAX), (u32::MAX, u32::MAX)] {
        let fit = Fit { max_prompt: Some(max_prompt), max_response: Some(max_response), ..Fit::default() };
        let refused = Padded::new(&runs, &Export::default(), &fit, 0).unwrap_err().to_string();
        assert!(refused.ends_with("it must be what fits in memory"), "{refused}");
    }
}

#[test]
fn limits_are_kept_or_said() {
    let tokens = TokenBuffer { flags: vec![0, 0, SAMPLED, SAMPLED], ..TokenBuffer::given(vec![1, 2, 3, 4]) };
    let forest = Forest::new(vec![0, 0], vec![1]).unwrap();
    let runs = ForestTokens::new(&forest, &[0, 3, 4], tokens.as_slice()).unwrap();
    let pack = |fit: Fit| Padded::new(&runs, &Export::default(), &fit, 0).map_err(|error| error.to_string());
    let refused = pack(Fit { max_prompt: Some(1), ..Fit::default() }).unwrap_err();
    assert!(refused.starts_with("the prompt of rollout 0 has 2 tokens where 1 fit"), "{refused}");
    let refused = pack(Fit { max_response: Some(1), ..Fit::default() }).unwrap_err();
    assert!(refused.starts_with("the response of rollout 0 has 2 tokens where 1 fit"), "{refused}");

    let tree = |max, oversize| {
        let forest = Forest::new(vec![0, 0, 0], vec![1, 2]).unwrap();
        let runs = ForestTokens::new(&forest, &[0, 2, 3, 4], tokens.as_slice()).unwrap();
        let packed = TreePacked::new(&runs, &Export::default(), Weighting::Share, Some(max), oversize);
        packed.map(|packed| (packed.offsets, packed.report.repeated)).map_err(|error| error.to_string())
    };
    assert_eq!(tree(4, Oversize::Error), Ok((vec![0, 4], 0)));
    assert_eq!(tree(3, Oversize::Split), Ok((vec![0, 3, 6], 2)));
    let refused = tree(3, Oversize::Error).unwrap_err();
    assert!(refused.starts_with("the tree of root 0 has more than the 3 tokens that fit in a row"), "{refused}");
    let refused = tree(2, Oversize::Split).unwrap_err();
    assert!(refused.starts_with("the path to node 1 has 3 tokens where 2 fit in a row"), "{refused}");
}
