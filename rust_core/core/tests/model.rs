//! The tree against the naive model: same refusals, same nodes, same counts.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

mod common;

use common::model::Model;
use common::script::{message, name, play, run, script};
use proptest::collection::vec;
use proptest::prelude::*;
use trunkline_core::{Call, ContextId, Error, Kind, NameId, NodeId, RolloutId, Source, Termination, TokenBuffer, Tree};

fn node_id(id: usize) -> NodeId {
    NodeId::new(u32::try_from(id).unwrap())
}

fn check_nodes(tree: &Tree, model: &Model) {
    for (id, expected) in model.nodes.iter().enumerate() {
        let node = tree.node(node_id(id)).unwrap();
        let parent = if id == 0 { 0 } else { expected.key.parent };
        assert_eq!(node.parent, node_id(parent));
        assert_eq!(node.kind as u8, expected.key.kind);
        assert_eq!((node.agent, node.namespace), (&*expected.key.agent, &*expected.key.namespace));
        assert_eq!((node.prompt.signed(), node.generated.signed()), (expected.prompt, expected.generated));
        assert_eq!(tree.message(node_id(id)).unwrap(), expected.message);
        let tokens = tree.tokens_of(node_id(id)).unwrap();
        // As text, because what is not known is not equal to itself.
        assert_eq!(format!("{tokens:?}"), format!("{:?}", expected.tokens.as_ref().map(TokenBuffer::as_slice)));
        assert_eq!(node.uncertainty, expected.uncertainty);
        assert_eq!(tree.aside(node_id(id)).unwrap(), expected.aside.as_deref().map(str::as_bytes));
        assert_eq!(tree.report_of(node_id(id)).unwrap(), expected.report.as_deref());
        let state = tree.state(node_id(id)).ok().map(|state| (state.path, state.turn, state.draw, state.subgroup));
        assert_eq!(state, model.state(id));
        let path = model.path(id);
        assert_eq!(node.depth as usize, path.len());
        assert_eq!(node.turns as usize, model.turns(id));
        assert_eq!(tree.path(node_id(id)).unwrap(), path.iter().copied().map(node_id).collect::<Vec<_>>());
        let children: Vec<_> = (1..model.nodes.len()).filter(|&other| model.nodes[other].key.parent == id).collect();
        assert_eq!(tree.children(node_id(id)).unwrap(), children.into_iter().map(node_id).collect::<Vec<_>>());
        let parts: Vec<&[u8]> = path.iter().map(|&at| &*model.nodes[at].message).collect();
        let body = [b"head[".as_slice(), &parts.join(&b','), b"]tail"].concat();
        assert_eq!(tree.body(Source::Path(node_id(id)), b"head[", b"]tail").unwrap(), body);
    }
}

fn check_rollouts(tree: &Tree, model: &Model) {
    assert_eq!(tree.rollouts() as usize, model.rollouts.len());
    for (id, expected) in model.rollouts.iter().enumerate() {
        let rollout = tree.rollout(RolloutId::new(u32::try_from(id).unwrap())).unwrap();
        assert_eq!((rollout.point, rollout.leaf), (node_id(expected.point), node_id(expected.leaf)));
        assert_eq!((rollout.path, rollout.subgroup), (&*expected.path, expected.subgroup));
        assert_eq!(rollout.draw, expected.path.last().copied().unwrap_or(0));
        assert_eq!(rollout.lane.map(|lane| lane as usize), expected.ended.is_none().then_some(id));
        assert_eq!(rollout.turns as usize, model.turns(expected.leaf));
        assert_eq!(rollout.termination, expected.ended.map(|code| Termination::from_code(code).unwrap()));
        assert_eq!(rollout.answer, expected.answer.as_deref());
        assert_eq!(rollout.note, expected.note.as_deref());
        assert_eq!(rollout.reward.is_nan(), expected.reward.is_nan());
        assert!(rollout.reward.is_nan() || rollout.reward.to_bits() == expected.reward.to_bits());
        let usage = rollout.usage;
        let counted = [usage.calls, usage.prompt, usage.cached, usage.generated, usage.unreported];
        let tools = [usage.tools, usage.tool_errors, usage.tool_micros];
        assert_eq!((&counted[..], &tools[..]), expected.usage.split_at(5));
        assert_eq!((usage.retries, usage.llm_micros), (usage.calls, 7 * usage.calls));
        let counts = [counted.as_slice(), &[usage.retries], &tools[..2], &[0; 3]].concat();
        assert_eq!(usage.counts().as_slice(), counts);
    }
    let growing: Vec<usize> = (0..model.rollouts.len()).filter(|&id| model.rollouts[id].ended.is_none()).collect();
    assert_eq!(tree.growing(), growing);
}

