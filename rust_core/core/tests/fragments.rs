//! Messages in pieces: whatever the cut, what is sent is the whole message, and what makes no message is refused.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

mod common;

use common::{portrait, seal};
use proptest::prelude::*;
use proptest::sample::Index;
use trunkline_core::{ContextId, Error, Kind, NameId, NodeId, Result, Source, Tree};

/// A message of any text, and where to cut it: not at all, or before some of its characters.
type Cut = (String, Option<Vec<Index>>);

fn messages() -> impl Strategy<Value = Vec<Cut>> {
    let cuts = prop::option::of(prop::collection::vec(any::<Index>(), 0..5));
    prop::collection::vec((any::<String>(), cuts), 0..6)
}

fn whole(text: &str) -> String {
    serde_json::json!({"role": "user", "content": text}).to_string()
}

/// A message as the fragments it is cut into; an opening holds at least its first character.
fn fragments((text, cuts): &Cut) -> Vec<Vec<u8>> {
    let message = whole(text);
    let Some(cuts) = cuts else { return vec![message.into_bytes()] };
    let places: Vec<usize> = message.char_indices().map(|(at, _)| at).skip(1).chain([message.len()]).collect();
    let mut at: Vec<usize> = cuts.iter().map(|cut| places[cut.index(places.len())]).collect();
    at.sort_unstable();
    at.insert(0, 0);
    at.push(message.len());
    let piece = |(place, range): (usize, &[usize])| {
        let marker = if place == 0 { 2 } else { 1 };
        [&[marker], &message.as_bytes()[range[0]..range[1]]].concat()
    };
    at.windows(2).enumerate().map(piece).collect()
}

/// A tree with one turn that was asked with these fragments, and what was sent.
fn asked(fragments: &[Vec<u8>]) -> Result<(Tree, Vec<u8>)> {
    let mut tree = Tree::new();
    let context = record(&mut tree, fragments)?;
    let rollout = tree.open(NodeId::ROOT, &[0], 0)?;
    let call = trunkline_core::Call { context: Some(context), ..common::call(5, 1) };
    tree.turn(rollout, b"{}", None, call)?;
    let body = tree.body(Source::Context(context), b"[", b"]")?;
    Ok((tree, body))
}

fn record(tree: &mut Tree, fragments: &[Vec<u8>]) -> Result<ContextId> {
    let ids: Result<Vec<u32>> = fragments.iter().map(|fragment| Ok(tree.fragment(fragment)?.get())).collect();
    tree.context(&ids?)
}

/// Fragments of which few lists are sound.
const BITS: [&[u8]; 7] = [b"{}", b"{\"a\":1}", b"\x02{", b"\x02{}", b"\x01", b"\x01}", b"\x01 x"];

/// What a list of fragments says, joined without a thought; nothing where it makes no messages.
fn naive(list: &[usize]) -> Option<String> {
    let mut messages: Vec<(bool, String)> = Vec::new();
    for &bit in list {
        let text = std::str::from_utf8(BITS[bit]).unwrap();
        match text.strip_prefix('\x01') {
            Some(more) => messages.last_mut().filter(|(cut, _)| *cut)?.1.push_str(more),
            None => messages.push((text.starts_with('\x02'), text.trim_start_matches('\x02').to_owned())),
        }
    }
    let texts: Vec<String> = messages.into_iter().map(|(_, text)| text).collect();
    texts.iter().all(|text| text.ends_with('}')).then(|| format!("[{}]", texts.join(",")))
}

