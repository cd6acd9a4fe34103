//! What travels once, and what of it is in no digest.

use trunkline_core::{NameId, NodeId, TokenBuffer, Tree};

use super::common::script::message;
use super::common::{call, portrait};
use super::small;

#[test]
fn messages_travel_once() {
    let mut tree = small();
    let long = format!("{{\"content\":\"{}\"}}", "x".repeat(10_000));
    tree.turn(0.into(), long.as_bytes(), None, call(1, 1)).unwrap();
    assert!(tree.delta().unwrap().unwrap().len() > 10_000);
    tree.turn(0.into(), long.as_bytes(), None, call(1, 1)).unwrap();
    assert!(tree.delta().unwrap().unwrap().len() < 64);
}

#[test]
fn tokens_travel_once() {
    let mut tree = small();
    let tokens = TokenBuffer::sampled((0..1000).collect(), vec![-0.5; 1000], 3).unwrap();
    let tokens = Some(tokens.as_slice());
    tree.turn(0.into(), &message(1), tokens, call(1, 1)).unwrap();
    assert!(tree.delta().unwrap().unwrap().len() > 13_000);
    // The same turn once more, said in other words, and the same tokens elsewhere.
    let other = tree.open(1.into(), &[1], 0).unwrap();
    assert_eq!(tree.turn(other, &message(2), tokens, call(1, 1)), Ok(2.into()));
    assert_eq!(tree.message(2.into()).unwrap(), message(1));
    assert_eq!(tree.observe(other, &message(1), tokens, NameId::EMPTY, 0, false), Ok(3.into()));
    assert!(tree.delta().unwrap().unwrap().len() < 64);
    assert_eq!(tree.check(), Ok(()));
}

#[test]
fn reports_travel_and_are_in_no_digest() {
    let mut tree = small();
    let (leaf, digest) = (tree.turn(0.into(), &message(1), None, call(1, 1)).unwrap(), tree.digest());
    let mut copy = Tree::new();
    let mut follow = |tree: &mut Tree| {
        assert_eq!(copy.apply(&tree.delta().unwrap().unwrap()), Ok(true));
        assert_eq!(portrait(&copy), portrait(tree));
        copy.report_of(leaf).unwrap().map(str::to_owned)
    };
    assert_eq!(follow(&mut tree), None);
    tree.report(leaf, "counted").unwrap();
    assert_eq!(follow(&mut tree).as_deref(), Some("counted"));
    tree.report(leaf, "counted twice").unwrap();
    assert_eq!((follow(&mut tree).as_deref(), tree.digest()), (Some("counted twice"), digest));
    tree.report(leaf, "").unwrap();
    assert_eq!((follow(&mut tree), tree.check()), (None, Ok(())));
    assert!(tree.report(NodeId::ROOT, "x").unwrap_err().to_string().contains("the root"));
    assert!(tree.report(99.into(), "x").is_err() && tree.report_of(99.into()).is_err());
    assert_eq!(tree.delta(), Ok(None));
}
