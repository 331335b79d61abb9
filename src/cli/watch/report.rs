//! [`RunReport`]: what was expected of a run, what was measured, and why they differ.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::causes::{Cause, causes};
use super::evidence::{AskedStep, Evidence};
use super::launched::Ending;
use super::printed::PrintedSetting;
use super::progress::StepSpan;
use super::sample::Sample;
use super::settings::Settings;
use super::trace::TraceReport;
use crate::cli::CliError;
use crate::cli::plan::Expectation;
use crate::cli::secrets::without_secrets;
use crate::tools::plan::{MEMORY_WITHIN, SPEED_WITHIN};
use peft_tune_core::predict::stack::HOST;
use peft_tune_core::whole_file::write_whole;
use peft_tune_engine::profile::Median;

/// Layout of the file.
const LAYOUT: u32 = 1;

/// Report of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RunReport {
    pub layout: u32,
    /// Words of the command, without secrets.
    pub command: Vec<String>,
    pub ending: Ending,
    pub seconds: f64,
    /// Settings that were read of the tool's file; absent where none were.
    pub read: Option<ReadSettings>,
    /// Versions of Python packages.
    pub packages: BTreeMap<String, String>,
    pub expected: Option<Expected>,
    pub measured: Measured,
    /// Numbers side by side.
    pub gaps: Vec<Gap>,
    pub causes: Vec<Cause>,
    /// What is not known, and why.
    pub unknown: Vec<String>,
    /// Trace that the run wrote, where one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceReport>,
}

/// Settings of a training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ReadSettings {
    pub file: String,
    pub tool: String,
    pub model: String,
    pub rows: String,
    /// The setting in words, and key by key.
    pub text: String,
    pub setting: serde_json::Value,
}

/// Numbers that were predicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Expected {
    pub device: Option<String>,
    pub step_s: Option<f64>,
    /// Tokens of all devices a second, padding counted.
    pub tokens_per_s: Option<f64>,
    /// The process on one device.
    pub peak_bytes: u64,
    pub peak_within_bytes: u64,
    /// Peaks of phases, by their names.
    pub phases: BTreeMap<String, u64>,
}

/// Numbers that were measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    /// Steps that were seen, and how many there are to be.
    pub steps: u64,
    pub total_steps: Option<u64>,
    /// Median time of a step, and the half width of its interval of 95% over it.
    pub step_s: Option<f64>,
    pub step_interval: Option<f64>,
    /// Tokens a second, padding counted: those of a step as the file says them.
    pub tokens_per_s: Option<f64>,
    /// Tokens a second that the tool counted.
    pub counted_tokens_per_s: Option<f64>,
    pub loss: Option<f64>,
    /// Highest memory of all processes, and of the run on one GPU.
    pub peak_memory_bytes: u64,
    pub peak_gpu_bytes: Option<u64>,
    /// Mean of processors that were busy, of those that the run may use.
    pub cores: f64,
    pub usable_cores: usize,
    pub gpu_utilisation: Option<f64>,
    /// Bytes that a disk had to read and to write, where the system tells them.
    pub read_bytes: Option<u64>,
    pub written_bytes: Option<u64>,
    pub evaluation_s: f64,
    pub samples: usize,
    /// Most processes that ran at once.
    pub processes: usize,
}

/// A number that was predicted, beside what was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Gap {
    /// Name as metrics have it.
    pub metric: String,
    pub expected: f64,
    /// Bounds of the prediction: those of a speed hold for nine of ten published rows.
    pub low: f64,
    pub high: f64,
    pub measured: f64,
    pub is_within: bool,
}

/// What is known of the steps beside the evidence.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct StepsSeen {
    pub steps: u64,
    pub total: Option<u64>,
    pub counted_tokens_per_s: Option<f64>,
    /// Whether those are of one device, as nobody told how many there are.
    pub counts_one_device: bool,
    pub loss: Option<f64>,
}

impl RunReport {
    /// The report of a run that has ended.
    pub(super) fn new(
        command: &[OsString],
        settings: &Settings,
        evidence: &Evidence,
        seen: StepsSeen,
        packages: BTreeMap<String, String>,
    ) -> Self {
        let expectation = settings.expectation.as_ref();
        let expected = expectation.map(Expected::of);
        let tokens = expectation.map(tokens_of_step);
        let measured = Measured::of(evidence, seen, tokens);
        Self {
            layout: LAYOUT,
            command: without_secrets(command),
            ending: evidence.ending,
            seconds: evidence.seconds,
            read: settings.file.as_deref().zip(expectation).map(ReadSettings::of),
            packages,
            gaps: expected
                .iter()
                .flat_map(|expected| gaps(expected, &measured, devices(settings)))
                .collect(),
            expected,
            measured,
            causes: causes(evidence),
            unknown: unknown(settings, evidence, seen),
            trace: None,
        }
    }

