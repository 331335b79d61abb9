//! `peft-tune watch`: a command runs, is sampled, and is reported on.

use std::fs::File;
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use super::against;
use super::args::Args;
use super::event_files::{EventFiles, is_event_file};
use super::evidence::{Evidence, RunLimits};
use super::launched::{Ending, Launched};
use super::log_file::LogFile;
use super::output_lines::OutputLines;
use super::packages::versions;
use super::progress::Progress;
use super::report::{RunReport, StepsSeen, asked_step};
use super::report_text;
use super::sample::Span;
use super::sampler::RunSampler;
use super::settings::Settings;
use super::status_line::StatusLine;
use super::status_text;
use super::trace::{ExpectedTrace, TraceReport};
use crate::cli::CliError;
use crate::cli::machine::record::gpu_models;
use crate::cli::terminal::output::{messages_width, tell, terminal_width, write_result};
use crate::cli::whole_output::check_place;
use crate::report::{bytes, duration, grouped};
use crate::worker::{OomKills, oom_kills};

/// Log that LLaMA-Factory writes into the folder of a training.
const TRAINER_LOG: &str = "trainer_log.jsonl";
/// Bytes of output that are read at once.
const BLOCK: usize = 1 << 16;

/// Runs the command, watches it, and reports. The command's exit code is this program's.
pub(in crate::cli) fn run(args: &Args) -> Result<(), CliError> {
    if let (true, Some(path)) = (args.command.is_empty(), &args.trace) {
        if args.asks_for_a_run() {
            return Err(CliError::bad(
                "`--trace` without a command shows the trace alone: name the command behind `--`, or leave the other options out",
            ));
        }
        return write_result(&TraceReport::read(path)?.text(terminal_width()));
    }
    let then = args.against.as_deref().map(RunReport::read).transpose()?;
    if let Some(path) = &args.report {
        check_place("--report", path)?;
    }
    let settings = Settings::of(args)?;
    announce(&settings);
    let kills = oom_kills();
    let trace = args.trace.as_deref().map(ExpectedTrace::at);
    let mut watching = Watching::start(args, &settings)?;
    let ending = watching.follow(args, &settings);
    let evidence = watching.evidence(&settings, ending, kills);
    let program = args.command.first().map(|word| word.to_string_lossy().into_owned());
    let packages = versions(&program.unwrap_or_default());
    let mut report = RunReport::new(&args.command, &settings, &evidence, watching.seen(&settings), packages);
    if let Some(trace) = trace {
        report.add_trace(trace.read());
    }
    tell(report_text::text_of(&report, messages_width()).trim_end());
    if let Some(then) = then {
        tell(against::text_of(&report, &then, messages_width()).trim_end());
    }
    if let Some(path) = &args.report
        && let Err(error) = report.write(path)
    {
        // The exit code stays the command's.
        tell(format_args!("error: {}", error.shown()));
    }
    match ending.code() {
        0 => Ok(()),
        code => Err(CliError::CommandEnded { code }),
    }
}

/// Says what is expected, and what is not known.
fn announce(settings: &Settings) {
    for reason in &settings.unknown {
        tell(format_args!("warning: {reason}"));
    }
    let Some(expectation) = &settings.expectation else {
        return;
    };
    let prediction = &expectation.prediction;
    let speed = prediction.step_s().zip(prediction.tokens_per_s);
    let speed = speed
        .map(|(step_s, tokens_per_s)| format!("{} a step, {} tokens/s, ", duration(step_s), grouped(tokens_per_s)));
    tell(format_args!(
        "expected: {}a peak of {} ({}; {})",
        speed.unwrap_or_default(),
        bytes(prediction.process_bytes as f64),
        expectation.model,
        expectation.setting_text
    ));
}

/// A command that is watched.
struct Watching {
    began: Instant,
    launched: Launched,
    progress: Arc<Mutex<Progress>>,
    readers: Vec<JoinHandle<()>>,
    sampler: RunSampler,
    logs: Vec<LogFile>,
    event_files: EventFiles,
    /// Parts of the output that are not read, and why.
    unseen: Vec<String>,
}

impl Watching {
    fn start(args: &Args, settings: &Settings) -> Result<Self, CliError> {
        let event_files = EventFiles::follow(args.log.clone(), settings.output.clone());
        // A folder that the training has yet to make looks like a file of lines, so both are looked for there.
        let named = args.log.clone().filter(|path| !is_event_file(path));
        let usual = settings.output.as_ref().map(|folder| folder.join(TRAINER_LOG));
        let logs = named.into_iter().chain(usual).map(LogFile::follow).collect();
        let began = Instant::now();
        let mut launched = Launched::start(&args.command, args.untouched)?;
        let progress = Arc::new(Mutex::new(Progress::default()));
        let (mut readers, mut unseen) = (Vec::new(), Vec::new());
        for copy in launched.take_copies() {
            let progress = Arc::clone(&progress);
            let read = move || read_copy(copy, &progress, began);
            match std::thread::Builder::new().name("output".to_owned()).spawn(read) {
                Ok(reader) => readers.push(reader),
                Err(error) => unseen.push(format!("output was not read: {error}")),
            }
        }
        Ok(Self {
            began,
            sampler: RunSampler::of(launched.process, began),
            readers,
            launched,
            progress,
            logs,
            event_files,
            unseen,
        })
    }

