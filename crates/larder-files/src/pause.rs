//! Pause points of long work on a disk: between two files, or two entries of a directory.
//!
//! The work calls [`point`], and knows nothing else. Its caller decides what a pause is, with [`at_points`]: to give way
//! to other work, for instance. Without such a caller a point does nothing.
//!
//! Invariant: a point holds no lock and leaves the disk in a state that a crash could leave, too, since the pause may
//! last.

use std::{cell::RefCell, rc::Rc};

type Pause = Rc<dyn Fn()>;

thread_local! {
    /// What this thread does at each point.
    static PAUSE: RefCell<Option<Pause>> = const { RefCell::new(None) };
}

/// Runs this thread's pause, if it has one.
pub fn point() {
    let pause = PAUSE.with_borrow(Clone::clone);
    if let Some(pause) = pause {
        pause();
    }
}

/// Runs `work`, and `pause` at each of its points.
pub fn at_points<T>(pause: impl Fn() + 'static, work: impl FnOnce() -> T) -> T {
    let before = PAUSE.replace(Some(Rc::new(pause)));
    let _restored = Restored(before);
    work()
}

/// Sets the earlier pause again, also when the work panics.
struct Restored(Option<Pause>);

impl Drop for Restored {
    fn drop(&mut self) {
        PAUSE.set(self.0.take());
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, panic::catch_unwind};

    use super::*;

    #[test]
    fn points_pause_only_the_work_of_their_caller() {
        let pauses = Rc::new(Cell::new(0));
        let counted = Rc::clone(&pauses);
        let work = || {
            point();
            at_points(|| {}, point);
            point();
            7
        };
        assert_eq!(at_points(move || counted.set(counted.get() + 1), work), 7);
        point();
        assert_eq!(pauses.get(), 2);
    }

    #[test]
    fn work_that_panics_leaves_no_pause_behind() {
        let work = || at_points(|| panic!("a pause"), point);
        assert!(catch_unwind(work).is_err());
        point();
    }
}