    /// Adds the trace that the run was to write, or why there is none.
    pub(super) fn add_trace(&mut self, trace: Result<TraceReport, String>) {
        match trace {
            Ok(trace) => self.trace = Some(trace),
            Err(reason) => self.unknown.push(reason),
        }
    }

    /// Writes it as JSON.
    ///
    /// # Errors
    /// Bad input: a path that cannot be written.
    pub(super) fn write(&self, path: &Path) -> Result<(), CliError> {
        let text = serde_json::to_string_pretty(self).map_err(CliError::failed)? + "\n";
        write_whole(path, text.as_bytes(), true).map_err(|error| CliError::cannot_write(path, &error, "--report"))
    }

    /// Reads a report that was written.
    ///
    /// # Errors
    /// Bad input: a file that cannot be read, or that is no report.
    pub(super) fn read(path: &Path) -> Result<Self, CliError> {
        let shown = path.display();
        let text =
            std::fs::read_to_string(path).map_err(|error| CliError::bad(format!("cannot read {shown}: {error}")))?;
        let no_report = |why: String| {
            CliError::bad(format!(
                "{shown} is no report of `watch`: {why}; give a file that `--report` has written"
            ))
        };
        let report: Self = serde_json::from_str(&text).map_err(|error| no_report(error.to_string()))?;
        match report.layout {
            LAYOUT => Ok(report),
            other => Err(no_report(format!("its layout is {other}, and not {LAYOUT}"))),
        }
    }
}

impl ReadSettings {
    fn of((file, expectation): (&Path, &Expectation)) -> Self {
        Self {
            file: file.display().to_string(),
            tool: expectation.tool.clone(),
            model: expectation.model.clone(),
            rows: expectation.rows.clone(),
            text: expectation.setting_text.clone(),
            setting: serde_json::to_value(&expectation.setting).unwrap_or_default(),
        }
    }
}

impl Expected {
    fn of(expectation: &Expectation) -> Self {
        let prediction = &expectation.prediction;
        let reserve = prediction.verdict.map(|verdict| verdict.reserve_bytes);
        let phases = prediction.memory.phases.iter();
        Self {
            device: expectation.device.map(|device| device.sheet.name.to_owned()),
            step_s: prediction.step_s(),
            tokens_per_s: prediction.tokens_per_s,
            peak_bytes: prediction.process_bytes,
            peak_within_bytes: reserve.unwrap_or((MEMORY_WITHIN * prediction.process_bytes as f64) as u64),
            phases: phases
                .map(|phase| (phase.phase.to_owned(), phase.tensors_bytes))
                .collect(),
        }
    }
}

impl Measured {
    fn of(evidence: &Evidence, seen: StepsSeen, tokens: Option<f64>) -> Self {
        let seconds: Vec<f64> = evidence.steps.iter().map(StepSpan::seconds).collect();
        let step = Median::of(&seconds);
        let samples = &evidence.samples;
        let last = samples.last();
        let utilisations: Vec<f64> = samples.iter().filter_map(Sample::gpu_utilisation).collect();
        let mean = utilisations.iter().sum::<f64>() / utilisations.len().max(1) as f64;
        Self {
            steps: seen.steps,
            total_steps: seen.total,
            step_s: step.map(|step| step.value),
            step_interval: step.map(|step| step.interval),
            tokens_per_s: tokens.zip(step).map(|(tokens, step)| tokens / step.value),
            counted_tokens_per_s: seen.counted_tokens_per_s,
            loss: seen.loss.filter(|loss| loss.is_finite()),
            peak_memory_bytes: samples.iter().map(|sample| sample.memory_bytes).max().unwrap_or(0),
            peak_gpu_bytes: samples.iter().filter_map(Sample::gpu_bytes).max(),
            cores: last.map_or(0.0, |last| last.used.cpu_s / last.at_s.max(f64::MIN_POSITIVE)),
            usable_cores: evidence.limits.cores,
            gpu_utilisation: (!utilisations.is_empty()).then_some(mean),
            read_bytes: last.and_then(|last| last.used.read_bytes),
            written_bytes: last.and_then(|last| last.used.written_bytes),
            evaluation_s: evidence.evaluations.iter().map(|(from, to)| to - from).sum(),
            samples: samples.len(),
            processes: samples.iter().map(|sample| sample.processes).max().unwrap_or(0),
        }
    }

