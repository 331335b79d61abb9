//! The account of a run on paper: what was allocated and freed, in order, and what for; and what was computed.
//!
//! A run is cut into segments: a layer's forward pass, the loss head. Within one each allocation has one category. It is scratch, unless the
//! op that allocates says otherwise, or somebody keeps it for the backward pass; then it was kept from its beginning on, or from the
//! segment's where it is older.
//!
//! An op belongs to the innermost module whose span is open, and runs in the innermost phase ([`crate::span`]).

use std::cell::RefCell;
use std::rc::Rc;

use crate::span;
use crate::span::{Module, StepPhase};
use peft_tune_core::plan::ThreadScratch;
use peft_tune_core::predict::{ExpertLoad, Host, MemoryCategory, Op, Stage, Trace, Work};

/// The account, the machine that the run would be on, and what its routers would choose.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    host: Host,
    load: ExpertLoad,
    account: Rc<RefCell<Account>>,
}

#[derive(Debug, Default)]
struct Account {
    entries: Vec<Entry>,
    /// First of the entries that this segment has made.
    first_own: usize,
    /// Older entries that this segment keeps.
    kept: Vec<usize>,
    events: Vec<Event>,
    ops: Vec<Op>,
    /// Scratch that threads keep after the segment's ops.
    scratch: ThreadScratch,
}

/// An allocation.
#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    category: MemoryCategory,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Hold(usize),
    Free(usize),
    Rename(usize, MemoryCategory),
    /// Memory that an op takes and frees.
    Spike(MemoryCategory, u64),
}

impl Ledger {
    /// An empty account of a run on `host`.
    pub(crate) fn new(host: Host) -> Self {
        Self {
            host,
            load: ExpertLoad::default(),
            account: Rc::default(),
        }
    }

    /// Returns the ledger for a run whose tokens lie on experts as `load` says.
    pub(crate) fn with_load(self, load: ExpertLoad) -> Self {
        Self { load, ..self }
    }

    /// The machine that the run would be on.
    pub(crate) fn host(&self) -> Host {
        self.host
    }

    /// How tokens lie on the experts of a mixture.
    pub(crate) fn load(&self) -> ExpertLoad {
        self.load
    }

    /// Allocates `bytes` for as long as `during` runs.
    pub(crate) fn holding<T>(&self, category: MemoryCategory, bytes: u64, during: impl FnOnce() -> T) -> T {
        let entry = self.hold(category, bytes);
        let outcome = during();
        self.free(entry);
        outcome
    }

    /// Allocates and frees at once.
    pub(crate) fn spike(&self, category: MemoryCategory, bytes: u64) {
        self.account.borrow_mut().events.push(Event::Spike(category, bytes));
    }

    /// Lets `ask` tell what threads keep after an op.
    pub(crate) fn threads(&self, ask: impl FnOnce(&mut ThreadScratch)) {
        ask(&mut self.account.borrow_mut().scratch);
    }

    /// Notes that an op computes `work`, so many times.
    pub(crate) fn run(&self, work: Work, times: f64) {
        let stage = match span::phase_around() {
            Some(StepPhase::Backward) => Stage::Backward,
            Some(StepPhase::Recompute) => Stage::Recompute,
            _ => Stage::Forward,
        };
        self.account.borrow_mut().ops.push(Op { stage, work, times });
    }

    /// The module that the next op belongs to.
    ///
    /// # Errors
    /// An op outside of all modules.
    pub(crate) fn module(&self) -> candle_core::Result<Module> {
        let module = span::module_around();
        module.ok_or_else(|| candle_core::Error::Msg("on paper: a product outside of all modules".to_owned()))
    }

    /// Keeps an allocation for the backward pass.
    pub(super) fn keep_entry(&self, entry: usize) {
        let mut account = self.account.borrow_mut();
        match entry < account.first_own {
            true => account.kept.push(entry),
            false => account.entries[entry].category = MemoryCategory::SavedActivations,
        }
    }

    /// Calls an allocation scratch from now on.
    pub(super) fn let_go_entry(&self, entry: usize) {
        let event = Event::Rename(entry, MemoryCategory::Scratch);
        self.account.borrow_mut().events.push(event);
    }

    /// Begins a segment; what came before is not in it.
    pub(crate) fn begin(&self) {
        self.segment(Stage::Forward);
    }

    /// Ends a segment, and returns it.
    pub(crate) fn segment(&self, stage: Stage) -> Trace {
        let mut account = self.account.borrow_mut();
        let Account {
            entries,
            first_own,
            kept,
            events,
            ops,
            scratch,
        } = &mut *account;
        let mut trace = Trace::new(stage);
        trace.ops = std::mem::take(ops);
        let rename = |trace: &mut Trace, entry: &mut Entry, to: MemoryCategory| {
            trace.rename(entry.category, to, entry.bytes);
            entry.category = to;
        };
        for entry in kept.drain(..) {
            rename(&mut trace, &mut entries[entry], MemoryCategory::SavedActivations);
        }
        for event in events.drain(..) {
            match event {
                Event::Hold(entry) => trace.hold(entries[entry].category, entries[entry].bytes),
                Event::Free(entry) => trace.free(entries[entry].category, entries[entry].bytes),
                Event::Rename(entry, to) => rename(&mut trace, &mut entries[entry], to),
                Event::Spike(category, bytes) => trace.spike(category, bytes),
            }
        }
        *first_own = entries.len();
        trace.scratch = std::mem::take(scratch);
        trace
    }

    pub(super) fn hold(&self, category: MemoryCategory, bytes: u64) -> usize {
        let mut account = self.account.borrow_mut();
        let entry = account.entries.len();
        account.entries.push(Entry { bytes, category });
        account.events.push(Event::Hold(entry));
        entry
    }

    pub(super) fn free(&self, entry: usize) {
        self.account.borrow_mut().events.push(Event::Free(entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use candle_core::DType;
    use peft_tune_core::predict::Pass;

    use crate::tensor::Tensor;

    use MemoryCategory::{SavedActivations, Scratch};

    fn tensor(ledger: &Ledger, shape: &[usize]) -> Tensor {
        ledger.tensor(shape, DType::F32).into()
    }

    #[test]
    fn bytes_come_back_with_the_last_view() {
        let ledger = Ledger::new(Host::GPU);
        let x = tensor(&ledger, &[4, 6]);
        let columns = x.narrow(1, 2, 3).unwrap();
        drop(x);
        let _copy = columns.contiguous().unwrap();
        drop(columns);
        let mut expected = Trace::new(Stage::Forward);
        expected.hold(Scratch, 96);
        expected.hold(Scratch, 48);
        expected.free(Scratch, 96);
        expected.ops.push(Op {
            stage: Stage::Forward,
            work: Work::Pass {
                pass: Pass::Copy,
                elements: 12.0,
            },
            times: 1.0,
        });
        assert_eq!(ledger.segment(Stage::Forward), expected);
    }

    #[test]
    fn what_is_kept_was_kept_from_its_beginning_on_or_from_that_of_the_segment() {
        let ledger = Ledger::new(Host::GPU);
        let x = tensor(&ledger, &[2]);
        ledger.begin();
        let y = tensor(&ledger, &[3]);
        ledger.keep([&x, &y]);
        let mut expected = Trace::new(Stage::Backward);
        expected.rename(Scratch, SavedActivations, 8);
        expected.hold(SavedActivations, 12);
        assert_eq!(ledger.segment(Stage::Backward), expected);
    }
}
