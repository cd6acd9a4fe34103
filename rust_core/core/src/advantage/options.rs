//! What estimators leave open, by name, and which rows are compared with which.

use crate::advantage::batch::Batch;
use crate::error::{Error, Result, ValueError, beginning};
use crate::forest::Forest;
use crate::keyword::{Keyword, Listing, UnknownWord, keywords};

/// An option's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// One of several words.
    Text(String),
    /// A number.
    Number(f64),
    /// Yes or no.
    Flag(bool),
}

impl std::fmt::Display for Setting {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(word) => write!(out, "{:?}", beginning(word)),
            Self::Number(number) => write!(out, "{number}"),
            Self::Flag(flag) => write!(out, "{flag}"),
        }
    }
}

/// An option that is set by a word.
trait WordField {
    /// The word.
    fn word(&self) -> String;
    /// Become what another word says.
    fn assign(&mut self, option: &str, word: &str) -> Result<()>;
}

impl<K: Keyword + PartialEq> WordField for K {
    fn word(&self) -> String {
        K::WORDS.iter().filter(|(_, value)| value == self).map(|(word, _)| *word).collect()
    }

    fn assign(&mut self, option: &str, word: &str) -> Result<()> {
        *self = K::from_option(option, word)?;
        Ok(())
    }
}

keywords! {
    /// What is subtracted from a reward.
    pub enum Centre as "centre", Known {
        /// The mean of the group.
        Mean = "mean",
        /// The mean of the other rows of the group.
        LeaveOneOut = "leave_one_out",
        /// The second largest reward of the group; all rows but the best get 0 (pass@k).
        RunnerUp = "runner_up",
        /// Nothing.
        None = "none",
    }
    /// What the difference is divided by.
    pub enum Scale as "scale", Known {
        /// Nothing.
        None = "none",
        /// The standard deviation of the group.
        Std = "std",
        /// The standard deviation of all rows of the call.
        BatchStd = "batch_std",
        /// The mean of the group, which must be positive ("max-rl").
        Mean = "mean",
    }
    /// What a row gets that is alone in its group.
    pub enum Singleton as "singleton", Known {
        /// Its reward, as if the mean were 0 and the standard deviation 1.
        Raw = "raw",
        /// 0.
        Zero = "zero",
        /// Nothing: the group is left out where scopes are combined.
        Skip = "skip",
        /// It is an error.
        Error = "error",
    }
    /// What becomes of groups whose rewards are all equal. Their advantages are 0 in any case.
    pub enum ZeroVariance as "zero_variance", Known {
        /// They count like others.
        Keep = "keep",
        /// Those of the second and later scopes, and subtrees below a root, are left out where scopes are combined.
        DropSubgroups = "drop_subgroups",
        /// All are left out; a row with nothing left is not kept.
        Drop = "drop",
    }
    /// How the advantages of several scopes become one.
    pub enum Combine as "combine", Known {
        /// Their sum.
        Sum = "sum",
        /// Their mean.
        Mean = "mean",
        /// Their mean, weighted by the sizes of the groups.
        SizeWeighted = "size_weighted",
        /// Each scope is applied to what the one before gave.
        Nested = "nested",
    }
    /// What one observation of a group is.
    pub enum Unit as "unit", Known {
        /// A row.
        Row = "row",
        /// A trajectory, with the mean of its rows; each of them gets its advantage.
        Trajectory = "trajectory",
    }
    /// What is done to all advantages at the end.
    pub enum Whiten as "whiten", Known {
        /// Nothing.
        None = "none",
        /// Subtract the mean over all tokens of the call and divide by `sqrt(variance + 1e-8)` (one degree of freedom
        /// less).
        Batch = "batch",
    }
    /// How `TreeRL` damps what many trained leaves share.
    pub enum Damping as "damping", Known {
        /// Divide by the square root of the number of selected leaves below.
        Sqrt = "sqrt",
        /// Divide by that number.
        Uniform = "uniform",
        /// Do not.
        None = "none",
    }
    /// What `TreeRL` puts on the tokens of a node.
    pub enum Signal as "signal", Known {
        /// V(s) - V(parent) + V(s).
        LocalPlusValue = "local_plus_value",
        /// V(s) - V(parent).
        Local = "local",
        /// V(s).
        Value = "value",
        /// The mean of V(s) - V(a) over all nodes a above it.
        Ancestors = "ancestors",
    }
}

