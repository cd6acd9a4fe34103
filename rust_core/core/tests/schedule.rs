//! The ready set: who is served, how often, in what order, and that nothing is lost on the way.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;

use proptest::prelude::*;
use trunkline_core::{Amount, Bounds, Currency, Error, Ledger, Scheduler, Start, Work, WorkKind};

fn draws(point: u32, first: u32, n: u32) -> Work {
    Work { kind: WorkKind::Draws, point, first, n }
}

fn rows(point: u32, n: u32) -> Work {
    Work { kind: WorkKind::Rows, point, first: 0, n }
}

fn calls(n: u64) -> Bounds {
    Amount::ZERO.with(Currency::Calls, n).into()
}

fn free() -> Ledger {
    Ledger::new(Bounds::NONE)
}

fn budget(limit: u64) -> Ledger {
    Ledger::new(Bounds::NONE.with(Currency::Calls, Some(limit)))
}

/// Tasks with these weights, each with endless draws of point 0.
fn busy(batch: u32, weights: &[u32]) -> Scheduler {
    let mut scheduler = Scheduler::new(u32::MAX, batch).unwrap();
    for &weight in weights {
        let task = scheduler.add(weight, u32::MAX).unwrap();
        scheduler.push(task, draws(0, 0, 1_000_000), calls(1)).unwrap();
    }
    scheduler
}

fn order(starts: &[Start]) -> Vec<(u32, u32, u32, u32)> {
    starts.iter().map(|start| (start.task, start.work.point, start.work.first, start.work.n)).collect()
}

#[test]
fn twice_the_weight_is_served_twice_as_often() {
    let starts = busy(1, &[1, 2]).next(6, &mut free()).starts;
    let tasks: Vec<u32> = starts.iter().map(|start| start.task).collect();
    assert_eq!(tasks, [0, 1, 1, 0, 1, 1]);
    assert_eq!(starts.iter().map(|start| start.rollout).collect::<Vec<_>>(), (0..6).map(Some).collect::<Vec<_>>());
}

#[test]
fn work_starts_in_part_when_there_is_no_room_for_all() {
    let mut scheduler = Scheduler::new(5, 3).unwrap();
    let (one, two) = (scheduler.add(1, 4).unwrap(), scheduler.add(1, 9).unwrap());
    scheduler.push(one, draws(7, 10, 8), calls(1)).unwrap();
    scheduler.push(two, draws(3, 0, 1), calls(1)).unwrap();
    scheduler.push(two, draws(4, 0, 9), calls(1)).unwrap();
    let mut ledger = free();
    let starts = scheduler.next(6, &mut ledger).starts;
    assert_eq!(order(&starts), [(0, 7, 10, 3), (1, 3, 0, 1), (1, 4, 0, 1)]);
    assert_eq!(starts.iter().map(|start| start.rollout).collect::<Vec<_>>(), [Some(0), Some(3), Some(4)]);
    assert_eq!(scheduler.next(6, &mut ledger).starts, []);
    scheduler.done(1).unwrap();
    scheduler.done(3).unwrap();
    assert_eq!(order(&scheduler.next(6, &mut ledger).starts), [(1, 4, 1, 2)]);
    assert_eq!((scheduler.counts(one), scheduler.counts(two)), (Ok((5, 2)), Ok((6, 3))));
    assert_eq!(ledger.reserved().get(Currency::Calls), 7);
}

#[test]
fn rows_of_running_rollouts_need_no_lane_and_go_first() {
    let mut scheduler = Scheduler::new(1, 9).unwrap();
    let task = scheduler.add(1, 9).unwrap();
    scheduler.push(task, draws(0, 0, 2), calls(1)).unwrap();
    assert_eq!(order(&scheduler.next(9, &mut free()).starts), [(0, 0, 0, 1)]);
    scheduler.push(task, rows(5, 4), calls(1)).unwrap();
    let starts = scheduler.next(3, &mut free()).starts;
    assert_eq!((order(&starts), starts[0].rollout), (vec![(0, 5, 0, 3)], None));
    scheduler.done(0).unwrap();
    assert_eq!(order(&scheduler.next(9, &mut free()).starts), [(0, 5, 3, 1), (0, 0, 1, 1)]);
}

