//! Opening and closing spans, and who listens.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use candle_core::Device;

use super::log::SpanMemory;
use super::marked::{Edge, MarkedSpans};
use super::{Module, Range, SpanRecord, SpanTree, StepPhase, Work};

/// Recordings under way in this process: while there are none, a span costs one load.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);

/// Index of a span that is not recorded.
const NOT_RECORDED: u32 = u32::MAX;

thread_local! {
    static LISTENER: RefCell<Listener> = const { RefCell::new(Listener::None) };
}

/// Who is told of a thread's spans.
#[derive(Default)]
pub(super) enum Listener {
    #[default]
    None,
    Recording(Box<Joined>),
    /// A run on paper: the spans that are open, the outermost first.
    Paper(Vec<Range>),
}

/// The memory's counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReading {
    pub in_use_bytes: u64,
    /// Highest bytes in use since the last reading.
    pub peak_bytes: u64,
}

/// Readings of a recording beside the clock.
pub struct Probe {
    /// Reads the memory of the device that trains and starts a new peak.
    pub memory: Box<dyn Fn() -> MemoryReading + Send + Sync>,
    /// A device whose work runs on after a call returns: spans have the times at which it comes to them, or wait for it
    /// ([`Recording::wait_in_spans`]).
    pub device: Option<Device>,
}

/// A recording under way; dropping it ends it. The thread that started it is its first.
#[derive(Debug)]
pub struct Recording {
    shared: Arc<Shared>,
    /// Marker that keeps the recording on its thread.
    thread: PhantomData<*const ()>,
}

/// A recording as other threads join it.
#[derive(Clone, Debug)]
pub(crate) struct Handle(Arc<Shared>);

struct Shared {
    started: Instant,
    probe: Probe,
    waits: AtomicBool,
    collected: Mutex<Collected>,
}

/// Spans that the thread which trains has room for from the first step on.
const SPANS_OF_A_STEP: usize = 1 << 12;

#[derive(Debug, Default)]
struct Collected {
    trees: Vec<SpanTree>,
    threads: Vec<String>,
}

/// A thread's part of a recording.
pub(super) struct Joined {
    shared: Arc<Shared>,
    thread: u16,
    spans: Vec<SpanRecord>,
    open: Vec<u32>,
    kept_bytes: u64,
    /// Marks of the first thread, which gives the device its work, where there is one.
    marks: Option<MarkedSpans>,
}

/// An open span; dropping it closes it.
#[must_use = "a span that is dropped at once holds nothing"]
#[derive(Debug)]
pub(crate) struct Span {
    index: u32,
    thread: PhantomData<*const ()>,
}

impl Recording {
    /// Records the spans of this thread from now on. There can be one in a thread: one that is under way ends.
    pub fn start(probe: Probe) -> Self {
        let shared = Arc::new(Shared {
            started: Instant::now(),
            probe,
            waits: AtomicBool::new(false),
            collected: Mutex::default(),
        });
        // Reading starts a new peak.
        let _ = (shared.probe.memory)();
        let mut joined = Joined::new(Arc::clone(&shared), "main", SPANS_OF_A_STEP);
        joined.marks = shared.probe.device.clone().map(MarkedSpans::new);
        listen(Listener::Recording(Box::new(joined)));
        ACTIVE.fetch_add(1, Relaxed);
        Self {
            shared,
            thread: PhantomData,
        }
    }

    /// The trees that have been closed since the last call, of all threads.
    pub fn take(&self) -> Vec<SpanTree> {
        std::mem::take(&mut self.shared.collected().trees)
    }

    /// Sets whether each span waits for the device as it ends, from the next step on. Where spans wait, all that runs
    /// on the device between a span's beginning and its end was launched in it; it runs one op at a time, and takes
    /// longer.
    pub fn wait_in_spans(&self, wait: bool) {
        self.shared.waits.store(wait, Relaxed);
    }

    /// Records nothing of this thread, whose spans then wait for nothing, until the result is dropped.
    pub fn pause(&self) -> Pause {
        Pause {
            listener: listen(Listener::None),
            thread: PhantomData,
        }
    }

