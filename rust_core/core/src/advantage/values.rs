//! Values of nodes, backed up from the leaves, and what a node gains over those above it.

use super::moments::Moments;
use crate::error::{Error, Result, length};
use crate::forest::Forest;
use crate::keyword::{Keyword, keywords};
use crate::validation::{discount, finite_column};

keywords! {
    /// How the values of nodes are backed up from the leaves.
    pub enum Backup as "backup", Known {
        /// The mean of the leaves below.
        LeafMean = "leaf_mean",
        /// The mean of the children.
        ChildMean = "child_mean",
        /// The discounted gains of the children, by visits.
        Discounted = "discounted",
    }
}

/// Values of all nodes, and what each gains over those above it. Its columns are used again by the next update: on a
/// batch of some ten thousand nodes, fresh pages cost as much as the work itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeValues {
    /// V(s); NaN where nothing was scored.
    pub values: Vec<f64>,
    /// V(s) - V(parent); 0 at roots.
    pub local: Vec<f64>,
    /// V(s) - V(root of its tree); 0 at roots.
    pub global: Vec<f64>,
    /// How many numbers each value is the mean of; not for discounted ones.
    pub(super) counts: Vec<u32>,
}

impl NodeValues {
    /// V(s) is the mean reward of the scored rollouts that pass through a node or end there. `rewards` are per rollout.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Value`] if the rewards do not fit the forest.
    pub fn leaf_means(&mut self, forest: &Forest, rewards: &[f64]) -> Result<()> {
        self.start(forest, rewards)?;
        for (node, &parent) in forest.parents().iter().enumerate().rev() {
            if parent as usize != node {
                self.count(parent, self.values[node], self.counts[node]);
            }
        }
        self.finish(forest);
        Ok(())
    }

    /// V(s) is the mean over the children of a node; a rollout that ends there counts as one child with its reward.
    /// `rewards` are per rollout.
    ///
    /// # Errors
    /// As of [`NodeValues::leaf_means`].
    pub fn child_means(&mut self, forest: &Forest, rewards: &[f64]) -> Result<()> {
        self.start(forest, rewards)?;
        for (node, &parent) in forest.parents().iter().enumerate().rev() {
            if parent as usize != node {
                self.count(parent, self.values[node], self.counts[node].min(1));
            }
        }
        self.finish(forest);
        Ok(())
    }

    /// Values of the rollouts that end at each node.
    fn start(&mut self, forest: &Forest, rewards: &[f64]) -> Result<()> {
        check(forest, rewards)?;
        let nodes = forest.parents().len();
        self.values.clear();
        self.values.resize(nodes, 0.0);
        self.counts.clear();
        self.counts.resize(nodes, 0);
        for (&leaf, &reward) in forest.leaves().iter().zip(rewards) {
            self.count(leaf, reward, u32::from(!reward.is_nan()));
        }
        Ok(())
    }

    /// Count a value in the mean of a node, some times over. A running mean stays exact where all values are equal.
    fn count(&mut self, node: u32, value: f64, times: u32) {
        if times > 0 {
            let (mean, count) = (&mut self.values[node as usize], &mut self.counts[node as usize]);
            *count += times;
            *mean += (value - *mean) * (f64::from(times) / f64::from(*count));
        }
    }

    /// Nothing is known of nodes that no scored rollout passes.
    fn finish(&mut self, forest: &Forest) {
        for (value, _) in self.values.iter_mut().zip(&self.counts).filter(|(_, count)| **count == 0) {
            *value = f64::NAN;
        }
        self.gain(forest);
    }

    /// V(s) is `sum_c N_c (R_c - R_s + gamma V_c) / sum_c N_c` over the children c of s, and its own reward where
    /// there are none (`TreeRL`, `parallel_mcts.py`). Children whose term is NaN are left out.
    ///
    /// `rewards` and `visits` are per node; without visits, N is the number of rollouts that pass.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Value`] naming the column.
    pub fn discounted(&mut self, forest: &Forest, rewards: &[f64], visits: Option<&[u32]>, gamma: f64) -> Result<()> {
        let nodes = forest.parents().len();
        finite_column("reward", rewards)?;
        length("rewards of nodes", nodes, rewards.len())?;
        length("visits", nodes, visits.map_or(nodes, <[u32]>::len))?;
        discount(gamma)?;
        let passes = forest.passes();
        let visits = visits.unwrap_or(&passes);
        self.values.clear();
        self.values.extend(rewards);
        let mut below = vec![Moments::default(); nodes];
        for (node, &parent) in forest.parents().iter().enumerate().rev() {
            let up = parent as usize;
            if below[node].weight > 0.0 {
                self.values[node] = below[node].mean;
            }
            let gain = rewards[node] - rewards[up] + gamma * self.values[node];
            if up != node && !gain.is_nan() {
                below[up].merge(Moments::of(gain, visits[node].into()));
            }
        }
        self.gain(forest);
        Ok(())
    }

    /// One of the above by its name: `leaf_mean`, `child_mean` or `discounted`, which alone takes visits.
    ///
    /// # Errors
    /// [`Error::Value`] for another name or visits that are not used, else as theirs.
    pub fn named(
        &mut self,
        backup: &str,
        forest: &Forest,
        rewards: &[f64],
        visits: Option<&[u32]>,
        gamma: f64,
    ) -> Result<()> {
        match (Backup::from_word(backup)?, visits) {
            (Backup::LeafMean, None) => self.leaf_means(forest, rewards),
            (Backup::ChildMean, None) => self.child_means(forest, rewards),
            (Backup::Discounted, _) => self.discounted(forest, rewards, visits, gamma),
            (Backup::LeafMean | Backup::ChildMean, Some(_)) => {
                Err(Error::conflict(format!("visits are given to {backup}"), "left out, or for discounted"))
            }
        }
    }

    fn gain(&mut self, forest: &Forest) {
        let Self { values, local, global, .. } = self;
        local.clear();
        local.extend(values.iter().zip(forest.parents()).map(|(value, &parent)| value - values[parent as usize]));
        global.clear();
        for (node, &parent) in forest.parents().iter().enumerate() {
            global.push(if parent as usize == node { values[node] } else { global[parent as usize] });
        }
        for (root, value) in global.iter_mut().zip(values) {
            *root = *value - *root;
        }
    }
}

/// Rewards of rollouts must be one a leaf and finite, or NaN.
fn check(forest: &Forest, rewards: &[f64]) -> Result<()> {
    length("rewards", forest.leaves().len(), rewards.len())?;
    finite_column("reward", rewards)
}
