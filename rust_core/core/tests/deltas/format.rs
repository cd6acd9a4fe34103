//! The bytes of a delta.

use trunkline_core::{
    CallLog, FORMAT, Kind, ModelCall, NameId, NodeId, OLDEST_FORMAT, Termination, TokenBuffer, ToolCall, Tree, calls_of,
};

use super::common;

/// Written down once, with every kind of operation in it: bytes that change without [`FORMAT`] would orphan every run file.
#[test]
fn the_format_is_fixed() {
    let mut tree = Tree::new();
    let agent = tree.name("a").unwrap();
    let prompt = tree.append(NodeId::ROOT, Kind::Prompt, b"{}", None, agent).unwrap();
    let rollout = tree.open(prompt, &[0, 300], 2).unwrap();
    let mut call = common::call(9, 1);
    (call.agent, call.retries, call.micros, call.aside) = (agent, 1, 70_000, Some("hm"));
    call.context = Some(tree.context(&[0]).unwrap());
    (call.uncertainty.entropy[2], call.uncertainty.opening) = (0.5, 2.0);
    let tokens = TokenBuffer::sampled(vec![7, 300], vec![-0.5, -1.0], 3).unwrap();
    tree.turn(rollout, br#"{"n":1}"#, Some(tokens.as_slice()), call).unwrap();
    tree.tokenise(prompt, TokenBuffer::given(vec![9]).as_slice()).unwrap();
    tree.observe(rollout, b"{}", None, NameId::EMPTY, 5, true).unwrap();
    tree.close(rollout, Termination::Answer, Some("2"), None).unwrap();
    tree.score(rollout, 1.0).unwrap();
    tree.note(rollout, "é").unwrap();
    tree.mark("m").unwrap();
    tree.report(prompt, "r").unwrap();
    let model = ModelCall {
        endpoint: "http://h",
        draws: 2,
        prompt: Some(9),
        cached: None,
        generated: Some(1),
        attempts: 1,
        queue: 0,
        first: Some(300),
        micros: 70_000,
        started: 1 << 40,
        agent: "a",
    };
    let tool = ToolCall { rollout: 0, tool: "a", failed: true, micros: 5, started: 6 };
    let calls = CallLog { models: vec![model], tools: vec![tool] };
    let delta = tree.delta_with(&calls).unwrap().unwrap();
    assert_eq!(calls_of(&delta).unwrap(), Some(calls));
    let hex: Vec<String> = delta.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!((OLDEST_FORMAT, FORMAT), (7, 8));
    let expected = [
        "544b444c0800000000000000c70000000000000000000000", // header
        "100208687474703a2f2f680161",                       // calls: names
        "010001020a0002ad020100f0a204808080808020",         // of a model
        "010001010506",                                     // of a tool
        "010161",                                           // name
        "02027b7d",                                         // fragment
        "040001000100",                                     // append
        "05010200ac0202",                                   // open
        "030100",                                           // context
        "02077b226e223a317d",                               // fragment
        "0a02",                                             // run: ids, log-probabilities, versions, flags
        "070000002c010000000000bf000080bf03000000030000000101",
        "060001010100000a000201f0a20403686d01", // turn
        "01",                                   // and its uncertainty
        "0000c07f0000c07f0000003f0000c07f0000c07f0000c07f00000040",
        "0a010900000000000000ffffffff00", // run
        "0b0101",                         // tokenise
        "07000000000501",                 // observe
        "080000023200",                   // close
        "0900000000000000f03f",           // score
        "0c0002c3a9",                     // note
        "0d016d",                         // mark
        "0f010172",                       // report
        "f819a8f309d41d45",               // checksum
    ];
    assert_eq!(hex.concat(), expected.concat());
    assert_eq!(format!("{:032x}", tree.digest()), "b5ae06593e2ca739bc100fa26faa238b");
}
