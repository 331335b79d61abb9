//! Kernels of a profiled training's steps, as CUPTI records them.

use super::kernels::{Activity, Collector, CuptiError, DriverCalls, GpuTimeline};
use super::libraries::LibraryFolders;
use super::profile_error::ProfileError;
use super::session::Session;
use crate::span::Recording;

/// Activities of a GPU that was watched.
pub(super) struct Watched {
    pub timeline: GpuTimeline,
    /// Activities in the steps whose spans are kept.
    pub spanned: Vec<Activity>,
}

/// CUPTI's records by the recording's clock.
struct GpuWatch {
    collector: Collector,
    /// CUPTI's clock at the recording's beginning.
    origin_ns: u64,
}

impl GpuWatch {
    fn start(recording: &Recording) -> Result<Self, CuptiError> {
        let collector = Collector::start(&LibraryFolders::of_environment())?;
        // The middle of two readings around CUPTI's, which takes a microsecond.
        let before = recording.now_ns();
        let now = collector.now_ns()?;
        let elapsed = before.midpoint(recording.now_ns());
        Ok(Self {
            origin_ns: now.saturating_sub(elapsed),
            collector,
        })
    }

    fn take(&self) -> Option<Vec<Activity>> {
        let taken = self.collector.take(self.origin_ns);
        taken
            .inspect_err(|error| tracing::warn!(%error, "no kernels in the profile"))
            .ok()
    }
}

impl Session {
    /// Runs some steps more, whose kernels CUPTI records: first with spans that wait, which tell which op launched
    /// what, then running freely. `None` where there is no GPU or no CUPTI.
    pub(super) fn watch_gpu(&mut self) -> Result<Option<Watched>, ProfileError> {
        if !self.trainer.base().device().is_cuda() {
            return Ok(None);
        }
        match GpuWatch::start(&self.recording) {
            Ok(watch) => self.watch_with(&watch),
            Err(error) => {
                tracing::warn!(%error, "no kernels in the profile");
                Ok(None)
            }
        }
    }

    fn watch_with(&mut self, watch: &GpuWatch) -> Result<Option<Watched>, ProfileError> {
        let steps = self.kept_steps.max(1);
        self.recording.wait_in_spans(true);
        for _ in 0..steps {
            self.step()?;
            for tree in self.recording.take() {
                self.keep(tree);
            }
        }
        self.recording.wait_in_spans(false);
        let spanned = watch.take();
        let start_ns = self.recording.now_ns();
        let pause = self.recording.pause();
        (0..steps).try_for_each(|_| self.step().map(drop))?;
        drop(pause);
        let until = (start_ns, self.recording.now_ns());
        let free = watch.take();
        let calls = self.count_calls(watch, steps)?;
        Ok(spanned.zip(free).map(|(spanned, free)| Watched {
            timeline: GpuTimeline {
                calls,
                ..GpuTimeline::new(&free, until, steps as u64, &spanned, &self.kept)
            },
            spanned,
        }))
    }

    /// Calls of the driver that the host makes in a step, from some steps more: counting takes time.
    fn count_calls(&mut self, watch: &GpuWatch, steps: usize) -> Result<Option<DriverCalls>, ProfileError> {
        let told = |error: &CuptiError| tracing::warn!(%error, "the driver's calls are not counted");
        let _pause = self.recording.pause();
        if watch.collector.count_calls().inspect_err(told).is_err() {
            return Ok(None);
        }
        let taken = (0..steps).try_for_each(|_| self.step().map(drop));
        let calls = watch.collector.take_calls().inspect_err(told).ok();
        taken?;
        Ok(calls.map(|calls| DriverCalls::new(&calls, steps as u64)))
    }
}
