use std::collections::VecDeque;
use std::time::Duration;

use super::tune::{study, with_data};
use peft_tune::store::{Store, StudyId};
use peft_tune::tune::{Interrupt, KernelFault, TuneObserver, Tuner, TunerParts};
use peft_tune::worker::{Evaluator, EvaluatorError, Task, TrialEvent, TrialRequest};
use peft_tune_core::recipe::TrainingLength;
use peft_tune_core::study::{FailReason, Metrics, Phase, TrialNumber, TrialPlan, TrialState};
use peft_tune_kernels::{AttentionKernels, Kernels};

const SPACE: &str = r#"
study: kernels
model: some/model
data: {train: train.jsonl}
space: {rank: [4, 8], gradient_checkpointing: [none, full]}
trial: {sequence_length: 64, profile_steps: 2, training_steps: 3}
budget: {trials: 4}
sampler: grid
confirm: none
"#;

/// A study whose four trials are confirmed: by trainings for longer, by other seeds, and by another measurement.
const CONFIRMED: &str = r#"
study: confirmed
model: some/model
data: {train: train.jsonl}
objectives: [throughput, loss]
space: {rank: [4, 8], learning_rate: [1e-3, 5e-4]}
trial: {sequence_length: 64, profile_steps: 2, training_tokens: 300}
training: {length: {tokens: 4000}}
budget: {trials: 4}
sampler: grid
confirm: {trials: 1, repeats: 2, steps: 2, trainings: 2, longer: 12}
"#;

/// A GPU whose kernels fail in some forms, where a trial asks for what makes them fail.
struct Faulty {
    fails_in: &'static [Kernels],
    fails_at: fn(&TrialRequest) -> bool,
    events: VecDeque<TrialEvent>,
}

fn always(_: &TrialRequest) -> bool {
    true
}

fn plan(request: &TrialRequest) -> &TrialPlan {
    match &request.task {
        Task::Recipe { plan, .. } => plan,
        Task::Params { .. } => panic!("no recipe"),
    }
}

/// Metrics of a trial in this form, as far as it is asked: other kernels take another time, and lose as much.
fn measured(request: &TrialRequest, kernels: Kernels) -> Metrics {
    let plan = plan(request);
    let mut metrics = Metrics::default();
    if plan.measure.is_some() {
        let throughput = match kernels {
            Kernels::Fused | Kernels::Hopper => 10.0,
            Kernels::Tiled | Kernels::Graphs => 8.0,
            Kernels::Reference => 5.0,
        };
        metrics.insert("throughput", throughput - request.number.0 as f64 / 1000.0);
        metrics.insert("peak_memory", 2.0);
    }
    if plan.train.is_some() {
        metrics.insert("loss", 3.0 + request.number.0 as f64);
    }
    metrics
}

impl Evaluator for Faulty {
    fn capacity(&self) -> usize {
        1
    }

    fn submit(&mut self, request: TrialRequest) -> Result<(), EvaluatorError> {
        let (number, kernels) = (request.number, request.kernels.unwrap());
        let fails = self.fails_in.contains(&kernels) && (self.fails_at)(&request);
        let attention = match kernels {
            Kernels::Fused | Kernels::Hopper => Some(AttentionKernels::Hopper),
            Kernels::Reference => None,
            Kernels::Tiled | Kernels::Graphs => Some(AttentionKernels::Tiled),
        };
        let fault = fails.then(|| format!("a trap in {}", kernels.name()));
        self.events.push_back(TrialEvent::Kernels {
            number,
            kernels,
            attention,
            longer_sums: kernels == Kernels::Tiled,
            fault,
        });
        let reason = FailReason::Crashed {
            phase: Phase::Train,
            message: "exit code 1".to_owned(),
        };
        let metrics = measured(&request, kernels);
        let state = TrialState::Complete { metrics };
        let wall_s = 0.0;
        self.events.push_back(match fails {
            true => TrialEvent::Lost { number, reason, wall_s },
            false => TrialEvent::Ended { number, state, wall_s },
        });
        Ok(())
    }