fn check_counts(tree: &Tree, model: &Model) {
    let totals = tree.tokens();
    assert_eq!(totals, model.tokens());
    assert!(totals.flat >= totals.tree && totals.tree >= totals.longest);
    assert!(totals.flat_generated >= totals.tree_generated);
    let values = tree.values();
    for id in 0..model.nodes.len() {
        let (visits, scored, sum) = model.value(id);
        let node = tree.node(node_id(id)).unwrap();
        assert_eq!((node.passes, node.visits), (visits, scored));
        assert!((node.value - sum).abs() < 1e-9);
        assert_eq!((values.visits[id], values.scored[id]), (visits, scored));
        if scored == 0 {
            assert!(values.mean[id].is_nan());
        } else {
            assert!((values.mean[id] - sum / f64::from(scored)).abs() < 1e-9);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn tree_is_the_model(cmds in script(80)) {
        let (mut tree, mut contexts, mut model) = (Tree::new(), 0, Model::new());
        for cmd in &cmds {
            let before = (tree.nodes(), tree.rollouts(), tree.digest());
            let outcome = run(&mut tree, &mut contexts, cmd);
            let expected = model.run(cmd);
            prop_assert_eq!(outcome.is_ok(), expected.is_ok(), "{:?} gave {:?}", cmd, outcome);
            if let Ok(node) = outcome {
                prop_assert_eq!(node, expected.unwrap().map(node_id));
            } else {
                prop_assert_eq!(before, (tree.nodes(), tree.rollouts(), tree.digest()));
            }
        }
        prop_assert_eq!(tree.nodes() as usize, model.nodes.len());
        check_nodes(&tree, &model);
        check_rollouts(&tree, &model);
        assert!(tree.marks(0).eq(&model.marks));
        assert!(tree.marks(1).eq(model.marks.iter().skip(1)));
        check_counts(&tree, &model);
        prop_assert_eq!(tree.check(), Ok(()));
    }

    #[test]
    fn a_reset_tree_is_a_new_tree(first in script(40), second in script(40)) {
        let mut used = play(&first);
        used.reset();
        let mut contexts = 0;
        for cmd in &second {
            let _refused = run(&mut used, &mut contexts, cmd);
        }
        let mut new = play(&second);
        prop_assert_eq!(common::portrait(&used), common::portrait(&new));
        prop_assert_eq!(used.delta(), new.delta());
        prop_assert_eq!(used.check(), Ok(()));
    }
}

#[test]
fn contexts_are_sent_as_recorded_and_separate_turns() {
    let mut tree = Tree::new();
    let ids: Vec<u32> = (1..4).map(|number| tree.fragment(&message(number)).unwrap().get()).collect();
    let context = tree.context(&[ids[2], ids[0], ids[2]]).unwrap();
    let body = tree.body(Source::Context(context), b"<", b">").unwrap();
    assert_eq!(body, [&b"<"[..], &message(3), b",", &message(1), b",", &message(3), b">"].concat());
    assert_eq!(tree.context(&[ids[2], ids[0], ids[2]]).unwrap(), context);
    assert!(tree.body(Source::Context(ContextId::new(1)), b"<", b">").is_err());

    let rollouts: Vec<_> = (0..3).map(|draw| tree.open(NodeId::ROOT, &[0, draw], 0).unwrap()).collect();
    let mut seen = common::call(10, 2);
    let plain = tree.turn(rollouts[0], &message(1), None, seen).unwrap();
    seen.context = Some(context);
    let other = tree.turn(rollouts[1], &message(1), None, seen).unwrap();
    let same = tree.turn(rollouts[2], &message(1), None, seen).unwrap();
    assert_ne!(plain, other);
    assert_eq!(other, same);
    assert_eq!(tree.node(same).unwrap().context, Some(context));
    tree.check().unwrap();
}

proptest! {
    #[test]
    fn a_draft_is_sent_as_the_path_would_be_and_leaves_no_trace(path in vec(0u8..9, 0..6), behind in vec(0u8..9, 0..4)) {
        let mut tree = Tree::new();
        let mut node = NodeId::ROOT;
        for number in &path {
            node = tree.append(node, Kind::Prompt, &message(*number), None, NameId::EMPTY).unwrap();
        }
        let fragments: Vec<u32> = behind.iter().map(|&one| tree.fragment(&message(one)).unwrap().get()).collect();
        let (before, size) = (tree.digest(), tree.memory().total());
        let draft = tree.draft(node, &fragments).unwrap();
        let sent = tree.body(Source::Draft(draft), b"<", b">").unwrap();
        prop_assert_eq!(sent.len(), tree.body_len(Source::Draft(draft), b"<", b">").unwrap());
        prop_assert!(tree.memory().total() > size);
        tree.forget_draft(draft);
        tree.forget_draft(draft);
        prop_assert!(tree.body(Source::Draft(draft), b"<", b">").is_err());
        prop_assert_eq!(tree.digest(), before);
        for number in &behind {
            node = tree.append(node, Kind::Prompt, &message(*number), None, NameId::EMPTY).unwrap();
        }
        prop_assert_eq!(sent, tree.body(Source::Path(node), b"<", b">").unwrap());
    }
}

#[test]
fn a_draft_has_whole_messages_alone() {
    let mut tree = Tree::new();
    let piece = tree.fragment(b"\x02{\"role\":\"user\",\"content\":\"").unwrap().get();
    assert!(tree.draft(NodeId::ROOT, &[piece]).is_err());
    assert!(tree.draft(NodeId::ROOT, &[piece + 1]).is_err());
    assert!(tree.draft(NodeId::new(1), &[]).is_err());
}

#[test]
fn what_does_not_exist_is_named() {
    let mut tree = Tree::new();
    let unknown = |what, id, count| Err(Error::Unknown { what, id, count });
    assert_eq!(tree.append(NodeId::new(1), Kind::Prompt, &message(1), None, NameId::EMPTY), unknown("node", 1, 1));
    assert_eq!(tree.append(NodeId::ROOT, Kind::Prompt, &message(1), None, NameId::new(9)), unknown("name", 9, 1));
    assert_eq!(tree.turn(RolloutId::new(0), &message(1), None, common::call(1, 1)), unknown("rollout", 0, 0));
    assert_eq!(tree.context(&[0]).map(|_| NodeId::ROOT), unknown("fragment", 0, 0));
    assert!(tree.body(Source::Path(NodeId::new(7)), b"", b"").is_err());
    assert_eq!(tree.size(), 0, "a refused append left its message behind");
    let text = tree.append(NodeId::new(1), Kind::Prompt, &message(1), None, NameId::EMPTY).unwrap_err().to_string();
    assert_eq!(text, "node 1 does not exist; there are 1");
}

#[test]
fn only_messages_are_interned() {
    let mut tree = Tree::new();
    for (bytes, reason) in [
        (&b""[..], "empty"),
        (b"{", "does not end"),
        (b"[]", "does not start"),
        (b" {}", "does not start"),
        (b"{} ", "does not end"),
        (b"{\"a\":\"\xff\"}", "not UTF-8"),
    ] {
        let error = tree.fragment(bytes).unwrap_err().to_string();
        assert!(error.contains(reason), "{bytes:?}: {error}");
    }
    assert_eq!(tree.fragment(b"{}").unwrap().get(), 0);
    assert_eq!(tree.fragment(b"{}").unwrap().get(), 0);
    assert_eq!(tree.fragment(b"{ }").unwrap().get(), 1);
}

#[test]
fn ended_rollouts_stay_ended() {
    let mut tree = Tree::new();
    let rollout = tree.open(NodeId::ROOT, &[], 0).unwrap();
    assert_eq!(tree.score(rollout, 1.0), Err(Error::Growing { rollout: 0 }));
    tree.close(rollout, Termination::MaxTurns, None, Some("used up")).unwrap();
    let refused = tree.close(rollout, Termination::Answer, None, None).unwrap_err().to_string();
    assert_eq!(refused, "rollout 0 has ended (max_turns) and cannot be closed");
    assert!(tree.turn(rollout, &message(1), None, common::call(1, 1)).is_err());
    assert!(tree.observe(rollout, &message(1), None, NameId::EMPTY, 0, true).is_err());
    assert!(tree.score(rollout, f64::NEG_INFINITY).is_err());
    tree.score(rollout, 0.5).unwrap();
    tree.score(rollout, f64::NAN).unwrap();
    let view = tree.rollout(rollout).unwrap();
    assert!(view.reward.is_nan());
    assert_eq!(view.error, Some("used up"));
    assert!(tree.growing().is_empty());
}

#[test]
fn siblings_share_the_prompt_they_were_asked_with() {
    let mut tree = Tree::new();
    let prompt = tree.append(NodeId::ROOT, Kind::Prompt, &message(1), None, NameId::EMPTY).unwrap();
    for draw in 0..3u8 {
        let rollout = tree.open(prompt, &[0, draw.into()], 0).unwrap();
        tree.turn(rollout, &message(10 + draw), None, common::call(100, 20)).unwrap();
        tree.observe(rollout, &message(2), None, NameId::EMPTY, 0, false).unwrap();
        tree.turn(rollout, &message(20 + draw), None, common::call(150, 5)).unwrap();
    }
    let totals = tree.tokens();
    // A rollout is 100 + 20 + 30 + 5; the tree has the 100 once.
    assert_eq!((totals.flat, totals.tree, totals.longest), (465, 265, 155));
    assert_eq!((totals.flat_generated, totals.tree_generated, totals.unreported), (75, 75, 0));
}

/// Two rollouts that part at their turns, with tokens everywhere.
#[test]
fn tokens_are_counted_from_ids_where_all_are_known() {
    let mut tree = Tree::new();
    let prompt = tree.append(NodeId::ROOT, Kind::Prompt, &message(1), None, NameId::EMPTY).unwrap();
    for draw in 0..2u8 {
        let rollout = tree.open(prompt, &[0, draw.into()], 0).unwrap();
        let sampled = TokenBuffer::sampled(vec![7, draw.into()], vec![-0.5; 2], 3).unwrap();
        tree.turn(rollout, &message(2), Some(sampled.as_slice()), common::call(90, 80)).unwrap();
    }
    assert!(!tree.tokens().exact, "the prompt has no tokens yet");
    tree.tokenise(prompt, TokenBuffer::given(vec![1, 2, 3]).as_slice()).unwrap();
    let totals = tree.tokens();
    assert_eq!((totals.flat, totals.tree, totals.longest), (10, 7, 5));
    assert_eq!((totals.flat_generated, totals.tree_generated, totals.unreported, totals.exact), (4, 4, 0, true));
    // A prompt that no rollout passes is in no total.
    tree.append(NodeId::ROOT, Kind::Prompt, &message(9), None, NameId::EMPTY).unwrap();
    assert_eq!(tree.tokens(), totals);
    // Nor are observations that no model was given.
    tree.observe(0.into(), &message(4), None, NameId::EMPTY, 0, false).unwrap();
    assert_eq!(tree.tokens(), totals);
    // What was sent to a turn with a context of its own is not its path.
    let context = tree.context(&[0]).unwrap();
    let other = tree.open(prompt, &[0, 2], 0).unwrap();
    let sampled = TokenBuffer::sampled(vec![8], vec![-0.5], 3).unwrap();
    let call = Call { context: Some(context), ..common::call(5, 1) };
    tree.turn(other, &message(2), Some(sampled.as_slice()), call).unwrap();
    assert!(!tree.tokens().exact);
    assert_eq!(tree.check(), Ok(()));
}

#[test]
fn names_are_interned() {
    let mut tree = Tree::new();
    assert_eq!(tree.name("").unwrap(), NameId::EMPTY);
    let first = tree.name(&name(1)).unwrap();
    assert_eq!(tree.name(&name(1)).unwrap(), first);
    assert_eq!(tree.text(first).unwrap(), "agent 1");
    assert!(tree.text(NameId::new(2)).is_err());
}
