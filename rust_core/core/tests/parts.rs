//! Lanes against sets; terminations against their names.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use proptest::prelude::*;
use trunkline_core::{Error, Lanes, Termination, Tokens};

fn sorted(set: &HashSet<usize>) -> Vec<usize> {
    let mut list: Vec<usize> = set.iter().copied().collect();
    list.sort_unstable();
    list
}

/// Lanes of a size with some finished, and the set they stand for.
fn lanes(len: usize, out: &[usize]) -> (Lanes, HashSet<usize>) {
    let (mut lanes, mut set) = (Lanes::new(len).unwrap(), (0..len).collect::<HashSet<_>>());
    for &lane in out {
        let outcome = lanes.finish(lane);
        if lane >= len {
            assert_eq!(outcome, Err(Error::Lane { lane, count: len }));
        } else if set.remove(&lane) {
            assert_eq!(outcome, Ok(()));
        } else {
            assert_eq!(outcome, Err(Error::LaneFinished { lane }));
        }
    }
    (lanes, set)
}

proptest! {
    #[test]
    fn lanes_are_a_set(
        len in 0usize..200,
        left in prop::collection::vec(0usize..210, 0..250),
        right in prop::collection::vec(0usize..210, 0..250),
    ) {
        let ((one, ones), (two, twos)) = (lanes(len, &left), lanes(len, &right));
        prop_assert_eq!(one.ones(), sorted(&ones));
        prop_assert_eq!((one.count(), one.any(), one.len()), (ones.len(), !ones.is_empty(), len));
        for lane in 0..len {
            prop_assert_eq!(one.active(lane), Ok(ones.contains(&lane)));
        }
        prop_assert_eq!(one.and(&two).unwrap().ones(), sorted(&(&ones & &twos)));
        prop_assert_eq!(one.and_not(&two).unwrap().ones(), sorted(&(&ones - &twos)));
        prop_assert!(!one.and_not(&one).unwrap().any());
        prop_assert_eq!(one.and(&one).unwrap(), one.clone());
        let longer = Lanes::new(len + 1).unwrap();
        prop_assert_eq!(one.and(&longer), Err(Error::LaneSizes { left: len, right: len + 1 }));
    }

    #[test]
    fn pushed_lanes_are_active(len in 0usize..200) {
        let mut grown = Lanes::default();
        for lane in 0..len {
            prop_assert_eq!(grown.push(), lane);
        }
        prop_assert_eq!(grown, Lanes::new(len).unwrap());
    }
}

#[test]
fn more_lanes_than_memory_is_an_error() {
    assert_eq!(Lanes::new(usize::MAX), Err(Error::Memory { len: usize::MAX }));
}

#[test]
fn terminations_have_names_and_codes() {
    assert_eq!(Termination::ALL.len(), 14);
    for (code, termination) in (0u8..).zip(Termination::ALL) {
        assert_eq!(termination.as_str().parse(), Ok(*termination));
        assert_eq!((termination.code(), Termination::from_code(code)), (code, Some(*termination)));
        assert_eq!(termination.to_string(), termination.as_str());
    }
    assert_eq!(Termination::from_code(14), None);
    assert_eq!("Answer".parse::<Termination>().unwrap_err().to_string(), "\"Answer\" is not a termination");
}

#[test]
fn token_figures_have_a_range() {
    for (value, expected) in [(-1, None), (0, Some(0)), (4_294_967_294, Some(4_294_967_294))] {
        let tokens = Tokens::new(value, "prompt").unwrap();
        assert_eq!((tokens.get(), tokens.signed()), (expected, value));
    }
    for value in [-2, i64::MIN, 4_294_967_295, i64::MAX] {
        assert_eq!(Tokens::new(value, "prompt"), Err(Error::Tokens { field: "prompt", value }));
    }
}
