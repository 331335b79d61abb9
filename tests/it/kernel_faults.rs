use std::collections::VecDeque;
use std::time::Duration;

use super::tune::{record, study};
use peft_tune::store::Store;
use peft_tune::tune::{Interrupt, KernelFault, TuneObserver, Tuner, TunerParts};
use peft_tune::worker::{Evaluator, EvaluatorError, TrialEvent, TrialRequest};
use peft_tune_core::study::{FailReason, Phase, TrialNumber, TrialState};
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

/// A GPU whose kernels fail in some forms.
struct Faulty {
    fails_in: &'static [Kernels],
    events: VecDeque<TrialEvent>,
}

impl Evaluator for Faulty {
    fn capacity(&self) -> usize {
        1
    }

    fn submit(&mut self, request: TrialRequest) -> Result<(), EvaluatorError> {
        let (number, kernels) = (request.number, request.kernels.unwrap());
        let fails = self.fails_in.contains(&kernels);
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
            fault,
        });
        let reason = FailReason::Crashed {
            phase: Phase::Train,
            message: "exit code 1".to_owned(),
        };
        let metrics = [("throughput", 1.0), ("peak_memory", 2.0), ("loss", 3.0)].into();
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

/// What trials ran in, and which changes were told, where kernels fail in some forms.
async fn searched(fails_in: &'static [Kernels], rehearses: bool) -> (Vec<String>, Told) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("study.db")).await.unwrap();
    let study = study(SPACE);
    let open = store.begin_study(&record(&study)).await.unwrap();
    let (events, mut told) = (VecDeque::new(), Told::default());
    let parts = TunerParts {
        study: &study,
        store: &store,
        id: open.id,
        sampler: peft_tune_search::build(study.sampler.kind, &study.problem(), study.seed).unwrap(),
        evaluator: Box::new(Faulty { fails_in, events }),
        observer: &mut told,
        interrupt: Interrupt::default(),
    };
    let tuner = Tuner::new(parts).await.unwrap();
    let mut tuner = if rehearses { tuner.with_rehearsal() } else { tuner };
    tuner.run().await.unwrap();
    let complete = |state: &TrialState| matches!(state, TrialState::Complete { .. });
    assert!(tuner.history().iter().all(|trial| complete(&trial.state)));
    drop(tuner);
    let forms = store.trial_kernels(open.id).await.unwrap().into_values();
    let named = |name: Option<String>| name.unwrap_or_else(|| "-".to_owned());
    let forms = forms.map(|one| format!("{} {} {}", one.kernels, named(one.attention), named(one.instead_of)));
    (forms.collect(), told)
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
