//! Terminations against their names; token figures against their range.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

use trunkline_core::{Error, Keyword, Termination, TokenCount};

#[test]
fn terminations_have_names_and_codes() {
    assert_eq!(Termination::ALL.len(), 15);
    for (code, termination) in (0u8..).zip(Termination::ALL) {
        assert_eq!(Termination::from_word(termination.as_str()), Ok(termination));
        assert_eq!((termination.code(), Termination::from_code(code)), (code, Some(termination)));
        assert_eq!(termination.to_string(), termination.as_str());
    }
    assert_eq!(Termination::from_code(15), None);
    assert_eq!(Termination::from_word("Answer").unwrap_err().to_string(), "\"Answer\" is not a termination");
}

#[test]
fn token_figures_have_a_range() {
    for (value, expected) in [(-1, None), (0, Some(0)), (4_294_967_294, Some(4_294_967_294))] {
        let tokens = TokenCount::new(value, "prompt").unwrap();
        assert_eq!((tokens.get(), tokens.signed()), (expected, value));
    }
    for value in [-2, i64::MIN, 4_294_967_295, i64::MAX] {
        assert_eq!(TokenCount::new(value, "prompt"), Err(Error::Tokens { field: "prompt", value }));
    }
}