#[test]
fn what_the_ledger_refuses_is_told_once_and_stays() {
    let mut scheduler = Scheduler::new(99, 99).unwrap();
    let (one, two) = (scheduler.add(1, 99).unwrap(), scheduler.add(1, 99).unwrap());
    scheduler.push(one, draws(0, 0, 4), calls(3)).unwrap();
    scheduler.push(two, draws(0, 0, 4), calls(1)).unwrap();
    let mut ledger = budget(8);
    let round = scheduler.next(99, &mut ledger);
    assert_eq!(order(&round.starts), [(0, 0, 0, 2), (1, 0, 0, 2)]);
    let refused: Vec<_> = round.refused.iter().map(|refused| (refused.task, refused.work)).collect();
    assert_eq!(refused, [(0, draws(0, 2, 2)), (1, draws(0, 2, 2))]);
    assert_eq!((round.refused[0].refusal.wanted, round.refused[0].refusal.left), (Some(12), 8));
    assert_eq!(scheduler.next(99, &mut ledger), trunkline_core::Round::default());
    ledger.release(round.starts[1].reservation).unwrap();
    let round = scheduler.next(99, &mut ledger);
    assert_eq!((order(&round.starts), round.refused.len()), (vec![(1, 0, 2, 2)], 0));
    scheduler.push(two, draws(5, 0, 1), calls(1)).unwrap();
    assert_eq!(scheduler.next(99, &mut ledger).refused[0].work, draws(5, 0, 1));
}

#[test]
fn each_piece_of_work_has_its_own_refusal() {
    let mut scheduler = Scheduler::new(99, 99).unwrap();
    let task = scheduler.add(1, 99).unwrap();
    let mut ledger = budget(2);
    let refused = |scheduler: &mut Scheduler, ledger: &mut Ledger| -> Vec<Work> {
        scheduler.next(99, ledger).refused.iter().map(|refused| refused.work).collect()
    };
    scheduler.push(task, draws(0, 0, 3), calls(3)).unwrap();
    assert_eq!(refused(&mut scheduler, &mut ledger), [draws(0, 0, 3)]);
    scheduler.push(task, rows(1, 3), calls(1)).unwrap();
    assert_eq!(refused(&mut scheduler, &mut ledger), [Work { first: 2, n: 1, ..rows(1, 3) }]);
    assert_eq!(refused(&mut scheduler, &mut ledger), []);
    // Some of the rows starts, so what is left of them is refused anew; the draws were refused before.
    scheduler.push(task, rows(2, 1), calls(9)).unwrap();
    let mut more = budget(1);
    assert_eq!(refused(&mut scheduler, &mut more), [rows(2, 1)]);
    assert_eq!(refused(&mut scheduler, &mut budget(9)), []);
    assert_eq!((refused(&mut scheduler, &mut ledger), scheduler.counts(task)), (vec![], Ok((3, 0))));
}

#[test]
fn what_is_left_is_refused_anew_once_some_has_started() {
    let mut scheduler = Scheduler::new(99, 99).unwrap();
    let task = scheduler.add(1, 99).unwrap();
    scheduler.push(task, draws(0, 0, 9), calls(2)).unwrap();
    let refused: Vec<Vec<Work>> = [1, 3, 1, 5]
        .map(|limit| scheduler.next(99, &mut budget(limit)).refused.iter().map(|refused| refused.work).collect())
        .into();
    assert_eq!(refused, [vec![draws(0, 0, 9)], vec![draws(0, 1, 8)], vec![], vec![draws(0, 3, 6)]]);
}

#[test]
fn who_was_refused_for_want_of_a_bound_starts_where_there_is_no_limit() {
    let mut scheduler = Scheduler::new(99, 99).unwrap();
    let task = scheduler.add(1, 99).unwrap();
    scheduler.push(task, draws(0, 0, 2), calls(0).with(Currency::Calls, None)).unwrap();
    assert_eq!(scheduler.next(9, &mut budget(u64::MAX)).refused[0].refusal.wanted, None);
    let mut spent = free();
    let call = spent.reserve(&calls(1)).unwrap();
    spent.settle(call, &Amount::ZERO.with(Currency::Calls, 1)).unwrap();
    assert_eq!(order(&scheduler.next(9, &mut spent).starts), [(0, 0, 0, 2)]);
}

