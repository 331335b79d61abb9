//! Assignment of slots to the trials that wait.

use super::WorkerPool;
use crate::worker::{Placement, Task, TrialRequest};

/// A trial that waits until as many slots are free as it takes, or until it can train beside others.
pub(super) struct Waiting {
    pub(super) request: TrialRequest,
    /// Trials that came later and were seated before this one.
    pub(super) passed: usize,
}

impl WorkerPool {
    /// Gives trials that wait their slots, in the order in which they came: one of several devices would otherwise wait
    /// for as long as others come. A trial that trains beside others takes nobody's slot and may pass some of those
    /// that wait for one.
    pub(super) fn seat_waiting(&mut self) {
        while self.seat_first() || self.seat_beside() {}
    }

    /// Seats the first trial that waits on free slots.
    fn seat_first(&mut self) -> bool {
        let Some(Waiting { request, .. }) = self.queue.front() else {
            return false;
        };
        let wanted = self.places_of(request);
        // The first of those that suit best, so that a study that needs one worker starts one.
        let mut free: Vec<usize> = (0..self.slots.len())
            .filter(|slot| self.slots[*slot].is_free())
            .collect();
        free.sort_by_key(|slot| std::cmp::Reverse(self.slots[*slot].suits(request)));
        if free.len() < wanted {
            return false;
        }
        let Some(Waiting { mut request, .. }) = self.queue.pop_front() else {
            return false;
        };
        // The others are those whose processes are missed least.
        let (leader, others) = (free[0], &free[free.len() + 1 - wanted..]);
        if wanted > 1 {
            let taken = [leader].into_iter().chain(others.iter().copied());
            let placements: Vec<&Placement> = taken.map(|slot| &self.slots[slot].placement).collect();
            request.assignments = Placement::assignments(&placements, devices_of(&request));
            others.iter().for_each(|slot| self.slots[*slot].lend_to(leader));
        }
        self.slots[leader].take(request);
        true
    }

    /// Seats the first trial that can train beside others. A group that takes whatever fits could go on for ever, so
    /// that no trial is passed by more than train together at most.
    fn seat_beside(&mut self) -> bool {
        let together = &self.settings.together;
        let patient = self.queue.iter().take_while(|waiting| waiting.passed < together.most);
        let within_reach = (patient.count() + 1).min(self.queue.len());
        let seat = (0..within_reach).find_map(|at| {
            let request = &self.queue[at].request;
            let mut slots = self.slots.iter();
            Some((at, slots.position(|slot| slot.takes_beside(request, together))?))
        });
        let Some((at, slot)) = seat else {
            return false;
        };
        let Some(Waiting { request, .. }) = self.queue.remove(at) else {
            return false;
        };
        self.queue.iter_mut().take(at).for_each(|waiting| waiting.passed += 1);
        self.slots[slot].take(request);
        true
    }

    /// Number of slots that a trial takes. Where something else starts the workers, that has given each what it may
    /// need.
    fn places_of(&self, request: &TrialRequest) -> usize {
        match self.settings.launcher.is_local() {
            true => devices_of(request).clamp(1, self.slots.len()),
            false => 1,
        }
    }
}

/// Devices that a trial computes on.
fn devices_of(request: &TrialRequest) -> usize {
    match &request.task {
        Task::Recipe { recipe, .. } => recipe.batch.devices,
        Task::Params { .. } => 1,
    }
}