    fn next_event(&mut self, _timeout: Duration) -> Result<Option<TrialEvent>, EvaluatorError> {
        Ok(self.events.pop_front())
    }

    fn cancel(&mut self, _number: TrialNumber) -> Result<(), EvaluatorError> {
        Ok(())
    }
}

#[derive(Default)]
struct Told(Vec<(Kernels, Kernels)>);

impl TuneObserver for Told {
    fn kernels_changed(&mut self, fault: &KernelFault, kernels: Kernels) {
        self.0.push((fault.kernels, kernels));
    }
}

/// A search, with what it told.
struct Searched {
    store: Store,
    id: StudyId,
    told: Told,
    /// Holds the database.
    _folder: tempfile::TempDir,
}

impl Searched {
    async fn new(text: &str, evaluator: Faulty, rehearses: bool) -> Self {
        let folder = crate::folders::for_database();
        let store = Store::open(&folder.path().join("study.db")).await.unwrap();
        let study = study(text);
        let open = store.studies().begin(&with_data(&study)).await.unwrap();
        let mut told = Told::default();
        let parts = TunerParts {
            study: &study,
            store: &store,
            id: open.id,
            sampler: peft_tune_search::build(study.sampler.kind, &study.problem(), study.seed).unwrap(),
            evaluator: Box::new(evaluator),
            observer: &mut told,
            interrupt: Interrupt::default(),
        };
        let tuner = Tuner::new(parts).await.unwrap();
        let mut tuner = if rehearses { tuner.with_rehearsal() } else { tuner };
        tuner.run().await.unwrap();
        let complete = |state: &TrialState| matches!(state, TrialState::Complete { .. });
        assert!(tuner.history().iter().all(|trial| complete(&trial.state)));
        drop(tuner);
        Self {
            id: open.id,
            store,
            told,
            _folder: folder,
        }
    }

    /// Form that each trial was measured in.
    async fn forms(&self) -> Vec<String> {
        let forms = self.store.kernel_forms().of(self.id).await.unwrap().into_values();
        let named = |name: Option<String>| name.unwrap_or_else(|| "-".to_owned());
        let forms = forms.map(|one| {
            assert_eq!(one.longer_sums, one.kernels == "tiled", "{one:?}");
            format!("{} {} {}", one.kernels, named(one.attention), named(one.instead_of))
        });
        forms.collect()
    }

    /// The values of a metric in all repeats of all trials.
    async fn repeated(&self, metric: &str) -> Vec<f64> {
        let repeats = self.store.repeats().of(self.id).await.unwrap();
        repeats.values().flatten().filter_map(|run| run.value(metric)).collect()
    }

    async fn throughput(&self, trial: u64) -> f64 {
        let metrics = self.store.history().metrics(self.id, TrialNumber(trial)).await.unwrap();
        metrics.value("throughput").unwrap()
    }
}

/// Forms that trials ran in, and which changes were told, where kernels fail in some forms.
async fn searched(fails_in: &'static [Kernels], rehearses: bool) -> (Vec<String>, Told) {
    let evaluator = Faulty {
        fails_in,
        fails_at: always,
        events: VecDeque::new(),
    };
    let searched = Searched::new(SPACE, evaluator, rehearses).await;
    (searched.forms().await, searched.told)
}

/// A search whose kernels fail once what it found is confirmed.
async fn confirmed(fails_in: &'static [Kernels], fails_at: fn(&TrialRequest) -> bool) -> Searched {
    let evaluator = Faulty {
        fails_in,
        fails_at,
        events: VecDeque::new(),
    };
    Searched::new(CONFIRMED, evaluator, false).await
}

#[tokio::test]
async fn without_faults_a_trial_says_which_kernels_ran() {
    let (forms, told) = searched(&[], true).await;
    assert_eq!(forms, ["fused hopper -"; 4]);
    assert!(told.0.is_empty());
}

#[tokio::test]
async fn a_fault_in_hoppers_kernels_leads_to_tiled_ones_and_the_search_stays_with_them() {
    let (forms, told) = searched(&[Kernels::Fused], false).await;
    assert_eq!(forms, ["tiled tiled fused"; 4]);
    assert_eq!(told.0, [(Kernels::Fused, Kernels::Tiled)]);
}

