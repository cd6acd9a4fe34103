//! Deltas: the tree they rebuild is the tree that wrote them, and no bytes do harm.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

mod calls;
#[path = "../common/mod.rs"]
mod common;
mod format;
mod travel;

use std::time::{Duration, Instant};

use common::script::{message, play, run, script};
use common::{payload, portrait, seal};
use proptest::prelude::*;
use proptest::sample::Index;
use trunkline_core::{DeltaError, Error, Kind, NameId, NodeId, Termination, Tree};

/// Play a script and take a delta after each operation whose bit is set, and one at the end.
fn record(cmds: &[common::script::Cmd], cuts: &[bool]) -> (Tree, Vec<Vec<u8>>) {
    let (mut tree, mut contexts, mut deltas) = (Tree::new(), 0, Vec::new());
    for (cmd, cut) in cmds.iter().zip(cuts.iter().chain(std::iter::repeat(&false))) {
        let _refused = run(&mut tree, &mut contexts, cmd);
        if *cut {
            deltas.extend(tree.delta().unwrap());
        }
    }
    deltas.extend(tree.delta().unwrap());
    (tree, deltas)
}

/// The record with some bytes of its payload changed, framed soundly again.
fn forge(delta: &[u8], edits: &[(Index, u8)]) -> Vec<u8> {
    let mut ops = payload(delta).to_vec();
    for (at, byte) in edits {
        let at = at.index(ops.len());
        ops[at] ^= byte;
    }
    let sequence = u32::from_le_bytes(delta[8..12].try_into().unwrap());
    let previous = u64::from_le_bytes(delta[16..24].try_into().unwrap());
    seal(sequence, previous, &ops)
}

/// Whatever became of the bytes, the tree is sound, and a refusal changed nothing.
fn survives(tree: &mut Tree, bytes: &[u8]) -> bool {
    let before = portrait(tree);
    let applied = tree.apply(bytes);
    assert_eq!(tree.check(), Ok(()), "{applied:?}");
    if applied != Ok(true) {
        assert_eq!(portrait(tree), before);
    }
    applied == Ok(true)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_split_rebuilds_the_tree(cmds in script(60), cuts in prop::collection::vec(any::<bool>(), 60)) {
        let (mut tree, deltas) = record(&cmds, &cuts);
        let mut copy = Tree::new();
        for delta in &deltas {
            prop_assert_eq!(copy.apply(delta), Ok(true));
            prop_assert_eq!(copy.apply(delta), Ok(false));
        }
        prop_assert_eq!(portrait(&copy), portrait(&tree));
        prop_assert_eq!(copy.check(), Ok(()));
        prop_assert_eq!(copy.delta(), Ok(None));
        // The copy goes on where the tree stopped: both write the same next delta.
        for grown in [&mut tree, &mut copy] {
            let rollout = grown.open(NodeId::ROOT, &[9, 9, 9, 9, 9], 0).unwrap();
            grown.turn(rollout, &message(99), None, common::call(5, 5)).unwrap();
        }
        prop_assert_eq!(copy.delta(), tree.delta());
    }

    #[test]
    fn splits_do_not_matter(cmds in script(40), cuts in prop::collection::vec(any::<bool>(), 40)) {
        let (tree, deltas) = record(&cmds, &cuts);
        let (_, whole) = record(&cmds, &[]);
        let parts: Vec<u8> = deltas.iter().flat_map(|delta| payload(delta).to_vec()).collect();
        let joined: Vec<u8> = whole.iter().flat_map(|delta| payload(delta).to_vec()).collect();
        prop_assert_eq!(parts, joined);
        prop_assert_eq!(portrait(&tree), portrait(&play(&cmds)));
    }

    #[test]
    fn noise_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut tree = Tree::new();
        prop_assert!(!survives(&mut tree, &bytes));
        prop_assert!(tree.apply(&bytes).is_err());
    }

    #[test]
    fn sealed_noise_does_no_harm(ops in prop::collection::vec(prop_oneof![0u8..17, any::<u8>()], 0..60)) {
        survives(&mut Tree::new(), &seal(0, 0, &ops));
    }

    #[test]
    fn damage_is_refused(cmds in script(40), at in any::<Index>(), bit in 0..8u8, cut in any::<Index>()) {
        let (_, deltas) = record(&cmds, &[]);
        for delta in &deltas {
            let mut flipped = delta.clone();
            flipped[at.index(delta.len())] ^= 1 << bit;
            let mut tree = Tree::new();
            prop_assert!(!survives(&mut tree, &flipped));
            prop_assert!(tree.apply(&flipped).is_err());
            prop_assert!(!survives(&mut tree, &delta[..cut.index(delta.len())]));
            prop_assert!(!survives(&mut tree, &[delta.as_slice(), b"x"].concat()));
            prop_assert_eq!(tree.apply(delta), Ok(true));
        }
    }

    #[test]
    fn forged_operations_do_no_harm(
        cmds in script(60),
        cuts in prop::collection::vec(prop::bool::weighted(0.1), 60),
        edits in prop::collection::vec((any::<Index>(), 1u8..), 1..4),
        which in any::<Index>(),
    ) {
        let (_, deltas) = record(&cmds, &cuts);
        if deltas.is_empty() {
            return Ok(());
        }
        let target = which.index(deltas.len());
        let mut tree = Tree::new();
        for delta in &deltas[..target] {
            prop_assert_eq!(tree.apply(delta), Ok(true));
        }
        let forged = forge(&deltas[target], &edits);
        if !survives(&mut tree, &forged) {
            prop_assert_eq!(tree.apply(&deltas[target]), Ok(true), "the true delta no longer fits");
        }
    }
}

