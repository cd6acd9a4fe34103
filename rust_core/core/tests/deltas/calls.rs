//! Calls of models and tools travel in front of the operations, and are in no tree.

use proptest::prelude::*;
use trunkline_core::{CallLog, CallRows, DeltaError, Error, ModelCall, ToolCall, Tree, calls_of};

use super::common::{payload, portrait, seal};
use super::{small, survives};

fn model<'a>(endpoint: &'a str, agent: &'a str, figures: &[u64; 8]) -> ModelCall<'a> {
    let &[prompt, cached, generated, attempts, queue, first, micros, started] = figures;
    let known = |figure: u64| figure.checked_sub(1);
    let (prompt, cached, generated, first) = (known(prompt), known(cached), known(generated), known(first));
    let draws = u32::try_from(attempts % 7).unwrap();
    ModelCall { endpoint, draws, prompt, cached, generated, attempts, queue, first, micros, started, agent }
}

fn tool(rollout: u32, tool: &str, failed: bool, micros: u64) -> ToolCall<'_> {
    ToolCall { rollout, tool, failed, micros, started: micros }
}

/// An old frame around a payload.
fn old(ops: &[u8]) -> Vec<u8> {
    let mut record = seal(0, 0, ops);
    record[4] = 7;
    let end = record.len() - 8;
    let checksum = xxhash_rust::xxh3::xxh3_64(&record[..end]).to_le_bytes();
    record[end..].copy_from_slice(&checksum);
    record
}

const FIGURES: std::ops::Range<u64> = 0..(1 << 62);

proptest! {
    #[test]
    fn calls_are_read_as_they_were_written(
        models in prop::collection::vec((any::<String>(), "[ab]", prop::array::uniform8(FIGURES)), 0..6),
        tools in prop::collection::vec(("[xyz]", any::<bool>(), FIGURES), 0..6),
    ) {
        let mut tree = small();
        let calls = CallLog {
            models: models.iter().map(|(endpoint, agent, figures)| model(endpoint, agent, figures)).collect(),
            tools: tools.iter().map(|(name, failed, micros)| tool(0, name, *failed, *micros)).collect(),
        };
        let delta = tree.delta_with(&calls).unwrap().unwrap();
        prop_assert_eq!(calls_of(&delta).unwrap(), Some(calls));
        let mut reader = Tree::new();
        prop_assert_eq!(reader.apply(&delta), Ok(true));
        prop_assert_eq!(portrait(&reader), portrait(&tree));
        let mut without = small();
        prop_assert_eq!(without.apply(&delta).unwrap_err(), Error::Delta(DeltaError::Pending));
        prop_assert_eq!(without.digest(), tree.digest());
    }

    #[test]
    fn forged_calls_do_no_harm(noise in prop::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..40)) {
        let forged = seal(0, 0, &[&[16], noise.as_slice()].concat());
        survives(&mut Tree::new(), &forged);
        let _refused = calls_of(&forged);
        let _rows = CallRows::new(0).rows(&[(0, 0, &forged)], &[], Default::default());
    }
}

#[test]
fn calls_alone_are_a_delta() {
    let mut tree = small();
    let mut reader = Tree::new();
    reader.apply(&tree.delta().unwrap().unwrap()).unwrap();
    assert_eq!(tree.delta_with(&CallLog::default()), Ok(None));
    let calls = CallLog { models: vec![model("e", "", &[1; 8])], tools: Vec::new() };
    let delta = tree.delta_with(&calls).unwrap().unwrap();
    assert!(payload(&delta).len() < 64, "a call takes few bytes");
    let before = portrait(&reader);
    assert_eq!((reader.apply(&delta), reader.apply(&delta)), (Ok(true), Ok(false)));
    assert_eq!(portrait(&reader), before);
}

#[test]
fn a_tool_call_is_of_a_rollout_that_exists() {
    let mut tree = small();
    let calls = CallLog { models: Vec::new(), tools: vec![tool(9, "t", false, 1)] };
    let refused = tree.delta_with(&calls).unwrap_err().to_string();
    assert_eq!(refused, "rollout 9 does not exist; there are 1");
    let ops = payload(&tree.delta().unwrap().unwrap()).to_vec();
    let forged = seal(0, 0, &[&[16, 1, 1, b't', 0, 1, 9, 0, 0, 1, 1], ops.as_slice()].concat());
    let refused = Tree::new().apply(&forged).unwrap_err().to_string();
    assert!(refused.ends_with("rollout 9 does not exist; there are 1"), "{refused}");
}