/// A word that is none of those there are.
pub(super) fn unknown(what: &str, word: &str, words: &[&'static str]) -> Error {
    ValueError::Word(UnknownWord::new(what, word, words.iter().copied(), Listing::Known)).into()
}

/// Refuse an option that is none of those there are.
pub(super) fn check(known: &[&'static str], name: &str) -> Result<()> {
    if known.contains(&name) { Ok(()) } else { Err(unknown("an option", name, known)) }
}

/// Everything that an estimator may leave open. What each option means to which estimator is said where presets are
/// listed.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option that users name")]
pub struct EstimatorOptions {
    /// Which rows are compared with which.
    pub scopes: Scopes,
    /// What one observation is.
    pub unit: Unit,
    /// What is subtracted.
    pub centre: Centre,
    /// What it is divided by.
    pub scale: Scale,
    /// Degrees of freedom that a variance lacks: 0 or 1.
    pub ddof: f64,
    /// Added to what is divided by.
    pub eps: f64,
    /// Least variance.
    pub var_floor: f64,
    /// For a row alone in a group of the first scope.
    pub singleton: Singleton,
    /// For a row alone in a group of a later scope, in a subtree below a root, or (`GiGPO`) with its anchor.
    pub subgroup_singleton: Singleton,
    /// For groups without variance.
    pub zero_variance: ZeroVariance,
    /// For several scopes.
    pub combine: Combine,
    /// Whether masked rows count in means and deviations.
    pub count_masked: bool,
    /// What is done at the end.
    pub whiten: Whiten,
    /// Whether rows or nodes with an advantage of 0 are not kept.
    pub drop_zero: bool,
    /// Discount of a step.
    pub gamma: f64,
    /// Weight of the part by steps.
    pub step_weight: f64,
    /// What a node must gain before the gain counts.
    pub margin: f64,
    /// How shared nodes are damped.
    pub damping: Damping,
    /// What lands on a node.
    pub signal: Signal,
    /// Whether a node that gains nothing takes the gain of the node before it.
    pub fill: bool,
    /// Whether leaves start with their size-weighted relative reward.
    pub relative: bool,
}

impl Default for EstimatorOptions {
    /// GRPO as verl has it, but with 0 for a row that is alone, as everywhere in this library.
    fn default() -> Self {
        Self {
            scopes: Scopes::default(),
            unit: Unit::Row,
            centre: Centre::Mean,
            scale: Scale::Std,
            ddof: 1.0,
            eps: 1e-6,
            var_floor: 0.0,
            singleton: Singleton::Zero,
            subgroup_singleton: Singleton::Zero,
            zero_variance: ZeroVariance::Keep,
            combine: Combine::Sum,
            count_masked: true,
            whiten: Whiten::None,
            drop_zero: false,
            gamma: 0.95,
            step_weight: 1.0,
            margin: 0.1,
            damping: Damping::Sqrt,
            signal: Signal::LocalPlusValue,
            fill: true,
            relative: false,
        }
    }
}

enum Field<'a> {
    Word(&'a mut dyn WordField),
    /// With the least and the greatest value.
    Number(&'a mut f64, f64, f64),
    Flag(&'a mut bool),
}

impl EstimatorOptions {
    fn field(&mut self, name: &str) -> Option<Field<'_>> {
        Some(match name {
            "scopes" => Field::Word(&mut self.scopes),
            "unit" => Field::Word(&mut self.unit),
            "centre" => Field::Word(&mut self.centre),
            "scale" => Field::Word(&mut self.scale),
            "ddof" => Field::Number(&mut self.ddof, 0.0, 1.0),
            "eps" => Field::Number(&mut self.eps, 0.0, 1e100),
            "var_floor" => Field::Number(&mut self.var_floor, 0.0, 1e100),
            "singleton" => Field::Word(&mut self.singleton),
            "subgroup_singleton" => Field::Word(&mut self.subgroup_singleton),
            "zero_variance" => Field::Word(&mut self.zero_variance),
            "combine" => Field::Word(&mut self.combine),
            "count_masked" => Field::Flag(&mut self.count_masked),
            "whiten" => Field::Word(&mut self.whiten),
            "drop_zero" => Field::Flag(&mut self.drop_zero),
            "gamma" => Field::Number(&mut self.gamma, 0.0, 1.0),
            "step_weight" => Field::Number(&mut self.step_weight, 0.0, 1e100),
            "margin" => Field::Number(&mut self.margin, 0.0, 1e100),
            "damping" => Field::Word(&mut self.damping),
            "signal" => Field::Word(&mut self.signal),
            "fill" => Field::Flag(&mut self.fill),
            "relative" => Field::Flag(&mut self.relative),
            _ => return None,
        })
    }

    /// Set one of `known` options by name.
    ///
    /// # Errors
    /// [`Error::Value`] saying which options or values there are.
    pub(super) fn set(&mut self, known: &[&'static str], name: &str, setting: &Setting) -> Result<()> {
        check(known, name)?;
        let Some(field) = self.field(name) else { return Ok(()) };
        let refuse = |want| Err(Error::conflict(format!("{name} is {setting}"), want));
        match (field, setting) {
            (Field::Word(field), Setting::Text(word)) => field.assign(name, word),
            (Field::Number(field, least, most), Setting::Number(number)) => {
                if !(least..=most).contains(number) || (name == "ddof" && number.fract() != 0.0) {
                    let value = format!("{name} is {number}");
                    let want = match name {
                        "ddof" => "0 or 1",
                        _ if most > 1.0 => "0 to 1e100",
                        _ => "0 to 1",
                    };
                    return Err(Error::range(value, want));
                }
                *field = *number;
                Ok(())
            }
            (Field::Flag(field), Setting::Flag(flag)) => {
                *field = *flag;
                Ok(())
            }
            (Field::Word(_), _) => refuse("a string"),
            (Field::Number(..), _) => refuse("a number"),
            (Field::Flag(_), _) => refuse("True or False"),
        }
    }

    /// The values of some options.
    pub(super) fn get(&self, names: &[&'static str]) -> Vec<(&'static str, Setting)> {
        let mut copy = self.clone();
        let mut read = |name: &'static str| {
            let setting = match copy.field(name)? {
                Field::Word(word) => Setting::Text(word.word()),
                Field::Number(number, ..) => Setting::Number(*number),
                Field::Flag(flag) => Setting::Flag(*flag),
            };
            Some((name, setting))
        };
        names.iter().filter_map(|name| read(name)).collect()
    }
}

/// A partition of rows into groups.
#[derive(Clone, Debug)]
pub enum Scope<'a> {
    /// Rows that agree in all of these columns.
    Keys(Vec<&'a [u32]>),
    /// Rollouts that pass through a node, for every node of a forest: a row is in as many groups as its path has nodes.
    Subtrees(&'a Forest),
}

/// Scopes by the names of their columns: `group`, `subgroup`, `agent`, `anchor` joined by `+`, or `subtree`;
/// separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scopes(Vec<Vec<&'static str>>);

const NAMES: [&str; 5] = ["group", "subgroup", "agent", "anchor", "subtree"];

impl Default for Scopes {
    /// `group`.
    fn default() -> Self {
        Self(vec![vec![NAMES[0]]])
    }
}

impl Scopes {
    /// Read from text, for texts that are right.
    pub(super) fn of(text: &str) -> Self {
        Self::read(text).unwrap_or_default()
    }

    fn read(text: &str) -> Option<Self> {
        let column = |word: &str| NAMES.into_iter().find(|name| *name == word.trim());
        let scope = |words: &str| words.split('+').map(column).collect::<Option<Vec<_>>>();
        let scopes = text.split(',').map(scope).collect::<Option<Vec<_>>>()?;
        let alone = scopes.iter().all(|scope| scope.len() == 1 || !scope.contains(&"subtree"));
        alone.then_some(Self(scopes))
    }

    /// The columns of a batch that are meant.
    ///
    /// # Errors
    /// [`Error::Value`] naming a column that the batch lacks.
    pub(super) fn resolve<'a>(&self, batch: &Batch<'a>, group: &'a [u32]) -> Result<Vec<Scope<'a>>> {
        let column = |name: &&'static str| match *name {
            "group" => Ok(group),
            "subgroup" => need(batch.subgroup, "subgroup"),
            "agent" => need(batch.agent, "agent"),
            _ => need(batch.anchor, "anchor"),
        };
        let scope = |names: &Vec<&'static str>| match names[..] {
            ["subtree"] => need(batch.forest, "forest (parents, leaves)").map(Scope::Subtrees),
            _ => names.iter().map(column).collect::<Result<_>>().map(Scope::Keys),
        };
        self.0.iter().map(scope).collect()
    }
}

impl WordField for Scopes {
    fn word(&self) -> String {
        self.0.iter().map(|scope| scope.join("+")).collect::<Vec<_>>().join(",")
    }

    fn assign(&mut self, option: &str, word: &str) -> Result<()> {
        let [rest @ .., _] = NAMES;
        let last = "subtree (joined by + into a scope, but for subtree)";
        let refuse = || unknown(option, word, &[&rest[..], &[last]].concat());
        *self = Self::read(word).ok_or_else(refuse)?;
        Ok(())
    }
}

/// A column that an estimator cannot do without.
pub(super) fn need<T>(column: Option<T>, name: &'static str) -> Result<T> {
    column.ok_or_else(|| ValueError::Missing { column: name }.into())
}