fn small() -> Tree {
    let mut tree = Tree::new();
    let prompt = tree.append(NodeId::ROOT, Kind::Prompt, &message(1), None, NameId::EMPTY).unwrap();
    tree.open(prompt, &[0, 0], 0).unwrap();
    tree
}

#[test]
fn nothing_changed_gives_no_delta() {
    let mut tree = Tree::new();
    assert_eq!(tree.delta(), Ok(None));
    assert!(tree.append(NodeId::new(5), Kind::Prompt, &message(1), None, NameId::EMPTY).is_err());
    assert_eq!(tree.delta(), Ok(None), "a refused operation was written down");
    let mut tree = small();
    assert!(tree.delta().unwrap().is_some());
    assert_eq!(tree.delta(), Ok(None));
}

#[test]
fn gaps_histories_and_own_changes_are_refused() {
    let refused = |error| Err(Error::Delta(error));
    let mut writer = small();
    let first = writer.delta().unwrap().unwrap();
    writer.close(0.into(), Termination::Answer, Some("42"), None).unwrap();
    let second = writer.delta().unwrap().unwrap();

    let mut reader = Tree::new();
    assert_eq!(reader.apply(&second), refused(DeltaError::Gap { expected: 0, found: 1 }));
    let mut own = small();
    assert_eq!(own.apply(&first), refused(DeltaError::Pending));

    let mut other = small();
    other.open(NodeId::ROOT, &[7], 0).unwrap();
    let foreign = other.delta().unwrap().unwrap();
    assert_eq!(reader.apply(&foreign), Ok(true));
    assert_eq!(reader.apply(&second), refused(DeltaError::Foreign { sequence: 1 }));
    assert_eq!(
        (reader.apply(&foreign), reader.apply(&first)),
        (Ok(false), refused(DeltaError::Foreign { sequence: 0 }))
    );
}