#[test]
fn a_refused_task_saves_no_turns_up() {
    let mut scheduler = Scheduler::new(99, 1).unwrap();
    let (one, two) = (scheduler.add(1, 99).unwrap(), scheduler.add(1, 99).unwrap());
    scheduler.push(one, draws(0, 0, 30), calls(2)).unwrap();
    scheduler.push(two, draws(0, 0, 30), calls(1)).unwrap();
    let short: Vec<u32> =
        (0..10).flat_map(|_| scheduler.next(1, &mut budget(1)).starts).map(|start| start.task).collect();
    assert_eq!(short, [two; 10]);
    let tasks: Vec<u32> = scheduler.next(6, &mut free()).starts.iter().map(|start| start.task).collect();
    assert_eq!(tasks, [one, one, two, one, two, one]);
}

/// Two tasks of which the first holds both lanes and has rows waiting; the second waits with draws.
fn full() -> (Scheduler, u32, u32) {
    let mut scheduler = Scheduler::new(2, 1).unwrap();
    let (one, two) = (scheduler.add(1, 99).unwrap(), scheduler.add(1, 99).unwrap());
    scheduler.push(one, draws(0, 0, 2), calls(1)).unwrap();
    scheduler.next(2, &mut free());
    scheduler.push(two, draws(0, 0, 9), calls(1)).unwrap();
    scheduler.push(one, rows(1, 9), calls(1)).unwrap();
    (scheduler, one, two)
}

#[test]
fn the_tag_being_served_never_goes_back() {
    let (mut scheduler, _, two) = full();
    assert_eq!(scheduler.next(9, &mut free()).starts.len(), 9);
    (0..2).for_each(|rollout| scheduler.done(rollout).unwrap());
    // The draws that found no lane are behind by nine turns. Who comes now is not.
    assert_eq!(order(&scheduler.next(1, &mut free()).starts), [(two, 0, 0, 1)]);
    let late = scheduler.add(1, 99).unwrap();
    scheduler.push(late, rows(2, 9), calls(1)).unwrap();
    assert_eq!(order(&scheduler.next(2, &mut free()).starts), [(two, 0, 1, 1), (late, 2, 0, 1)]);
}

#[test]
fn the_greatest_weights_are_told_apart() {
    let mut served = [0; 2];
    let mut scheduler = busy(1, &[u32::MAX, u32::MAX / 2 + 1]);
    for start in scheduler.next(3000, &mut free()).starts {
        served[start.task as usize] += start.work.n;
    }
    assert_eq!(served, [2000, 1000]);
}

#[test]
fn a_cancelled_task_runs_out() {
    let mut scheduler = busy(1, &[1]);
    scheduler.next(2, &mut free());
    assert_eq!((scheduler.cancel(0), scheduler.cancel(0)), (Ok(999_998), Ok(0)));
    assert_eq!((scheduler.counts(0), scheduler.running()), (Ok((0, 2)), 2));
    assert_eq!(scheduler.next(2, &mut free()).starts, []);
    (0..2).for_each(|rollout| scheduler.done(rollout).unwrap());
    assert_eq!((scheduler.counts(0), scheduler.running(), scheduler.cancel(0)), (Ok((0, 0)), 0, Ok(0)));
    assert!(scheduler.push(0, draws(0, 0, 1), calls(1)).unwrap_err().to_string().starts_with("task 0 was cancelled"));
    assert_eq!(scheduler.add(1, 1), Ok(1));
}

#[test]
fn a_task_that_comes_late_neither_waits_nor_catches_up() {
    let mut scheduler = busy(1, &[1]);
    scheduler.next(100, &mut free());
    let late = scheduler.add(1, u32::MAX).unwrap();
    scheduler.push(late, draws(0, 0, 50), calls(1)).unwrap();
    let starts = scheduler.next(20, &mut free()).starts;
    let served = starts.iter().filter(|start| start.task == late).count();
    assert!((9..=11).contains(&served), "{served}");
}

