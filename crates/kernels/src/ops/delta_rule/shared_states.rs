//! States of documents that several threads write.

/// The states of all documents, whose parts go to different threads.
pub(super) struct SharedStates(*mut f32);

// SAFETY: every part is reached from one thread.
unsafe impl Sync for SharedStates {}

impl SharedStates {
    pub(super) fn new(states: &mut [f32]) -> Self {
        Self(states.as_mut_ptr())
    }

    /// # Safety
    /// The part lies within the states, and nothing else reaches it while it is borrowed.
    #[expect(clippy::mut_from_ref, reason = "the caller promises that the parts are disjoint")]
    pub(super) unsafe fn of(&self, number: usize, size: usize) -> &mut [f32] {
        // SAFETY: the caller's promise is the same.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(number * size), size) }
    }
}