#[test]
fn a_reader_says_what_is_wrong() {
    let mut writer = small();
    let delta = writer.delta().unwrap().unwrap();
    let mut tree = Tree::new();
    let mut error = |bytes: &[u8]| tree.apply(bytes).unwrap_err().to_string();
    assert_eq!(error(b""), "delta refused: it is truncated: 0 bytes where 32 are needed");
    assert_eq!(error(b"SQLite format 3\0 and so on"), "delta refused: it does not start like a delta");
    let version = [&delta[..4], &[9, 0], &delta[6..]].concat();
    assert_eq!(error(&version), "delta refused: its format version is 9; this build reads version 8");
    let unknown = seal(0, 0, &[200]);
    assert_eq!(error(&unknown), "delta refused: operation 0 at byte 0 cannot be read: its kind is unknown");
    let early = seal(0, 0, &[1, 1, b'a', 8, 0]);
    assert_eq!(error(&early), "delta refused: operation 1 at byte 3 cannot be read: it ends too early");
    let maybe = seal(0, 0, &[7, 0, 0, 0, 0, 0, 2]);
    assert_eq!(error(&maybe), "delta refused: operation 0 at byte 0 cannot be read: a flag is neither 0 nor 1");
    let twice = seal(0, 0, &[1, 1, b'a', 1, 1, b'a']);
    assert_eq!(error(&twice), "delta refused: operation 1 is against the rules: this name is interned already");
    let lonely = seal(0, 0, &[9, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert!(error(&lonely).ends_with("rollout 0 does not exist; there are 0"));
}

#[test]
fn a_short_delta_whose_contexts_join_much_is_left_for_later() {
    let mut tree = small();
    let long = format!("\u{1}{}}}", "x".repeat(5000));
    let pieces = [tree.fragment(b"\x02{").unwrap().get(), tree.fragment(long.as_bytes()).unwrap().get()];
    let mut copy = Tree::new();
    assert_eq!(copy.apply_short(&tree.delta().unwrap().unwrap(), 0), Ok(Some(true)));
    tree.context(&pieces.repeat(3)).unwrap();
    let (delta, before) = (tree.delta().unwrap().unwrap(), portrait(&copy));
    assert_eq!(copy.apply_short(&delta, 10_000), Ok(None));
    assert_eq!((copy.check(), portrait(&copy)), (Ok(()), before));
    assert_eq!(copy.apply_short(&delta, 20_000), Ok(Some(true)));
    assert_eq!(copy.apply_short(&delta, 0), Ok(Some(false)));
}

#[test]
fn a_refusal_quotes_next_to_nothing_of_what_is_long() {
    let path = vec![7; 1 << 18];
    let mut tree = Tree::new();
    tree.open(NodeId::ROOT, &path, 0).unwrap();
    let delta = tree.delta().unwrap().unwrap();
    let twice = seal(0, 0, &payload(&delta).repeat(2));
    let drift = [&[3, 0x80, 0x80, 4, 0xff, 0xff, 0xff, 0xff, 0xf][..], &[1].repeat(0xffff)].concat();
    for delta in [twice, seal(0, 0, &drift)] {
        let text = Tree::new().apply(&delta).unwrap_err().to_string();
        assert!(text.contains(" and 2621") || text.contains(" and 65520 more"), "{text}");
        assert!(text.len() < 300, "{text}");
    }
}

/// Sound records with operations that no tree would write, on a tree with a prompt (node 1, fragment 0) and a rollout.
#[test]
fn operations_are_judged_by_what_comes_before_them() {
    let known = message(1);
    let repeated = [&[2, u8::try_from(known.len()).unwrap()][..], &known].concat();
    let infinite = [&[8, 0, 0, 0, 0, 9, 0][..], &f64::INFINITY.to_le_bytes()].concat();
    let token = |id: u32, logprob: f32, version: i32, flags: u8| {
        [&id.to_le_bytes()[..], &logprob.to_le_bytes(), &version.to_le_bytes(), &[flags]].concat()
    };
    let known_run = [&[10, 1][..], &token(5, 0.0, -1, 0)].concat();
    let other_run = [&[10, 1][..], &token(5, -0.5, 3, 1)].concat();
    let call = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let figures = [[0; 24].as_slice(), &(-1f32).to_le_bytes()].concat();
    let negative = [&[6, 0, 0, 0][..], &call[..10], &[1], &figures[24..], &figures[..24]].concat();
    let below = [&[6, 0, 0, 0][..], &call[..10], &[1], &figures].concat();
    let cases: &[(&[u8], usize, &str)] = &[
        (&[5, 0, 1, 9, 0, 5, 0, 1, 9, 0], 1, "fork path [9] is open already"),
        (&[5, 0, 2, 0, 0, 0], 0, "fork path [0, 0] is open already"),
        (b"\x02\x02{}\x02\x02{}", 1, "this fragment is interned already"),
        (&repeated, 0, "this fragment is interned already"),
        (b"\x02\x02[]", 0, "does not start with {"),
        (&[3, 1, 0, 3, 1, 0], 1, "this context is interned already"),
        (&[3, 1, 1], 0, "fragment 1 does not exist; there are 1"),
        (&[1, 0], 0, "this name is interned already"),
        // A node that merges, with one of the tree or with one just made, makes no id.
        (&[4, 0, 1, 0, 0, 0, 4, 2, 1, 0, 0, 0], 1, "node 2 does not exist; there are 2"),
        (&[4, 1, 1, 0, 0, 0, 4, 1, 1, 0, 0, 0, 4, 3, 1, 0, 0, 0], 2, "node 3 does not exist; there are 3"),
        (&[7, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 1, 4, 4, 1, 0, 0, 0], 2, "node 4 does not exist; there are 4"),
        (&[8, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0], 1, "rollout 0 has ended (answer) and cannot be continued"),
        (&[15, 0, 1, b'x'], 0, "node 0 is the root"),
        (&[15, 1, 1, b'x', 15, 2, 0], 1, "node 2 does not exist; there are 2"),
        (&[9, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, "rollout 0 is still growing"),
        (&infinite, 1, "a reward must be a finite number"),
        // Tokens: what they may hold, where they may be, and which nodes they make one.
        (&[&[10, 1][..], &token(5, f32::INFINITY, 0, 0)].concat(), 0, "the log-probability of token 0 is inf"),
        (&[&[10, 1][..], &token(5, 0.0, -2, 0)].concat(), 0, "the weight version of token 0 is -2"),
        (&[&[10, 1][..], &token(5, 0.0, -1, 8)].concat(), 0, "the flags of token 0 are 8"),
        (&[4, 0, 1, 0, 0, 1], 0, "run 0 does not exist; there are 0"),
        (&[11, 1, 0], 0, "run 0 does not exist; there are 0"),
        // Nothing would tell messages apart that come with no tokens and say so.
        (&[10, 0, 4, 0, 4, 0, 0, 1], 1, "run 0 has no tokens"),
        (&[&[10, 0, 6, 0, 0, 1][..], &call].concat(), 1, "run 0 has no tokens"),
        (&[10, 0, 7, 0, 0, 0, 1, 0, 0], 1, "run 0 has no tokens"),
        (&[&known_run[..], &[11, 2, 0]].concat(), 1, "node 2 does not exist; there are 2"),
        (&[&known_run[..], &[11, 0, 0]].concat(), 1, "node 0 is the root"),
        (&[&known_run[..], &[11, 1, 0, 11, 1, 0]].concat(), 2, "node 1 has other tokens already"),
        (&[&known_run[..], &[6, 0, 0, 0], &call, &[11, 2, 0]].concat(), 2, "node 2 is a model turn"),
        (&[&known_run[..], &[7, 0, 0, 0, 1, 0, 0, 11, 2, 0]].concat(), 2, "node 2 has other tokens already"),
        (&[&known_run[..], &other_run, &[4, 1, 1, 0, 0, 1, 4, 1, 1, 0, 0, 2, 4, 3, 1, 0, 0, 0]].concat(), 4, "node 3"),
        (&negative, 0, "the entropy of region think is -1"),
        (&below, 0, "the entropy of the opening is -1"),
    ];
    let mut writer = small();
    let first = writer.delta().unwrap().unwrap();
    let previous = u64::from_le_bytes(*first.last_chunk().unwrap());
    for &(ops, index, rule) in cases {
        let mut tree = Tree::new();
        tree.apply(&first).unwrap();
        let before = portrait(&tree);
        let error = tree.apply(&seal(1, previous, ops)).unwrap_err().to_string();
        assert!(error.contains(&format!("operation {index} is against the rules")), "{ops:?}: {error}");
        assert!(error.contains(rule), "{ops:?}: {error}");
        assert_eq!(portrait(&tree), before);
    }
}

/// A path of many nodes, and as many rollouts that open and end at its end: 2 MB that would take 10^10 steps one by one.
#[test]
fn many_rollouts_below_a_long_path_are_counted_in_time() {
    const MANY: u32 = 100_000;
    let number = |value: u32| {
        let byte = |shift: u32| u8::try_from(value >> shift & 0x7f).unwrap();
        [byte(0) | 0x80, byte(7) | 0x80, byte(14)]
    };
    let mut ops = b"\x02\x02{}".to_vec();
    for node in 0..MANY {
        ops.extend([&[4][..], &number(node), &[1, 0, 0, 0]].concat());
    }
    for rollout in 0..MANY {
        ops.extend([&[5][..], &number(MANY), &[1], &number(rollout), &[0]].concat());
        ops.extend([&[8][..], &number(rollout), &[0, 0, 0, 9], &number(rollout), &1f64.to_le_bytes()].concat());
    }
    let (mut tree, start) = (Tree::new(), Instant::now());
    assert_eq!(tree.apply(&seal(0, 0, &ops)), Ok(true));
    assert_eq!(tree.check(), Ok(()));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    let all = f64::from(MANY);
    for node in [0, 1, MANY] {
        let view = tree.node(node.into()).unwrap();
        assert_eq!((view.passes, view.visits, view.value.to_bits()), (MANY, MANY, all.to_bits()));
    }
    // From here on it is counted step by step again.
    let rollout = tree.open(MANY.into(), &[0, 0], 0).unwrap();
    tree.close(rollout, Termination::Answer, None, None).unwrap();
    tree.score(rollout, 1.0).unwrap();
    assert_eq!((tree.check(), tree.node(NodeId::ROOT).unwrap().visits), (Ok(()), MANY + 1));
}

#[test]
fn lengths_that_lie_reserve_nothing() {
    let mut tree = Tree::new();
    for kind in [1u8, 2, 3, 10, 16] {
        let ops = [&[kind][..], &[0xff; 9], &[1]].concat();
        assert!(tree.apply(&seal(0, 0, &ops)).is_err());
    }
    let huge = [&[5u8, 0][..], &[0xff, 0xff, 0xff, 0xff, 0x0f]].concat();
    assert!(tree.apply(&seal(0, 0, &huge)).is_err());
    // Ids that are there, and columns that are not.
    let ids = [&[10u8, 4][..], &[0; 51]].concat();
    assert!(tree.apply(&seal(0, 0, &ids)).unwrap_err().to_string().ends_with("it ends too early"));
}
