//! A forest of a million nodes: what it costs to build, to hold, to read and to estimate.

use std::io::{Error, Result, Write};
use std::time::Instant;

use trunkline_core::advantage::{Batch, Estimator};
use trunkline_core::pack::{Export, ForestTokens, Oversize, TreePacked, Weighting};
use trunkline_core::{
    Call, Harvest, Kind, NameId, NodeId, Random, RolloutId, Termination, TokenBuffer, Tree, Uncertainty,
};

/// Tokens of a model turn, of an observation and of the prompt.
const TURN: u32 = 48;
const OBSERVATION: u32 = 32;
const PROMPT: u32 = 64;
/// Model turns of a rollout.
const STEPS: u32 = 8;

/// Build a forest of `nodes` nodes in trees of about `each`, then print lines of `name<TAB>number<TAB>unit`.
pub fn report(nodes: usize, each: usize, out: &mut impl Write) -> Result<()> {
    let start = Instant::now();
    let mut trees = Vec::new();
    let mut count = 0;
    while count < nodes {
        let tree = grow(trees.len() as u64, each.min(nodes - count)).map_err(Error::other)?;
        count += tree.nodes() as usize;
        trees.push(tree);
    }
    line(out, "build", start, count)?;
    let held: usize = trees.iter().map(|tree| tree.memory().total()).sum();
    let mut harvest = Harvest::new();
    let start = Instant::now();
    trees.iter().try_for_each(|tree| harvest.add(tree)).map_err(Error::other)?;
    line(out, "harvest", start, count)?;
    let payload = trees.iter().map(Tree::size).sum::<usize>() + 13 * harvest.tokens.ids.len();
    writeln!(out, "trees\t{}\ttrees", trees.len())?;
    writeln!(out, "nodes\t{count}\tnodes")?;
    writeln!(out, "rollouts\t{}\trollouts", harvest.leaves.len())?;
    writeln!(out, "tokens stored\t{}\ttokens", harvest.tokens.ids.len())?;
    writeln!(out, "held\t{held}\tbytes")?;
    let beyond = (held - payload) / count;
    writeln!(out, "beyond payload\t{beyond}\tbytes a node")?;
    for (name, work) in SWEEPS {
        let start = Instant::now();
        trees.iter().try_for_each(work).map_err(Error::other)?;
        line(out, name, start, count)?;
    }
    estimate(&harvest, count, out)?;
    let start = Instant::now();
    pack(&harvest).map_err(Error::other)?;
    line(out, "pack: tree", start, count)?;
    writeln!(out, "peak\t{}\tbytes", peak()?)
}

/// What reads every node of a tree.
type Sweep = fn(&Tree) -> trunkline_core::Result<()>;

const SWEEPS: &[(&str, Sweep)] = &[
    ("values", |tree| {
        std::hint::black_box(tree.values());
        Ok(())
    }),
    ("tokens", |tree| {
        std::hint::black_box(tree.tokens());
        Ok(())
    }),
    ("digest", |tree| {
        std::hint::black_box(tree.digest());
        Ok(())
    }),
    ("check", Tree::check),
];