    /// Names of the threads that took part, by their number.
    pub fn threads(&self) -> Vec<String> {
        self.shared.collected().threads.clone()
    }

    /// Nanoseconds since the beginning of the recording, as spans count them.
    pub fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }

    /// Moment when the recording began.
    pub fn started(&self) -> Instant {
        self.shared.started
    }
}

/// A recording that does not listen; dropping this makes it continue.
#[must_use = "a pause that is dropped at once is none"]
pub struct Pause {
    listener: Listener,
    thread: PhantomData<*const ()>,
}

impl Drop for Pause {
    fn drop(&mut self) {
        listen(std::mem::take(&mut self.listener));
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        ACTIVE.fetch_sub(1, Relaxed);
        listen(Listener::None);
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Shared")
            .field("started", &self.started)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn collected(&self) -> std::sync::MutexGuard<'_, Collected> {
        self.collected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handle {
    /// Makes the current thread take part, under `name`.
    pub(crate) fn join(self, name: &str) {
        // What waits for its step is counted with the step's memory: it must not be the room of the spans to come.
        let joined = Joined::new(self.0, name, 1);
        listen(Listener::Recording(Box::new(joined)));
    }
}

/// Replaces who is told of this thread's spans; returns who was.
fn listen(next: Listener) -> Listener {
    LISTENER.replace(next)
}

/// Begins a run on paper, and listens as [`listen`] does.
pub(super) fn begin_paper() -> Listener {
    ACTIVE.fetch_add(1, Relaxed);
    listen(Listener::Paper(Vec::with_capacity(16)))
}

/// Ends a run on paper; whoever was told of spans before is told of them again.
pub(super) fn end_paper(before: Listener) {
    ACTIVE.fetch_sub(1, Relaxed);
    listen(before);
}

/// The innermost of the open spans that `of` takes, where a run on paper is under way.
pub(super) fn innermost_on_paper<T>(of: impl FnMut(&Range) -> Option<T>) -> Option<T> {
    LISTENER.with_borrow(|listener| match listener {
        Listener::Paper(open) => open.iter().rev().find_map(of),
        Listener::None | Listener::Recording(_) => None,
    })
}

/// The recording that this thread takes part in.
pub(crate) fn handle() -> Option<Handle> {
    if ACTIVE.load(Relaxed) == 0 {
        return None;
    }
    LISTENER.with_borrow(|listener| match listener {
        Listener::Recording(joined) => Some(Handle(Arc::clone(&joined.shared))),
        Listener::None | Listener::Paper(_) => None,
    })
}

/// Opens a phase.
pub(crate) fn phase(phase: StepPhase) -> Span {
    open(Range::Phase(phase), Work::default)
}

/// Opens a decoder layer.
pub(crate) fn layer(index: usize) -> Span {
    open(Range::Layer(index as u16), Work::default)
}

/// Opens a module.
pub(crate) fn module(module: Module) -> Span {
    open(Range::Module(module), Work::default)
}

/// Opens an op; `work` is asked only where somebody records.
pub(crate) fn op(name: &'static str, work: impl FnOnce() -> Work) -> Span {
    open(Range::Op(name), work)
}

/// Notes that so many bytes are kept for the backward pass.
pub(crate) fn keep(bytes: impl FnOnce() -> usize) {
    change_kept(|kept| kept + bytes() as u64);
}

/// Notes that so many bytes are no longer kept.
pub(crate) fn release(bytes: impl FnOnce() -> usize) {
    change_kept(|kept| kept.saturating_sub(bytes() as u64));
}

fn change_kept(change: impl FnOnce(u64) -> u64) {
    if ACTIVE.load(Relaxed) == 0 {
        return;
    }
    LISTENER.with_borrow_mut(|listener| {
        if let Listener::Recording(joined) = listener {
            joined.kept_bytes = change(joined.kept_bytes);
        }
    });
}

fn open(range: Range, work: impl FnOnce() -> Work) -> Span {
    let index = match ACTIVE.load(Relaxed) {
        0 => NOT_RECORDED,
        _ => LISTENER.with_borrow_mut(|listener| match listener {
            Listener::Recording(joined) => joined.open(range, work()),
            Listener::Paper(open) => {
                open.push(range);
                (open.len() - 1) as u32
            }
            Listener::None => NOT_RECORDED,
        }),
    };
    Span {
        index,
        thread: PhantomData,
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if self.index != NOT_RECORDED {
            // The recording may have ended with the span still open.
            LISTENER.with_borrow_mut(|listener| match listener {
                Listener::Recording(joined) => joined.close(self.index),
                Listener::Paper(open) => open.truncate(self.index as usize),
                Listener::None => {}
            });
        }
    }
}

impl Joined {
    fn new(shared: Arc<Shared>, name: &str, spans: usize) -> Self {
        let mut collected = shared.collected();
        let thread = collected.threads.len() as u16;
        collected.threads.push(name.to_owned());
        drop(collected);
        Self {
            shared,
            thread,
            spans: Vec::with_capacity(spans),
            open: Vec::with_capacity(16),
            kept_bytes: 0,
            marks: None,
        }
    }

    fn open(&mut self, range: Range, work: Work) -> u32 {
        let reading = self.read_memory();
        let index = self.spans.len() as u32;
        self.spans.push(SpanRecord {
            range,
            parent: self.open.last().copied(),
            depth: self.open.len() as u16,
            start_ns: 0,
            end_ns: 0,
            work,
            memory: SpanMemory {
                start_bytes: reading.in_use_bytes,
                start_kept_bytes: self.kept_bytes,
                ..SpanMemory::default()
            },
        });
        self.open.push(index);
        self.mark(index, Edge::Start);
        // Last of all, so that the span does not hold what opening it cost.
        self.spans[index as usize].start_ns = self.shared.now_ns();
        index
    }

    fn close(&mut self, index: u32) {
        self.mark(index, Edge::End);
        let now = self.shared.now_ns();
        let reading = self.read_memory();
        // Spans close in the order of a stack, but for a panic that unwinds past a leaked one.
        while let Some(top) = self.open.pop() {
            let span = &mut self.spans[top as usize];
            span.end_ns = now;
            span.memory.end_bytes = reading.in_use_bytes;
            span.memory.end_kept_bytes = self.kept_bytes;
            if top == index {
                break;
            }
        }
        if self.open.is_empty() {
            let capacity = self.spans.capacity();
            let mut spans = std::mem::replace(&mut self.spans, Vec::with_capacity(capacity));
            if let (Some(marks), Some(root)) = (&mut self.marks, spans.first()) {
                let start_ns = root.start_ns;
                told(marks.resolve(&mut spans, start_ns));
            }
            let thread = self.thread;
            self.shared.collected().trees.push(SpanTree { thread, spans });
        }
    }

    /// Marks one end of a span in the device's queue, or waits for the device there. What fails leaves the host's times.
    fn mark(&mut self, index: u32, edge: Edge) {
        let Some(marks) = &mut self.marks else { return };
        if !self.shared.waits.load(Relaxed) {
            told(marks.set(index, self.spans[index as usize].range, edge));
        } else if edge == Edge::End {
            let device = self.shared.probe.device.as_ref();
            told(device.map_or(Ok(()), Device::synchronize));
        }
    }

    /// Reads the memory; the peak since the last reading belongs to the innermost open span. Only the first thread
    /// reads, since a reading starts a new peak.
    fn read_memory(&mut self) -> MemoryReading {
        if self.thread != 0 {
            return MemoryReading::default();
        }
        let reading = (self.shared.probe.memory)();
        if let Some(innermost) = self.open.last() {
            let memory = &mut self.spans[*innermost as usize].memory;
            if reading.peak_bytes > memory.own_peak_bytes {
                memory.own_peak_bytes = reading.peak_bytes;
                memory.peak_kept_bytes = self.kept_bytes;
            }
        }
        reading
    }
}

fn told(timed: candle_core::Result<()>) {
    if let Err(error) = timed {
        tracing::warn!(%error, "a span does not hold the device's work");
    }
}

#[cfg(test)]
mod tests;
