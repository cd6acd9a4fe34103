//! The prefix index against a map of every prefix ever stored.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use trunkline_core::pack::{Export, ForestTokens, Oversize, TreePacked, Weighting};
use trunkline_core::{
    Error, Forest, Prefix, PrefixId, PrefixMatch, PrefixNode, Reuse, SAMPLED, SYNTHETIC, SpaceId, TokenBuffer,
    TokenSlice,
};

const NAMES: [&str; 3] = ["", "one", "two"];

/// Where something is: the number of a space and the ids from its root.
type Place = (usize, Vec<u32>);

/// What is stored beside an id.
type Beside = (f32, i32, u8);

/// What the index means, kept the long way round.
#[derive(Default)]
struct Model {
    /// Every prefix with the columns of its last token, as they came first.
    stored: BTreeMap<Place, Beside>,
    /// Every path that is counted.
    paths: Vec<Place>,
    /// Every id handed out, with its path.
    ends: BTreeMap<PrefixId, Place>,
}

impl Model {
    fn store(&mut self, (space, before): &Place, tokens: &TokenBuffer) -> Place {
        let mut ids = before.clone();
        for (at, &id) in tokens.ids.iter().enumerate() {
            ids.push(id);
            let beside = (tokens.logprobs[at], tokens.versions[at], tokens.flags[at]);
            self.stored.entry((*space, ids.clone())).or_insert(beside);
        }
        (*space, ids)
    }

    fn columns(&self, (space, ids): &Place) -> TokenBuffer {
        let mut all = TokenBuffer::default();
        for len in 1..=ids.len() {
            let (logprob, version, flags) = self.stored[&(*space, ids[..len].to_vec())];
            all.ids.push(ids[len - 1]);
            all.logprobs.push(logprob);
            all.versions.push(version);
            all.flags.push(flags);
        }
        all
    }

    fn reuse(&self, spaces: &[usize]) -> Reuse {
        let sampled =
            |place: &Place| self.columns(place).flags.iter().map(|flags| u64::from(flags & SAMPLED)).sum::<u64>();
        let paths: Vec<&Place> = self.paths.iter().filter(|(space, _)| spaces.contains(space)).collect();
        let stored: Vec<&Place> = self.stored.keys().filter(|(space, _)| spaces.contains(space)).collect();
        Reuse {
            paths: paths.len() as u64,
            flat: paths.iter().map(|(_, ids)| ids.len() as u64).sum(),
            unique: stored.len() as u64,
            flat_generated: paths.iter().map(|path| sampled(path)).sum(),
            unique_generated: stored.iter().map(|&place| u64::from(self.stored[place].2 & SAMPLED)).sum(),
            longest: paths.iter().map(|(_, ids)| ids.len() as u64).max().unwrap_or(0),
        }
    }

    /// Nodes that there must be: roots, what was handed out, and where stored paths part.
    fn nodes(&self, spaces: usize) -> usize {
        let handed: BTreeSet<&Place> = self.ends.values().filter(|(_, ids)| !ids.is_empty()).collect();
        let follows = |place: &Place, other: &Place| {
            other.0 == place.0 && other.1.len() == place.1.len() + 1 && other.1.starts_with(&place.1)
        };
        let parts = |place: &Place| self.stored.keys().filter(|other| follows(place, other)).count() > 1;
        spaces + self.stored.keys().filter(|place| handed.contains(place) || parts(place)).count()
    }
}

/// One thing to do; places to do it at are picked among the ends handed out so far.
#[derive(Clone, Debug)]
enum Step {
    Insert { space: usize, tokens: TokenBuffer },
    Append { end: prop::sample::Index, tokens: TokenBuffer },
    Fork { end: prop::sample::Index },
}

fn tokens() -> impl Strategy<Value = TokenBuffer> {
    let flags = prop::sample::select(vec![0, SAMPLED, SYNTHETIC, SAMPLED | SYNTHETIC]);
    prop::collection::vec((0u32..3, -9i8..0, -1i32..3, flags), 0..12).prop_map(|rows| TokenBuffer {
        ids: rows.iter().map(|row| row.0).collect(),
        logprobs: rows.iter().map(|row| f32::from(row.1)).collect(),
        versions: rows.iter().map(|row| row.2).collect(),
        flags: rows.iter().map(|row| row.3).collect(),
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..NAMES.len(), tokens()).prop_map(|(space, tokens)| Step::Insert { space, tokens }),
        4 => (any::<prop::sample::Index>(), tokens()).prop_map(|(end, tokens)| Step::Append { end, tokens }),
        1 => any::<prop::sample::Index>().prop_map(|end| Step::Fork { end }),
    ]
}