/// One tree: a prompt, four chains, and forks at random steps of them until there are `nodes` nodes or nearly.
fn grow(seed: u64, nodes: usize) -> trunkline_core::Result<Tree> {
    let mut random = Random::new(seed);
    let mut tree = Tree::new();
    let prompt =
        format!(r#"{{"role":"user","content":"Question {seed}: what was found, by whom, and in which year?"}}"#);
    let ids = TokenBuffer::given(ids(&mut random, PROMPT));
    let prompt = tree.append(NodeId::ROOT, Kind::Prompt, prompt.as_bytes(), Some(ids.as_slice()), NameId::EMPTY)?;
    let mut points = vec![(prompt, 0)];
    for draw in 0.. {
        if tree.nodes() as usize >= nodes {
            break;
        }
        let chain = draw < 4;
        let (point, depth) = if chain { points[0] } else { points[random.index(points.len())] };
        let rollout = tree.open(point, &[depth, draw], draw % 4)?;
        climb(&mut tree, rollout, depth, &mut points, &mut random)?;
        tree.close(rollout, Termination::Answer, Some("1815"), None)?;
        tree.score(rollout, f64::from(u8::from(random.unit() < 0.5)))?;
        // As a worker would: what has been sent needs no memory.
        tree.delta()?;
    }
    Ok(tree)
}

/// One rollout from a fork point to its end.
fn climb(
    tree: &mut Tree,
    rollout: RolloutId,
    depth: u32,
    points: &mut Vec<(NodeId, u32)>,
    random: &mut Random,
) -> trunkline_core::Result<()> {
    for step in depth..STEPS {
        let said = format!(r#"{{"role":"assistant","content":"Search for clue {}."}}"#, random.bits());
        let sampled = TokenBuffer::sampled(ids(random, TURN), vec![-0.25; TURN as usize], 1)?;
        let uncertainty = Uncertainty { entropy: [0.5; 3], perplexity: [1.6; 3], opening: 2.0 };
        let call = Call { uncertainty, ..Call::default() };
        tree.turn(rollout, said.as_bytes(), Some(sampled.as_slice()), call)?;
        if step + 1 < STEPS {
            let seen = format!(r#"{{"role":"tool","content":"Document {} says more about it."}}"#, random.bits());
            let given = TokenBuffer::given(ids(random, OBSERVATION));
            let node = tree.observe(rollout, seen.as_bytes(), Some(given.as_slice()), NameId::EMPTY, 100, false)?;
            points.push((node, step + 1));
        }
    }
    Ok(())
}

fn ids(random: &mut Random, count: u32) -> Vec<u32> {
    let first = u32::try_from(random.below(100_000)).unwrap_or_default();
    (first..first + count).collect()
}

/// Every preset over the whole forest, with the keys it asks for.
fn estimate(harvest: &Harvest, nodes: usize, out: &mut impl Write) -> Result<()> {
    let forest = harvest.forest().map_err(Error::other)?;
    let rollouts: Vec<u32> = (0u32..).take(harvest.leaves.len()).collect();
    let agents: Vec<u32> = rollouts.iter().map(|rollout| rollout % 3).collect();
    let batch = Batch {
        rewards: &harvest.rewards,
        group: Some(&harvest.groups),
        subgroup: Some(&harvest.subgroups),
        agent: Some(&agents),
        anchor: Some(&agents),
        step_rewards: Some(&harvest.rewards),
        trajectory: Some(&rollouts),
        forest: Some(&forest),
        ..Batch::default()
    };
    for name in Estimator::PRESETS {
        let estimator = Estimator::preset(name).map_err(Error::other)?;
        let start = Instant::now();
        match estimator.estimate(&batch) {
            Ok(found) => line(out, &format!("estimate: {name}"), start, nodes.max(found.values.len()))?,
            Err(refused) => writeln!(out, "estimate: {name}\t0\trefused: {refused}")?,
        }
    }
    Ok(())
}

fn pack(harvest: &Harvest) -> trunkline_core::Result<()> {
    let forest = harvest.forest()?;
    let runs = ForestTokens::new(&forest, &harvest.offsets, harvest.tokens.as_slice())?;
    TreePacked::new(&runs, &Export::default(), Weighting::Share, Some(1 << 16), Oversize::Split).map(|_| ())
}

fn line(out: &mut impl Write, name: &str, start: Instant, nodes: usize) -> Result<()> {
    let seconds = start.elapsed().as_secs_f64();
    let count = f64::from(u32::try_from(nodes).map_err(Error::other)?);
    writeln!(out, "{name}\t{seconds:.4}\ts, {:.1} ns a node", 1e9 * seconds / count)
}

/// The most memory this process has held, as Linux counts it.
fn peak() -> Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()).and_then(|text| text.parse::<usize>().ok());
    kilobytes.map(|kilobytes| kilobytes << 10).ok_or_else(|| Error::other("no VmHWM in /proc/self/status"))
}