#[test]
fn a_task_whose_draws_find_no_lane_keeps_its_turn() {
    let (mut scheduler, one, two) = full();
    scheduler.next(9, &mut free());
    scheduler.push(one, draws(0, 2, 9), calls(1)).unwrap();
    scheduler.push(two, draws(1, 0, 9), calls(1)).unwrap();
    (0..2).for_each(|rollout| scheduler.done(rollout).unwrap());
    assert_eq!(order(&scheduler.next(9, &mut free()).starts), [(1, 0, 0, 1), (1, 0, 1, 1)]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let text = |outcome: Result<(), Error>| outcome.unwrap_err().to_string();
    assert_eq!(text(Scheduler::new(0, 1).map(|_| ())), "the limit of running rollouts is 0; it must be 1 or more");
    let mut scheduler = busy(1, &[1]);
    assert_eq!(text(scheduler.add(0, 1).map(|_| ())), "the weight of a task is 0; it must be 1 or more");
    assert_eq!(
        text(scheduler.push(0, draws(0, 0, 0), calls(1))),
        "the number of draws or rows is 0; it must be 1 or more"
    );
    assert!(
        text(scheduler.push(0, draws(0, u32::MAX, 1), calls(1)))
            .starts_with("the first draw is 4294967295 and there are 1")
    );
    assert_eq!(
        text(scheduler.push(1, draws(0, 0, 1), calls(1))),
        "task 1 does not exist; it must be one that was added"
    );
    assert_eq!(scheduler.cancel(0), Ok(1_000_000));
    assert_eq!(
        text(scheduler.push(0, draws(0, 0, 1), calls(1))),
        "task 0 was cancelled; it must be a task that goes on"
    );
    assert_eq!(text(scheduler.done(0)), "rollout 0 does not run; it must be one that was started and has not ended");
    assert!(scheduler.cancel(1).is_err() && scheduler.counts(1).is_err());
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push { task: usize, rows: bool, n: u32 },
    Next { max: u32 },
    Done { which: usize },
    Settle { which: usize, spent: u64 },
    Cancel { task: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..4, any::<bool>(), 1u32..6).prop_map(|(task, rows, n)| Step::Push { task, rows, n }),
        4 => (0u32..9).prop_map(|max| Step::Next { max }),
        3 => (0usize..30).prop_map(|which| Step::Done { which }),
        2 => (0usize..30, 0u64..4).prop_map(|(which, spent)| Step::Settle { which, spent }),
        1 => (0usize..4).prop_map(|task| Step::Cancel { task }),
    ]
}

/// What the tests keep of a task: what it has ready, one entry a draw or row, and how many of its rollouts run.
#[derive(Default)]
struct Expected {
    ready: [VecDeque<(u32, u32)>; 2],
    live: u32,
}