    /// Highest memory of the device that trains.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak_gpu_bytes.unwrap_or(self.peak_memory_bytes)
    }
}

/// What is not known of a run, and why.
fn unknown(settings: &Settings, evidence: &Evidence, seen: StepsSeen) -> Vec<String> {
    let mut unknown = settings.unknown.clone();
    unknown.extend(evidence.unseen.iter().cloned());
    if evidence.steps.is_empty() {
        unknown.push(
            "no steps were seen: neither bars nor logs that are known here; --log names a file of JSON lines or TensorBoard's"
                .to_owned(),
        );
    }
    if seen.counts_one_device {
        unknown.push(
            "tokens/s by the tool's count are of one device alone: how many share the work is not known; --devices says it"
                .to_owned(),
        );
    }
    if let Some(devices) = printed_devices(evidence) {
        unknown.push(format!(
            "what was expected is for one device, and by the tool's rows of a step there are {devices}: --devices {devices} says so"
        ));
    }
    // A command that ends at once is looked at once, if at all.
    let is_seen = |sample: &Sample| sample.queued.is_some() && sample.all_use.is_some();
    if evidence.samples.len() > 1 && !evidence.samples.iter().any(is_seen) {
        unknown.push(
            "whether other programs took processors was not seen: the system does not count how long threads wait for one"
                .to_owned(),
        );
    }
    if evidence.samples.is_empty() {
        unknown.push(
            "no memory was seen: the command ended at once, or the system does not show its processes".to_owned(),
        );
    }
    let device = settings.expectation.as_ref().and_then(|expectation| expectation.device);
    if device.is_some_and(|device| device.sheet.name == HOST) && devices(settings) > 1 {
        unknown.push("the peak of one device's process was not seen: that of the host is of all of them".to_owned());
    }
    if evidence.limits.gpu_unseen {
        unknown.push("the GPU's use and memory were not seen".to_owned());
    }
    unknown
}

/// The step of a training as far as its file says it; `None` where nothing of it could be read.
pub(super) fn asked_step(settings: &Settings) -> Option<AskedStep> {
    let setting = &settings.expectation.as_ref()?.setting;
    let said = |name: &str, value: u64| settings.said.contains(name).then_some(value);
    Some(AskedStep {
        micro_batch: said("micro_batch", setting.micro_batch),
        accumulation: said("gradient_accumulation", setting.gradient_accumulation),
        devices: settings.devices,
    })
}

/// Devices by the rows of a step that the tool printed, where nobody told how many there are; `None` where it is one.
fn printed_devices(evidence: &Evidence) -> Option<u64> {
    let asked = evidence.asked.filter(|asked| asked.devices.is_none())?;
    let (rows, printed) = (asked.rows()?, *evidence.settings.get(&PrintedSetting::GlobalBatch)?);
    let devices = printed.checked_div(rows).filter(|devices| *devices > 1)?;
    printed.is_multiple_of(rows).then_some(devices)
}

/// Tokens of a step on all devices, padding counted.
pub(super) fn tokens_of_step(expectation: &Expectation) -> f64 {
    let setting = &expectation.setting;
    setting.tokens() as f64 * setting.gradient_accumulation as f64 * setting.devices as f64
}

/// Devices of the prediction.
fn devices(settings: &Settings) -> u64 {
    let expectation = settings.expectation.as_ref();
    expectation.map_or(1, |expectation| expectation.setting.devices)
}

/// Whether the peak that is predicted for the process of one device is that of all that the host was seen to have.
fn is_on_host(expected: &Expected, devices: u64) -> bool {
    expected.device.as_deref() == Some(HOST) && devices == 1
}