#[test]
fn figures_have_63_bits() {
    let mut tree = small();
    let calls = CallLog { models: Vec::new(), tools: vec![tool(0, "t", false, u64::MAX)] };
    assert!(tree.delta_with(&calls).unwrap_err().to_string().contains("a figure of a call is 18446744073709551615"));
    assert!(tree.delta().unwrap().is_some(), "nothing was lost");
}

#[test]
fn calls_stand_in_front_and_in_no_old_delta() {
    let ops = payload(&small().delta().unwrap().unwrap()).to_vec();
    let calls = [16, 1, 1, b't', 0, 1, 0, 0, 0, 1, 1];
    let error = |bytes: &[u8]| Tree::new().apply(bytes).unwrap_err().to_string();
    assert_eq!(Tree::new().apply(&old(&ops)), Ok(true));
    assert_eq!(calls_of(&old(&ops)), Ok(None));
    assert!(
        error(&old(&[&calls, ops.as_slice()].concat()))
            .ends_with("operation 0 at byte 0 cannot be read: its kind is unknown")
    );
    assert!(error(&seal(0, 0, &[ops.as_slice(), &calls].concat())).ends_with("its kind is unknown"));
    assert_eq!(Tree::new().apply(&seal(0, 0, &[&calls, ops.as_slice()].concat())), Ok(true));
    assert!(error(&seal(0, 0, &[16, 0, 0, 0])).ends_with("it has no calls"));
    assert!(error(&seal(0, 0, &[16, 0xff, 0xff, 0xff, 0xff, 0x0f])).ends_with("it ends too early"));
    assert!(error(&seal(0, 0, &[16, 0, 0, 1, 0, 0, 0, 1, 1])).ends_with("a call has a name that is not there"));
}

#[test]
fn rows_add_up_by_task_and_nothing_is_kept_before_it_is_in_the_file() {
    let delta = |models: Vec<ModelCall<'_>>, tools: Vec<ToolCall<'_>>| {
        small().delta_with(&CallLog { models, tools }).unwrap().unwrap()
    };
    let cached = ModelCall { attempts: 0, ..model("cache", "a", &[9; 8]) };
    let one = delta(vec![model("e", "a", &[11, 5, 4, 3, 0, 0, 250, 1_100]), cached], vec![tool(0, "t", false, 70)]);
    let two = delta(vec![model("e", "b", &[0, 0, 0, 1, 0, 0, 10, 900])], vec![tool(0, "t", true, 30)]);
    let deltas = [(1, 0, one.as_slice()), (2, 5, two.as_slice()), (3, 0, b"no delta".as_slice())];
    let mut rows = CallRows::new(1_000);
    let missing = rows.rows(&deltas, &[2], Default::default()).unwrap_err();
    assert_eq!((missing.endpoints, missing.agents), (vec!["e", "cache"], vec!["a", "b"]));
    let numbers = |names: &[&str]| names.iter().zip(0..).map(|(&name, number)| (name.into(), number)).collect();
    let named = || [numbers(&["cache", "e"]), numbers(&["a", "b"])];
    let found = rows.rows(&deltas, &[2], named()).unwrap();
    let columns: Vec<_> = found.models.iter().map(trunkline_core::ModelRow::columns).collect();
    assert_eq!(columns[0], [1, 0, 1, 3, 10, 4, 3, 3, 0, -1, 250, 100, 0]);
    assert_eq!(columns[2], [2, 5, 1, 1, -1, -1, -1, 1, 0, -1, 10, 0, 1]);
    assert_eq!(
        found.tools.iter().map(|row| (row.task, row.seq, row.call.micros)).collect::<Vec<_>>(),
        [(1, 0, 70), (2, 5, 30)]
    );
    let figures = &found.figures;
    assert_eq!((figures.prompt, figures.generated, figures.retries, figures.micros), (10, 3, 2, 260));
    assert_eq!((&figures.latencies, &figures.tools), (&vec![250, 10], &vec![("t", 100)]));
    // It failed, and comes again.
    let again = rows.rows(&deltas, &[2], named()).unwrap();
    assert_eq!(again, found);
    rows.keep();
    let last = rows.rows(&[], &[1], Default::default()).unwrap();
    assert_eq!((last.sums, last.open), (vec![found.open], (0, 0)));
    assert!(rows.rows(&deltas[..1], &[], Default::default()).is_ok(), "names are known from now on");
}