/// Do a step to both, and hold what came of it against the model.
fn play(prefix: &mut Prefix, model: &mut Model, spaces: &[SpaceId], step: &Step) -> Result<(), TestCaseError> {
    let pick = |end: &prop::sample::Index| model.ends.iter().nth(end.index(model.ends.len().max(1)));
    match step {
        Step::Insert { space, tokens } => {
            let id = prefix.insert(spaces[*space], &tokens.as_slice()).unwrap();
            let path = model.store(&(*space, Vec::new()), tokens);
            model.paths.push(path.clone());
            prop_assert_eq!(model.ends.entry(id).or_insert_with(|| path.clone()), &path, "an end has two paths");
        }
        Step::Append { end, tokens } => {
            let Some((&id, place)) = pick(end).map(|(id, place)| (id, place.clone())) else { return Ok(()) };
            let Some(moved) = model.paths.iter().position(|path| *path == place) else {
                let before = (prefix.total(), prefix.nodes());
                let refused = prefix.append(id, &tokens.as_slice());
                prop_assert!(matches!(refused, Err(Error::Value(_))), "{refused:?}");
                prop_assert_eq!((prefix.total(), prefix.nodes()), before);
                return Ok(());
            };
            let new = prefix.append(id, &tokens.as_slice()).unwrap();
            let path = model.store(&place, tokens);
            model.paths[moved] = path.clone();
            prop_assert_eq!(model.ends.entry(new).or_insert_with(|| path.clone()), &path, "an end has two paths");
        }
        Step::Fork { end } => {
            let Some((&id, place)) = pick(end).map(|(id, place)| (id, place.clone())) else { return Ok(()) };
            prefix.fork(id).unwrap();
            model.paths.push(place);
        }
    }
    Ok(())
}

fn compare(prefix: &Prefix, model: &Model, spaces: &[SpaceId]) -> Result<(), TestCaseError> {
    prop_assert_eq!(prefix.check(), Ok(()));
    prop_assert_eq!(prefix.nodes() as usize, model.nodes(spaces.len()));
    for (number, &space) in spaces.iter().enumerate() {
        prop_assert_eq!(prefix.reuse(space).unwrap(), model.reuse(&[number]));
    }
    prop_assert_eq!(prefix.total(), model.reuse(&[0, 1, 2]));
    for (&id, place) in &model.ends {
        let path = prefix.path(id).unwrap();
        prop_assert_eq!(&path, &model.columns(place), "an end has lost its path");
        let node = prefix.node(id).unwrap();
        let above = prefix.path(node.parent).unwrap();
        let own = path.as_slice().after(if node.len == 0 { 0 } else { above.ids.len() });
        prop_assert_eq!(prefix.span(id).unwrap(), own);
        let through = |&&(space, ref ids): &&Place| space == place.0 && ids.starts_with(&place.1);
        let expected = PrefixNode {
            parent: node.parent,
            space: spaces[place.0],
            len: own.len(),
            depth: place.1.len(),
            generated: own.flags.iter().map(|flags| u32::from(flags & SAMPLED)).sum(),
            passes: u32::try_from(model.paths.iter().filter(through).count()).unwrap(),
            ends: u32::try_from(model.paths.iter().filter(|path| *path == place).count()).unwrap(),
        };
        prop_assert_eq!(node, expected);
    }
    Ok(())
}

fn search(prefix: &Prefix, model: &Model, space: (usize, SpaceId), ids: &[u32]) -> Result<(), TestCaseError> {
    let known = |len: &usize| model.stored.contains_key(&(space.0, ids[..*len].to_vec()));
    let expected = (1..=ids.len()).take_while(known).last().unwrap_or(0);
    let PrefixMatch { node, matched, offset } = prefix.longest(space.1, ids).unwrap();
    prop_assert_eq!(matched, expected);
    let found = prefix.node(node).unwrap();
    prop_assert_eq!((found.space, found.depth - found.len + offset), (space.1, matched));
    prop_assert!(offset > 0 || matched == 0);
    prop_assert_eq!(&prefix.path(node).unwrap().ids[..matched], &ids[..matched]);
    Ok(())
}

/// Ids whose columns follow from what is before them, as those of one prefix do.
fn told(ids: &[u32]) -> TokenBuffer {
    let mut hash = 7u8;
    let mut flags = Vec::new();
    for &id in ids {
        hash = hash.wrapping_mul(31).wrapping_add(u8::try_from(id).unwrap());
        flags.push(hash >> 3 & SAMPLED);
    }
    let sampled = |sampled: i32| -> Vec<i32> { flags.iter().map(|&flags| i32::from(flags) * sampled).collect() };
    let logprobs = sampled(-2).into_iter().map(|logprob| f32::from(i8::try_from(logprob).unwrap())).collect();
    TokenBuffer { ids: ids.to_vec(), logprobs, versions: sampled(3), flags }
}