/// Predicted numbers that were measured, too.
fn gaps(expected: &Expected, measured: &Measured, devices: u64) -> Vec<Gap> {
    let gap = |metric: &str, [low, expected, high]: [f64; 3], measured: f64| Gap {
        metric: metric.to_owned(),
        expected,
        low,
        high,
        measured,
        is_within: (low..=high).contains(&measured),
    };
    let around = |value: f64| [value / (1.0 + SPEED_WITHIN), value, value * (1.0 + SPEED_WITHIN)];
    let step = expected.step_s.zip(measured.step_s);
    let speed = expected.tokens_per_s.zip(measured.tokens_per_s);
    let (peak, within) = (expected.peak_bytes as f64, expected.peak_within_bytes as f64);
    // Without a GPU in the prediction the host's memory is none of what was predicted for one.
    let is_alike = measured.peak_gpu_bytes.is_some() || is_on_host(expected, devices);
    let memory = (measured.peak_bytes() > 0 && is_alike).then_some(measured.peak_bytes() as f64);
    let all = [
        step.map(|(expected, measured)| gap("step_s", around(expected), measured)),
        speed.map(|(expected, measured)| gap("tokens_per_s", around(expected), measured)),
        memory.map(|measured| gap("peak_bytes", [peak - within, peak, peak + within], measured)),
    ];
    all.into_iter().flatten().collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cli::watch::evidence::made::clean;

    fn report() -> RunReport {
        let command = ["python", "train.py"].map(OsString::from);
        let seen = StepsSeen {
            steps: 30,
            total: Some(60),
            counted_tokens_per_s: Some(100.0),
            counts_one_device: false,
            loss: Some(1.5),
        };
        RunReport::new(&command, &Settings::default(), &clean(30), seen, BTreeMap::new())
    }

    /// A report with what was expected of the run.
    pub(in crate::cli::watch) fn with_expectation() -> RunReport {
        let mut report = report();
        let expected = Expected {
            device: Some("cpu".to_owned()),
            step_s: Some(0.5),
            tokens_per_s: Some(2000.0),
            peak_bytes: 4 << 30,
            peak_within_bytes: 1 << 28,
            phases: BTreeMap::new(),
        };
        report.measured.tokens_per_s = Some(1000.0);
        report.gaps = gaps(&expected, &report.measured, 1);
        report.expected = Some(expected);
        report
    }

    #[test]
    fn measurements_stand_beside_predictions_within_bounds_or_beyond() {
        let report = with_expectation();
        let within: Vec<(&str, bool)> = report
            .gaps
            .iter()
            .map(|gap| (gap.metric.as_str(), gap.is_within))
            .collect();
        assert_eq!(
            within,
            [("step_s", false), ("tokens_per_s", false), ("peak_bytes", true)]
        );
        // Of several processes on the host none is seen apart.
        let expected = report.expected.as_ref().unwrap();
        let of_two = gaps(expected, &report.measured, 2);
        assert!(of_two.iter().all(|gap| gap.metric != "peak_bytes"), "{of_two:?}");
        assert_eq!(report.measured.step_s, Some(1.0));
        assert!((report.measured.cores - 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        let report = with_expectation();
        report.write(&path).unwrap();
        assert_eq!(RunReport::read(&path).unwrap(), report);
        std::fs::write(&path, "{}").unwrap();
        let error = RunReport::read(&path).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("is no report of `watch`"), "{error}");
    }

    #[test]
    fn nine_of_ten_published_rows_lie_within_the_bounds() {
        let mut lines = include_str!("../../../docs/benchmarks/stacks.csv").lines();
        let names: Vec<&str> = lines.next().unwrap().split(',').collect();
        let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
        // What was published as a part of what was predicted.
        let ratios = |what: &str| -> Vec<f64> {
            let column = |of: &str| {
                let wanted = format!("{of}_{what}");
                names.iter().position(|name| *name == wanted).unwrap()
            };
            let (published, predicted) = (column("published"), column("predicted"));
            let number = |row: &[&str], column: usize| row[column].parse::<f64>().ok();
            let ratios = rows
                .iter()
                .filter_map(|row| Some(number(row, published)? / number(row, predicted)?));
            ratios.collect()
        };
        let share = |ratios: &[f64], low: f64, high: f64| {
            let within = ratios.iter().filter(|ratio| (low..=high).contains(*ratio));
            within.count() as f64 / ratios.len() as f64
        };
        let speed = ratios("tokens_per_s");
        let within = share(&speed, 1.0 / (1.0 + SPEED_WITHIN), 1.0 + SPEED_WITHIN);
        assert!(speed.len() > 100 && (0.9..0.93).contains(&within), "{within}");
        let memory = ratios("process_gib");
        let within = share(&memory, 1.0 - MEMORY_WITHIN, 1.0 + MEMORY_WITHIN);
        assert!(memory.len() > 100 && (0.9..0.93).contains(&within), "{within}");
    }
}