    /// Looks at the run until it has ended.
    fn follow(&mut self, args: &Args, settings: &Settings) -> Ending {
        let mut line = StatusLine::default();
        let mut ending = loop {
            self.look();
            if let Some(ending) = self.launched.wait(args.every) {
                break ending;
            }
            self.launched.reap();
            self.launched.follow_sizes();
            let samples = &self.sampler.samples;
            line.draw(|| status_text::text_of(&lock(&self.progress), samples, settings.expectation.as_ref()));
        };
        line.end();
        if !ending.leaves_others {
            for reader in self.readers.drain(..) {
                // A panic in it costs its lines, not the report.
                let _ = reader.join();
            }
            ending.leaves_others = self.sampler.goes_on();
        }
        self.event_files.end();
        self.logs.iter_mut().for_each(LogFile::end);
        self.read_logs();
        ending
    }

    fn look(&mut self) {
        self.read_logs();
        self.sampler.look();
    }

    fn read_logs(&mut self) {
        // Whoever reads the output shall not wait for a slow disk.
        self.event_files.search();
        let at_s = self.began.elapsed().as_secs_f64();
        let mut progress = lock(&self.progress);
        for log in &mut self.logs {
            log.look(|line| progress.take(line, at_s));
        }
        let broken = self.event_files.look(|fields, at_s| progress.take_event(fields, at_s));
        self.unseen.extend(broken);
    }

    fn evidence(&self, settings: &Settings, ending: Ending, kills: Option<OomKills>) -> Evidence {
        let progress = lock(&self.progress);
        let losses = self.launched.losses().into_iter().map(str::to_owned);
        let kills = oom_kills().zip(kills).filter(|(now, then)| now.scope == then.scope);
        let kills = kills.map(|(now, then)| OomKills {
            count: now.count.saturating_sub(then.count),
            scope: now.scope,
        });
        let is_cut = progress.step() == 0 && self.event_files.is_cut();
        let cut =
            is_cut.then(|| "event files were looked for in a part of the folders alone: --log names one".to_owned());
        let samples = self.sampler.samples.all();
        let sees_no_gpu = samples.iter().all(|sample| sample.gpu_bytes().is_none());
        Evidence {
            spans: Span::all(&samples),
            steps: progress.step_spans(),
            evaluations: progress.evaluations(),
            seconds: self.began.elapsed().as_secs_f64(),
            limits: RunLimits {
                cores: self.sampler.cores(),
                machine_cores: machine_cores().unwrap_or_else(|| self.sampler.cores()),
                processors: self.sampler.limited_processors(),
                oom_kills: kills.unwrap_or_default(),
                gpu_unseen: sees_no_gpu && !samples.is_empty() && may_use_gpus(),
            },
            samples,
            settings: progress.settings.clone(),
            told: progress.told.clone(),
            asked: asked_step(settings),
            ending,
            unseen: self.unseen.iter().cloned().chain(losses).chain(cut).collect(),
        }
    }

    fn seen(&self, settings: &Settings) -> StepsSeen {
        let progress = lock(&self.progress);
        let of_all = progress.tokens.per_second();
        let of_a_device = progress.tokens.per_second_of_a_device().filter(|_| of_all.is_none());
        let of_devices = of_a_device.map(|rate| rate * settings.devices.unwrap_or(1) as f64);
        StepsSeen {
            steps: progress.step(),
            total: progress.total(),
            counted_tokens_per_s: of_all.or(of_devices),
            counts_one_device: of_a_device.is_some() && settings.devices.is_none(),
            loss: progress.loss,
        }
    }
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the copy of an output to its end. A bar stands without an end until it is drawn again.
fn read_copy(mut copy: File, progress: &Mutex<Progress>, began: Instant) {
    let (mut lines, mut block, mut shown) = (OutputLines::default(), vec![0u8; BLOCK], String::new());
    while let Ok(count @ 1..) = copy.read(&mut block) {
        let at_s = began.elapsed().as_secs_f64();
        let mut progress = lock(progress);
        lines.take(&block[..count], |line| {
            if line != shown {
                progress.take(line, at_s);
            }
        });
        shown.clear();
        if let Some(line) = lines.unfinished().filter(|line| progress.take_bar_line(line, at_s)) {
            shown = line;
        }
    }
    if let Some(last) = lines.unfinished().filter(|last| *last != shown) {
        lock(progress).take(&last, began.elapsed().as_secs_f64());
    }
}

/// Whether the command may use a GPU of this machine.
fn may_use_gpus() -> bool {
    let visible = std::env::var_os("CUDA_VISIBLE_DEVICES");
    let hides_all = visible.is_some_and(|devices| devices.is_empty() || devices == "-1");
    !hides_all && !gpu_models().is_empty()
}

/// Processors of the machine, whoever may use them.
fn machine_cores() -> Option<usize> {
    // SAFETY: a question without arguments that could be wrong.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(count).ok().filter(|count| *count > 0)
}