proptest! {
    #[test]
    fn every_draw_starts_once_in_order_and_within_the_limits(
        limit in 1u32..8,
        batch in 1u32..4,
        own in 1u32..6,
        allowed in prop::option::of(0u64..40),
        script in prop::collection::vec(step(), 0..80),
    ) {
        let mut scheduler = Scheduler::new(limit, batch).unwrap();
        let mut ledger = Ledger::new(Bounds::NONE.with(Currency::Calls, allowed));
        let mut tasks: Vec<Expected> = (0..4u32).map(|task| {
            assert_eq!(scheduler.add(1 + task % 3, own), Ok(task));
            Expected::default()
        }).collect();
        let (mut cancelled, mut owners, mut open) = ([false; 4], Vec::<Option<usize>>::new(), Vec::new());
        for (number, step) in (0u32..).zip(script) {
            match step {
                Step::Push { task, rows, n } => {
                    let kind = if rows { WorkKind::Rows } else { WorkKind::Draws };
                    let work = Work { kind, point: number, first: number, n };
                    let outcome = scheduler.push(u32::try_from(task).unwrap(), work, calls(2));
                    prop_assert_eq!(outcome.is_ok(), !cancelled[task]);
                    if outcome.is_ok() {
                        tasks[task].ready[usize::from(rows)].extend((number..number + n).map(|draw| (number, draw)));
                    }
                }
                Step::Next { max } => {
                    let round = scheduler.next(max, &mut ledger);
                    prop_assert!(round.starts.iter().map(|start| start.work.n).sum::<u32>() <= max);
                    for start in round.starts {
                        let (task, work) = (&mut tasks[start.task as usize], start.work);
                        prop_assert!((1..=batch).contains(&work.n));
                        let rows = work.kind == WorkKind::Rows;
                        prop_assert!(rows || task.ready[1].is_empty());
                        let found = (work.first..work.first + work.n).map(|draw| (work.point, draw));
                        prop_assert!(found.eq(task.ready[usize::from(rows)].drain(..work.n as usize)));
                        prop_assert_eq!(start.rollout, (!rows).then_some(owners.len() as u64));
                        if !rows {
                            task.live += work.n;
                            owners.extend((0..work.n).map(|_| Some(start.task as usize)));
                        }
                        open.push(Some((start.reservation, u64::from(work.n) * 2)));
                    }
                    for refused in round.refused {
                        let rows = usize::from(refused.work.kind == WorkKind::Rows);
                        let front = tasks[refused.task as usize].ready[rows].front();
                        prop_assert_eq!(front, Some(&(refused.work.point, refused.work.first)));
                        prop_assert!(allowed.is_some());
                    }
                }
                Step::Done { which } => {
                    let owner = owners.get_mut(which).and_then(Option::take);
                    prop_assert_eq!(scheduler.done(which as u64).is_ok(), owner.is_some());
                    if let Some(task) = owner {
                        tasks[task].live -= 1;
                    }
                }
                Step::Settle { which, spent } => {
                    if let Some((reservation, most)) = open.get_mut(which).and_then(Option::take) {
                        let spent = Amount::ZERO.with(Currency::Calls, spent.min(most));
                        ledger.settle(reservation, &spent).unwrap();
                    }
                }
                Step::Cancel { task } => {
                    let dropped = tasks[task].ready.iter_mut().map(|ready| ready.drain(..).count()).sum::<usize>();
                    prop_assert_eq!(scheduler.cancel(u32::try_from(task).unwrap()), Ok(dropped as u64));
                    cancelled[task] = true;
                }
            }
            for (task, expected) in (0u32..).zip(&tasks) {
                let ready = expected.ready.iter().map(VecDeque::len).sum::<usize>() as u64;
                prop_assert_eq!(scheduler.counts(task), Ok((ready, expected.live)));
                prop_assert!(expected.live <= own);
            }
            let live = tasks.iter().map(|task| task.live as usize).sum::<usize>();
            prop_assert_eq!(scheduler.running() as usize, live);
            prop_assert!(live <= limit as usize);
            let held = open.iter().flatten().map(|(_, most)| most).sum::<u64>();
            prop_assert_eq!(ledger.reserved().get(Currency::Calls), held);
        }
        // With all limits out of the way nothing is left behind.
        for (rollout, owner) in (0..).zip(&owners) {
            prop_assert_eq!(scheduler.done(rollout).is_ok(), owner.is_some());
        }
        for _ in 0..400 {
            for start in scheduler.next(100, &mut free()).starts {
                let rollouts = start.rollout.into_iter().flat_map(|first| first..first + u64::from(start.work.n));
                rollouts.for_each(|rollout| scheduler.done(rollout).unwrap());
            }
        }
        prop_assert!((0..4).all(|task| scheduler.counts(task) == Ok((0, 0))));
    }

    #[test]
    fn tasks_that_are_always_ready_are_served_alike(
        weights in prop::collection::vec(1u32..5, 2..6),
        batch in 1u32..5,
        rounds in prop::collection::vec(1u32..30, 1..40),
    ) {
        let mut scheduler = busy(batch, &weights);
        let mut served = vec![0u32; weights.len()];
        for max in rounds {
            for start in scheduler.next(max, &mut free()).starts {
                served[start.task as usize] += start.work.n;
            }
            for (one, two) in (0..weights.len()).flat_map(|one| (0..one).map(move |two| (one, two))) {
                // Draws a unit of weight differ by at most one batch; the scale of tags rounds by less than a thousandth.
                let share = |task: usize| f64::from(served[task]) / f64::from(weights[task]);
                let bound = f64::from(batch) / f64::from(weights[one].min(weights[two]));
                prop_assert!((share(one) - share(two)).abs() <= bound + 1e-3, "{served:?} for {weights:?}");
            }
        }
    }
}