/// A delta as somebody may have made it up: the bits, and an operation on them.
fn forged(op: &[u8]) -> Vec<u8> {
    let bits = BITS.iter().flat_map(|bit| [&[2, u8::try_from(bit.len()).unwrap()], *bit].concat());
    seal(0, 0, &bits.chain(op.iter().copied()).collect::<Vec<u8>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_cut_sends_and_means_the_whole(messages in messages()) {
        let uncut: Vec<Vec<u8>> = messages.iter().map(|(text, _)| whole(text).into_bytes()).collect();
        let cut: Vec<Vec<u8>> = messages.iter().flat_map(fragments).collect();
        let ((tree, sent), (same, expected)) = (asked(&cut).unwrap(), asked(&uncut).unwrap());
        prop_assert_eq!(&sent, &expected);
        prop_assert_eq!((tree.digest(), tree.check()), (same.digest(), Ok(())));
        let parsed: Vec<serde_json::Value> = serde_json::from_slice(&sent).unwrap();
        let texts: Vec<_> = parsed.iter().map(|message| message["content"].as_str().unwrap()).collect();
        prop_assert_eq!(texts, messages.iter().map(|(text, _)| text).collect::<Vec<_>>());
    }

    #[test]
    fn what_makes_no_message_is_refused_here_and_in_deltas(list in prop::collection::vec(0..BITS.len(), 0..7)) {
        let expected = naive(&list);
        let mut tree = Tree::new();
        for bit in BITS {
            tree.fragment(bit).unwrap();
        }
        let (before, ids) = (tree.delta().unwrap(), list.iter().map(|&bit| u32::try_from(bit).unwrap()));
        let context = tree.context(&ids.collect::<Vec<_>>());
        let sent = context.clone().map(|context| tree.body(Source::Context(context), b"[", b"]").unwrap());
        prop_assert_eq!(sent.ok(), expected.clone().map(String::into_bytes));
        prop_assert_eq!(tree.delta().unwrap().is_some(), expected.is_some());
        prop_assert_eq!(tree.check(), Ok(()));

        let op: Vec<u8> = [3, list.len()].iter().chain(&list).map(|&word| u8::try_from(word).unwrap()).collect();
        let (mut copy, mut beside) = (Tree::new(), Tree::new());
        prop_assert_eq!(copy.apply(&forged(&op)).is_ok(), expected.is_some());
        prop_assert_eq!(copy.check(), Ok(()));
        // The pieces may have come before what is made of them.
        prop_assert_eq!(beside.apply(&before.unwrap()), Ok(true));
        let text = context.err().map(|error| error.to_string());
        prop_assert_eq!(record(&mut beside, &list.iter().map(|&bit| BITS[bit].to_vec()).collect::<Vec<_>>()).err().map(|error| error.to_string()), text);
    }

    #[test]
    fn pieces_travel_with_deltas(messages in messages()) {
        let cut: Vec<Vec<u8>> = messages.iter().flat_map(fragments).collect();
        let (mut tree, sent) = asked(&cut).unwrap();
        let mut copy = Tree::new();
        prop_assert_eq!(copy.apply(&tree.delta().unwrap().unwrap()), Ok(true));
        prop_assert_eq!(portrait(&copy), portrait(&tree));
        prop_assert_eq!(copy.body(Source::Context(ContextId::new(0)), b"[", b"]").unwrap(), sent);
    }
}

#[test]
fn a_piece_is_no_message_of_a_node() {
    let refused = Error::Message { reason: "it is only a piece of one" };
    for stored in [false, true] {
        let mut tree = Tree::new();
        let rollout = tree.open(NodeId::ROOT, &[0], 0).unwrap();
        if stored {
            tree.fragment(b"\x02{}").unwrap();
        }
        let (piece, nobody) = (b"\x02{}", NameId::EMPTY);
        let turn = tree.turn(rollout, piece, None, common::call(1, 1));
        let observation = tree.observe(rollout, piece, None, nobody, 0, false);
        let told = tree.tell(rollout, piece, None, nobody);
        let appended = tree.append(NodeId::ROOT, Kind::Prompt, piece, None, nobody);
        for outcome in [turn, observation, told, appended] {
            assert_eq!(outcome, Err(refused.clone()));
        }
        assert_eq!((tree.nodes(), tree.check()), (1, Ok(())));
    }
    // Appended below the root as a prompt: fragment 0 is a message, fragments 2 and 4 are pieces.
    let outcomes = [0, 2, 4].map(|fragment| Tree::new().apply(&forged(&[4, 0, 1, fragment, 0, 0])));
    assert_eq!(outcomes[0], Ok(true));
    for outcome in &outcomes[1..] {
        let text = outcome.as_ref().unwrap_err().to_string();
        assert!(text.ends_with("a message must be one JSON object in UTF-8: it is only a piece of one"), "{text}");
    }
}

#[test]
fn a_prompt_is_joined_from_what_roles_share() {
    let mut tree = Tree::new();
    let pieces =
        ["\x02{\"role\":\"user\",\"content\":\"Question: ", "\x011+1", "\x01\\nAnswer it.\"}", "\x01\\nCheck it.\"}"];
    let ids = pieces.map(|piece| tree.fragment(piece.as_bytes()).unwrap().get());
    let system = tree.fragment(br#"{"role":"system","content":"s"}"#).unwrap().get();
    let said =
        |tree: &Tree, context| String::from_utf8(tree.body(Source::Context(context), b"", b"").unwrap()).unwrap();
    let solver = tree.context(&[system, ids[0], ids[1], ids[2]]).unwrap();
    let verifier = tree.context(&[ids[0], ids[1], ids[3], system]).unwrap();
    assert_eq!(
        said(&tree, solver),
        r#"{"role":"system","content":"s"},{"role":"user","content":"Question: 1+1\nAnswer it."}"#
    );
    assert_eq!(
        said(&tree, verifier),
        r#"{"role":"user","content":"Question: 1+1\nCheck it."},{"role":"system","content":"s"}"#
    );
    let text = tree.context(&[ids[0], system]).unwrap_err().to_string();
    assert_eq!(text, "fragment 0 of a context ends a message in pieces that does not end with }");
}

/// A million repetitions of a piece of a megabyte are two bytes each, and would be read for minutes.
#[test]
fn a_short_delta_that_joins_too_much_is_refused() {
    const MEGABYTE: usize = 1 << 20;
    let number = |value: usize| -> Vec<u8> {
        (0..3).map(|place| u8::try_from(value >> (7 * place) & 0x7f | 0x80).unwrap()).chain([0]).collect()
    };
    let long = [&[1], vec![b'x'; MEGABYTE].as_slice()].concat();
    let ops = [&[2, 2, 2, b'{', 2], number(long.len()).as_slice(), &long, &[2, 2, 1, b'}', 3]].concat();
    let with = |repeated: usize| {
        let list = [vec![0], vec![1; repeated], vec![2]].concat();
        seal(0, 0, &[ops.as_slice(), &number(list.len()), &list].concat())
    };
    assert_eq!(Tree::new().apply(&with(3)), Ok(true));
    let text = Tree::new().apply(&with(1 << 16)).unwrap_err().to_string();
    assert_eq!(
        text,
        "delta refused: operation 3 is the one too many: contexts of one delta join at most 68719476736 bytes from pieces"
    );
}
