//! Gather and scatter: only the rows of active lanes are worked on, and what comes back says which rows are real.
//!
//! Nothing here reads the row of a lane that is not in the plan, and no row is ever filled with another's: the fill is
//! explicit and the mask travels beside it.

use super::zeros;
use crate::error::{Error, Result, length};

/// Some of the lanes of a batch, in order. It does not change when lanes finish later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LanePlan {
    lanes: Vec<u32>,
    size: usize,
}

impl LanePlan {
    /// A plan for lanes that ascend and are below `size`.
    pub(super) const fn of(lanes: Vec<u32>, size: usize) -> Self {
        Self { lanes, size }
    }

    /// The lanes, ascending.
    #[must_use]
    pub fn lanes(&self) -> &[u32] {
        &self.lanes
    }

    /// How many lanes the batch has, in the plan or not.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// For each lane of the batch 1 if it is in the plan, else 0.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no memory for that.
    pub fn valid(&self) -> Result<Vec<u8>> {
        let mut valid = zeros(self.size)?;
        self.lanes.iter().for_each(|&lane| valid[lane as usize] = 1);
        Ok(valid)
    }

    /// Copy the rows of the plan's lanes out of the rows of all lanes.
    ///
    /// Rows are runs of equally many cells; how many follows from the lengths. `read` copies one cell.
    ///
    /// # Errors
    /// [`Error::Value`] if `rows` is not a whole number of cells a lane, [`Error::Length`] if `out` is not as long as the
    /// plan's rows.
    pub fn gather<S, T>(&self, rows: &[S], out: &mut [T], read: impl Fn(&S) -> T) -> Result<()> {
        let width = self.width(rows.len())?;
        length("cells to gather into", self.lanes.len() * width, out.len())?;
        for (slot, &lane) in out.chunks_exact_mut(width.max(1)).zip(&self.lanes) {
            copy(slot, &rows[lane as usize * width..][..width], &read);
        }
        Ok(())
    }

    /// Put the rows of the plan's lanes back into their places among all lanes, and `fill` into every cell of the others,
    /// or leave them as they are in `out`.
    ///
    /// # Errors
    /// [`Error::Value`] if `out` is not a whole number of cells a lane, [`Error::Length`] if `rows` does not have as many
    /// cells as the plan's rows.
    pub fn scatter<S, T: Copy>(
        &self,
        rows: &[S],
        fill: Option<T>,
        out: &mut [T],
        read: impl Fn(&S) -> T,
    ) -> Result<()> {
        let width = self.width(out.len())?;
        length("cells to scatter", self.lanes.len() * width, rows.len())?;
        if let Some(fill) = fill {
            out.fill(fill);
        }
        for (&lane, row) in self.lanes.iter().zip(rows.chunks_exact(width.max(1))) {
            copy(&mut out[lane as usize * width..][..width], row, &read);
        }
        Ok(())
    }

    /// Cells a lane when all lanes together have `cells`.
    fn width(&self, cells: usize) -> Result<usize> {
        if cells.checked_rem(self.size).unwrap_or(cells) == 0 {
            return Ok(cells.checked_div(self.size).unwrap_or(0));
        }
        let value = format!("{cells} cells for {} lanes", self.size);
        Err(Error::conflict(value, "equally many for each lane"))
    }
}

fn copy<S, T>(slot: &mut [T], row: &[S], read: impl Fn(&S) -> T) {
    // A row is often one cell, for which a loop takes twice as long.
    if let ([to], [from]) = (&mut *slot, row) {
        *to = read(from);
        return;
    }
    for (to, from) in slot.iter_mut().zip(row) {
        *to = read(from);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::LanePlan;
    use crate::lanes::Lanes;

    fn plan(lanes: &[u32], size: usize) -> LanePlan {
        LanePlan::of(lanes.to_vec(), size)
    }

    #[test]
    fn rows_come_back_to_their_lanes_with_a_mask_beside_them() {
        let plan = plan(&[1, 3], 4);
        let mut some = [0; 4];
        plan.gather(&[10, 11, 20, 21, 30, 31, 40, 41], &mut some, |cell| *cell).unwrap();
        assert_eq!(some, [20, 21, 40, 41]);
        let mut all = [9; 8];
        plan.scatter(&some, None, &mut all, |cell| *cell).unwrap();
        assert_eq!((all, plan.valid().unwrap()), ([9, 9, 20, 21, 9, 9, 40, 41], vec![0, 1, 0, 1]));
        plan.scatter(&some, Some(-1), &mut all, |cell| *cell).unwrap();
        assert_eq!(all, [-1, -1, 20, 21, -1, -1, 40, 41]);
    }

    #[test]
    fn a_row_that_is_not_in_the_plan_is_never_read() {
        let mut some = [0; 4];
        let rows = [Some(1), Some(2), None, None, Some(3), Some(4)];
        plan(&[0, 2], 3).gather(&rows, &mut some, |cell| cell.unwrap()).unwrap();
        assert_eq!(some, [1, 2, 3, 4]);
    }

    #[test]
    fn a_plan_keeps_its_lanes_when_they_finish() {
        let mut lanes = Lanes::new(3).unwrap();
        let before = lanes.plan().unwrap();
        lanes.finish(1).unwrap();
        assert_eq!((before.lanes(), lanes.plan().unwrap().lanes(), before.size()), (&[0, 1, 2][..], &[0, 2][..], 3));
    }

    #[test]
    fn no_lanes_are_no_rows() {
        let none = plan(&[], 2);
        none.gather(&[1, 2, 3, 4], &mut [], |cell| *cell).unwrap();
        let mut all = [0; 4];
        none.scatter(&[], Some(7), &mut all, |cell: &i32| *cell).unwrap();
        assert_eq!((all, none.valid().unwrap()), ([7; 4], vec![0, 0]));
        plan(&[], 0).gather(&[0u8; 0], &mut [], |cell| *cell).unwrap();
    }

    #[test]
    fn rows_that_do_not_fit_are_refused() {
        let plan = plan(&[0, 2], 3);
        let text = plan.gather(&[0; 4], &mut [0; 2], |cell| *cell).unwrap_err().to_string();
        assert_eq!(text, "4 cells for 3 lanes; it must be equally many for each lane");
        let text = plan.gather(&[0; 6], &mut [0; 2], |cell| *cell).unwrap_err().to_string();
        assert_eq!(text, "2 cells to gather into where 4 are needed");
        let text = plan.scatter(&[0; 5], Some(0), &mut [0; 6], |cell| *cell).unwrap_err().to_string();
        assert_eq!(text, "5 cells to scatter where 4 are needed");
        assert!(plan.scatter(&[0; 4], Some(0), &mut [0; 5], |cell| *cell).is_err());
    }
}