#[tokio::test]
async fn where_tiled_ones_fail_too_plain_ops_are_what_is_left() {
    let (forms, told) = searched(&[Kernels::Fused, Kernels::Tiled], false).await;
    assert_eq!(forms, ["reference - fused"; 4]);
    assert_eq!(told.0, [(Kernels::Tiled, Kernels::Reference)]);
}

#[tokio::test]
async fn a_rehearsal_that_meets_the_fault_costs_no_trial_an_attempt() {
    let (forms, told) = searched(&[Kernels::Fused, Kernels::Tiled], true).await;
    assert_eq!(forms, ["reference - fused"; 4]);
    assert_eq!(told.0, [(Kernels::Tiled, Kernels::Reference)]);
}

/// A training of more than a trial's tokens.
fn trains_longer(request: &TrialRequest) -> bool {
    let train = plan(request).train.as_ref();
    train.is_some_and(|train| train.length != TrainingLength::Tokens(300))
}

/// A measurement with no training behind it.
fn only_measures(request: &TrialRequest) -> bool {
    plan(request).train.is_none()
}

#[tokio::test]
async fn confirmations_without_faults_repeat_what_was_measured() {
    let searched = confirmed(&[], always).await;
    assert!(searched.told.0.is_empty());
    assert_eq!(searched.forms().await, ["fused hopper -"; 4]);
    assert_eq!(searched.repeated("throughput").await, [10.0, 10.0]);
    assert!(searched.repeated("loss_longer").await.len() > 1);
    assert_eq!(searched.throughput(0).await, 10.0);
}

#[tokio::test]
async fn a_fault_in_a_longer_training_leads_to_the_form_that_the_recommendation_is_then_measured_in() {
    let searched = confirmed(&[Kernels::Fused], trains_longer).await;
    assert_eq!(searched.told.0, [(Kernels::Fused, Kernels::Tiled)]);
    // All of it was trained: the loss is the same in each form.
    let calm = confirmed(&[], always).await;
    assert_eq!(
        searched.repeated("loss_longer").await,
        calm.repeated("loss_longer").await
    );
    // What is recommended has the cost of the form that works, and repeats of that alone.
    assert_eq!(searched.throughput(0).await, 8.0);
    assert_eq!(searched.repeated("throughput").await, [8.0, 8.0]);
    let forms = searched.forms().await;
    assert_eq!(
        (forms[0].as_str(), forms[3].as_str()),
        ("tiled tiled fused", "fused hopper -")
    );
    // The search stays with it when it is started again, and the attempt that was lost is told.
    let known = searched.store.kernel_forms().safer(searched.id).await.unwrap().unwrap();
    assert_eq!(
        (known.kernels.as_str(), known.instead_of.as_deref()),
        ("tiled", Some("fused"))
    );
    assert_eq!(searched.store.lost_attempts().count(searched.id).await.unwrap(), 1);
}

#[tokio::test]
async fn a_fault_in_a_repeated_measurement_is_met_by_the_same_rule() {
    let searched = confirmed(&[Kernels::Fused, Kernels::Tiled], only_measures).await;
    assert_eq!(searched.told.0, [(Kernels::Tiled, Kernels::Reference)]);
    assert_eq!(searched.forms().await[0], "reference - fused");
    assert_eq!(searched.throughput(0).await, 5.0);
    assert_eq!(searched.repeated("throughput").await, [5.0, 5.0]);
    assert_eq!(searched.store.lost_attempts().count(searched.id).await.unwrap(), 2);
}

#[tokio::test]
async fn where_plain_ops_fail_too_what_was_measured_is_kept() {
    const ALL: &[Kernels] = &[Kernels::Fused, Kernels::Tiled, Kernels::Reference];
    let searched = confirmed(ALL, only_measures).await;
    assert!(searched.told.0.is_empty());
    assert_eq!(searched.forms().await, ["fused hopper -"; 4]);
    assert_eq!(searched.throughput(0).await, 10.0);
    assert!(searched.repeated("throughput").await.is_empty());
}