proptest! {
    #[test]
    fn counts_and_columns_do_not_hang_on_the_order_of_paths(
        paths in prop::collection::vec((0..2usize, prop::collection::vec(0u32..3, 0..10)), 0..12),
        order in any::<u64>(),
    ) {
        let fill = |order: &[usize]| {
            let mut prefix = Prefix::default();
            let spaces = ["a", "b"].map(|name| prefix.space(name).unwrap());
            let mut ends = vec![PrefixId::new(0); paths.len()];
            for &path in order {
                let (space, ids) = &paths[path];
                ends[path] = prefix.insert(spaces[*space], &told(ids).as_slice()).unwrap();
            }
            (prefix, ends)
        };
        let straight: Vec<usize> = (0..paths.len()).collect();
        let mut shuffled = straight.clone();
        shuffled.sort_by_key(|&path| (path as u64 + 1).wrapping_mul(order | 1));
        let ((one, ends), (other, others)) = (fill(&straight), fill(&shuffled));
        prop_assert_eq!((one.total(), one.nodes()), (other.total(), other.nodes()));
        // Nodes are numbered as paths need them, so even their order is that of the paths asked for.
        let (columns, same) = (one.columns(&ends).unwrap(), other.columns(&others).unwrap());
        prop_assert_eq!((&columns.parents, &columns.leaves, &columns.tokens), (&same.parents, &same.leaves, &same.tokens));

        let forest = Forest::new(columns.parents, columns.leaves).unwrap();
        let runs = ForestTokens::new(&forest, &columns.offsets, columns.tokens.as_slice()).unwrap();
        // All are masked: a space may have no tokens at all.
        let masked = vec![1; paths.len()];
        let export = Export { masked: Some(&masked), ..Export::default() };
        let packed = TreePacked::new(&runs, &export, Weighting::Share, Some(60), Oversize::Split).unwrap();
        for (rollout, (_, ids)) in paths.iter().enumerate() {
            prop_assert_eq!(packed.unpack(rollout).unwrap(), told(ids));
        }
        prop_assert_eq!(packed.ids.len() as u64, one.total().unique + packed.report.repeated);
        prop_assert_eq!(forest.depths().iter().filter(|depth| **depth == 0).count(), {
            paths.iter().map(|path| path.0).collect::<BTreeSet<_>>().len()
        });
        for (&node, own) in columns.nodes.iter().zip(columns.offsets.windows(2)) {
            prop_assert_eq!(one.node(node).unwrap().len as u64, own[1] - own[0]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn an_index_is_a_set_of_prefixes_and_a_list_of_paths(
        steps in prop::collection::vec(step(), 0..40),
        queries in prop::collection::vec((0..NAMES.len(), prop::collection::vec(0u32..3, 0..14)), 0..20),
    ) {
        let mut prefix = Prefix::default();
        let mut held = 0;
        for round in 0..2 {
            let mut model = Model::default();
            let spaces: Vec<SpaceId> = NAMES.iter().map(|name| prefix.space(name).unwrap()).collect();
            for step in &steps {
                play(&mut prefix, &mut model, &spaces, step)?;
            }
            compare(&prefix, &model, &spaces)?;
            let before = (prefix.total(), prefix.nodes());
            for (space, ids) in &queries {
                search(&prefix, &model, (*space, spaces[*space]), ids)?;
            }
            for (space, ids) in model.ends.values() {
                search(&prefix, &model, (*space, spaces[*space]), ids)?;
            }
            prop_assert_eq!((prefix.total(), prefix.nodes()), before, "a search has changed the index");
            prop_assert!(round == 0 || prefix.memory() == held, "a reset index asked for memory it had");
            held = prefix.memory();
            prefix.reset();
            prop_assert_eq!((prefix.nodes(), prefix.spaces(), prefix.total()), (0, 0, Reuse::default()));
        }
    }

    #[test]
    fn runs_part_at_any_token(len in 1usize..200, at in 0usize..200) {
        let at = at % len;
        let ids: Vec<u32> = (0..u32::try_from(len).unwrap()).collect();
        let mut other = ids.clone();
        other[at] = u32::MAX;
        let mut prefix = Prefix::default();
        let space = prefix.space("").unwrap();
        let first = prefix.insert(space, &TokenBuffer::given(ids.clone()).as_slice()).unwrap();
        let second = prefix.insert(space, &TokenBuffer::given(other.clone()).as_slice()).unwrap();
        prop_assert_eq!((prefix.path(first).unwrap().ids, prefix.path(second).unwrap().ids), (ids, other));
        prop_assert_eq!(prefix.node(first).unwrap().len, len - at);
        prop_assert_eq!(prefix.total().unique, (2 * len - at) as u64);
        prop_assert_eq!(prefix.check(), Ok(()));
    }
}

/// A prompt of 20 tokens and nine nodes of 10 below it, six of which are leaves.
#[test]
fn the_uneven_tree_of_six_leaves_saves_what_was_worked_out() {
    let mut prefix = Prefix::default();
    let space = prefix.space("q").unwrap();
    let turn = |id: u32| TokenBuffer::sampled((10 * id..10 * id + 10).collect(), vec![-0.5; 10], 1).unwrap();
    let prompt = prefix.insert(space, &TokenBuffer::given((1000..1020).collect()).as_slice()).unwrap();
    // Children by node, written down in order: A, B; A1 A2 A3; B1 B2; B1a B1b.
    let children = [vec![1, 2], vec![3, 4, 5], vec![6, 7], vec![], vec![], vec![], vec![8, 9]];
    let mut ids = [prompt; 10];
    for (node, below) in children.iter().enumerate() {
        for _ in below.iter().skip(1) {
            prefix.fork(ids[node]).unwrap();
        }
        for &child in below {
            ids[child] = prefix.append(ids[node], &turn(u32::try_from(child).unwrap()).as_slice()).unwrap();
        }
    }
    let reuse = prefix.reuse(space).unwrap();
    let expected = Reuse { paths: 6, flat: 260, unique: 110, flat_generated: 140, unique_generated: 90, longest: 50 };
    assert_eq!(reuse, expected);
    assert!((reuse.ratio() - 0.576_923).abs() < 1e-5);
    assert!((reuse.ideal() - 2.363_636).abs() < 1e-5);
    assert!((reuse.ideal_generated() - 1.555_556).abs() < 1e-5);
    assert_eq!(prefix.check(), Ok(()));
    assert!(Reuse::default().ratio().abs() < 1e-12, "nothing saved where there is nothing");
}

#[test]
fn what_was_stored_first_stays() {
    let mut prefix = Prefix::default();
    let space = prefix.space("").unwrap();
    let first = TokenBuffer::sampled(vec![1, 2, 3], vec![-1.0, -2.0, f32::NEG_INFINITY], 4).unwrap();
    let again = TokenBuffer::given(vec![1, 2, 3]);
    let end = prefix.insert(space, &first.as_slice()).unwrap();
    assert_eq!(prefix.insert(space, &again.as_slice()), Ok(end));
    assert_eq!(prefix.path(end).unwrap(), first);
    // Both paths count as what is stored.
    let expected = Reuse { paths: 2, flat: 6, unique: 3, flat_generated: 6, unique_generated: 3, longest: 3 };
    assert_eq!(prefix.total(), expected);
}

#[test]
fn what_does_not_exist_or_fit_is_refused_and_changes_nothing() {
    let mut prefix = Prefix::default();
    let nowhere = prefix.insert(SpaceId::new(0), &TokenSlice::default());
    assert_eq!(nowhere, Err(Error::Unknown { what: "space", id: 0, count: 0 }));
    let space = prefix.space("a").unwrap();
    assert_eq!((prefix.space("a"), prefix.name(space), prefix.spaces()), (Ok(space), Ok("a"), 1));
    let end = prefix.insert(space, &TokenBuffer::given(vec![5]).as_slice()).unwrap();
    let before = (prefix.total(), prefix.nodes(), prefix.node(end).unwrap());
    let unknown = Error::Unknown { what: "node", id: 9, count: 2 };
    let nine = PrefixId::new(9);
    assert_eq!(prefix.append(nine, &TokenSlice::default()), Err(unknown.clone()));
    assert_eq!(prefix.fork(nine), Err(unknown.clone()));
    assert_eq!(prefix.node(nine), Err(unknown.clone()));
    assert_eq!(prefix.span(nine), Err(unknown.clone()));
    assert_eq!(prefix.path(nine), Err(unknown.clone()));
    assert_eq!(prefix.columns(&[end, nine]), Err(unknown));
    assert!(prefix.longest(SpaceId::new(1), &[5]).is_err());
    assert!(prefix.reuse(SpaceId::new(1)).is_err() && prefix.root(SpaceId::new(1)).is_err());
    let uneven = TokenSlice { ids: &[5, 6], logprobs: &[0.0], versions: &[0, 0], flags: &[0, 0] };
    let length = Error::Length { what: "log-probabilities", need: 2, have: 1 };
    assert_eq!(prefix.insert(space, &uneven), Err(length.clone()));
    assert_eq!(prefix.append(end, &uneven), Err(length));
    let root = prefix.root(space).unwrap();
    let text = prefix.append(root, &TokenSlice::default()).unwrap_err().to_string();
    assert_eq!(text, "node 0 is where no path ends; it must be the end of a path to be moved on: fork it first");
    assert_eq!((prefix.total(), prefix.nodes(), prefix.node(end).unwrap()), before);
    assert_eq!(prefix.check(), Ok(()));
}
