//! Shares: how many rollouts pass a node of a tree, and what they train it with.

use super::rows::Plan;
use super::tokens::Runs;
use super::{Export, narrow};

/// Columns over nodes. They are sums from the leaves up, so that rollouts of any depth cost one step each.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    /// The rollouts that pass through a node or end there.
    pub passes: Vec<u32>,
    /// Those of them that train its sampled tokens.
    pub trained: Vec<u32>,
    /// Sum of the values of those.
    values: Vec<f64>,
}

impl Shares {
    pub(super) fn new(runs: &Runs<'_>, export: &Export<'_>, plan: &Plan) -> Self {
        let parents = runs.forest().parents();
        let mut sums =
            Self { passes: vec![0; parents.len()], trained: vec![0; parents.len()], values: vec![0.0; parents.len()] };
        // What ends at the last node of a given prompt. Elsewhere a prompt has nothing that could be trained.
        let (mut stopped, mut stopped_values) = (vec![0; parents.len()], vec![0.0; parents.len()]);
        for row in &plan.rows {
            sums.passes[row.leaf as usize] += 1;
            if row.masked {
                continue;
            }
            sums.trained[row.leaf as usize] += 1;
            sums.values[row.leaf as usize] += row.value;
            if let Some(splits) = export.splits {
                let split = splits[row.rollout as usize] as usize;
                stopped[split] += 1;
                stopped_values[split] += row.value;
            }
        }
        for (node, &parent) in parents.iter().enumerate().rev() {
            sums.trained[node] -= stopped[node];
            sums.values[node] -= stopped_values[node];
            if node != parent as usize {
                sums.passes[parent as usize] += sums.passes[node];
                sums.trained[parent as usize] += sums.trained[node];
                sums.values[parent as usize] += sums.values[node];
            }
        }
        sums
    }

    /// The mean value of the rollouts that train a node.
    pub(super) fn means(&self) -> Vec<f32> {
        let mean = |(sum, &trained): (&f64, &u32)| narrow(sum / f64::from(trained.max(1)));
        self.values.iter().zip(&self.trained).map(mean).collect()
    }
}
