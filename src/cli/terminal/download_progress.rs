//! The progress bar of a model download.

use indicatif::{ProgressBar, ProgressStyle};

use super::bar_target;
use peft_tune_engine::hub::DownloadObserver;

/// Draws one bar a file on standard error, where that is a terminal.
#[derive(Default)]
pub(in crate::cli) struct DownloadProgress {
    bar: Option<ProgressBar>,
}

impl DownloadObserver for DownloadProgress {
    fn started(&mut self, file: &str, bytes: u64) {
        let bar = ProgressBar::with_draw_target(Some(bytes), bar_target::target());
        if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:28}] {bytes}/{total_bytes}, {eta} left") {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(file.to_owned());
        self.bar = Some(bar);
    }

    fn received(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    fn finished(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
